"""The canary: the code stands in the image and nowhere else."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envkit
from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, DatasetError, EpisodeStateError
from envkit_canary import DEFAULT_ALPHABET, CanaryEnv, draw_code, read_code
from envkit_canary.glyphs import GLYPH_HEIGHT, GLYPH_WIDTH, GLYPHS

codes = st.text(DEFAULT_ALPHABET, min_size=1, max_size=8)


def test_canary_passes_the_checker() -> None:
    report = envkit.check_env(envkit.make("canary-v0"))
    assert {"gymnasium", "determinism", "snapshot", "replay", "oracle"} <= set(report.passed)


def test_canary_says_nothing_about_the_code_in_the_text() -> None:
    env = CanaryEnv(turns=4)
    texts: set[str] = set()
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        shown = [observation["text"], str(info)]
        for _ in range(3):
            step = env.step("not it")
            shown += [step.observation["text"], str({**step.info, "answer": None})]
        assert not any(code in text for code in env.task["codes"] for text in shown)
        texts.add(observation["text"])
    assert len(texts) == 1


def test_canary_shows_a_new_image_of_the_next_code_every_turn() -> None:
    env = CanaryEnv(turns=3)
    observation, _ = env.reset(options={"task": {"codes": ["K7MX", "222", "K7MX"]}})
    pictures = [observation["images"]]
    pictures += [env.step("2").observation["images"] for _ in range(2)]
    assert [len(images) for images in pictures] == [1, 1, 1]
    assert len({images[0] for images in pictures}) == 3
    assert env.step("K7MX").observation["images"] == ()


def test_canary_oracle_earns_one_and_a_wrong_reply_its_share_less() -> None:
    env = CanaryEnv(turns=4)
    policy = env.oracle()
    env.reset(seed=3)
    steps = [env.step("2222" if turn == 1 else policy(_context(env, turn))) for turn in range(4)]
    assert [step.reward for step in steps] == [0.25, 0.0, 0.25, 0.25]
    assert steps[-1].terminated
    assert not steps[-1].truncated
    with pytest.raises(EpisodeStateError):
        env.step("more")


def _context(env: CanaryEnv, turn: int) -> PolicyContext:
    return PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=0)


def test_canary_truncates_where_max_turns_is_smaller() -> None:
    env = CanaryEnv(turns=3, max_turns=1)
    env.reset(seed=0)
    step = env.step("2222")
    assert step.truncated
    assert not step.terminated


def test_canary_answers_a_reply_without_a_code_instead_of_raising() -> None:
    env = CanaryEnv()
    env.reset(seed=0)
    step = env.step("\ud800 I see a picture")
    assert step.info["parse_error"] is not None
    assert step.reward == 0.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"turns": 0},
        {"length": 0},
        {"length": 17},
        {"alphabet": "A"},
        {"alphabet": "AAB"},
        {"alphabet": "ab"},
        {"max_turns": -1},
    ],
)
def test_canary_refuses_arguments_out_of_range(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        CanaryEnv(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"codes": []},
        {"codes": "AB"},
        {"codes": [1]},
        {"codes": ["é"]},
        {"codes": ["a"]},
        {"codes": ["AB"], "look": "red"},
    ],
)
def test_canary_refuses_a_task_that_cannot_be_drawn(task: dict[str, object]) -> None:
    with pytest.raises(DatasetError):
        CanaryEnv().reset(options={"task": task})


def test_canary_states_its_chance_level() -> None:
    env = CanaryEnv(turns=200, length=1, alphabet="0123456789")
    assert env.chance_level == pytest.approx(0.1)
    env.reset(seed=0)
    rewards = [env.step("7").reward for _ in range(200)]
    assert sum(rewards) == pytest.approx(env.chance_level, abs=0.06)


@given(code=codes, before=st.sampled_from(["", "The code is ", "I read: ", r"\boxed{"]))
def test_read_code_finds_the_code_in_a_reply(code: str, before: str) -> None:
    assert (
        read_code(f"{before}{code.lower()}" if len(code) > 4 else before + code, len(code)) == code
    )


@given(reply=st.text(), length=st.integers(1, 16))
def test_read_code_never_raises_and_returns_a_run_of_the_length(reply: str, length: int) -> None:
    found = read_code(reply, length)
    assert found is None or (len(found) == length and found.isascii() and found.isalnum())


@given(pair=st.tuples(codes, codes), look=st.integers(0, 50))
def test_images_of_one_length_differ_in_the_code_and_not_in_size(
    pair: tuple[str, str], look: int
) -> None:
    one, two = (draw_code(code, look=look) for code in pair)
    assert (one == two) == (pair[0] == pair[1])
    if len(pair[0]) == len(pair[1]):
        assert one.size == two.size
    assert one.size[0] % 28 == 0
    assert one.size[1] % 28 == 0


def test_image_bytes_are_the_same_everywhere() -> None:
    assert draw_code("K7MX").sha256 == IMAGE_OF_K7MX


IMAGE_OF_K7MX = "ef21d16b5af2e98f5a790897d4418788f7b7fbbaaf212247d3f090c9b6a094a7"


def test_glyphs_are_whole_and_distinct() -> None:
    for rows in GLYPHS.values():
        assert len(rows) == GLYPH_HEIGHT
        assert all(len(row) == GLYPH_WIDTH and set(row) <= {"#", "."} for row in rows)
    cells = {c: np.array([[x == "#" for x in row] for row in rows]) for c, rows in GLYPHS.items()}
    for one, two in itertools.combinations(DEFAULT_ALPHABET, 2):
        assert int((cells[one] ^ cells[two]).sum()) >= 3, (one, two)
