"""The environment contract: hooks, turns, truncation, snapshots, spaces, tasks, vector use."""

import asyncio
import copy
import gc
import json
import pickle
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import pytest
from fakes.budget import examples
from fakes.envs import AdderEnv, AsyncEchoEnv, DotsEnv, EchoEnv, register_toys
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, PolicyContext, Reset, Step, Turn
from envkit.errors import ConfigurationError, ContractError, DatasetError, EpisodeStateError
from envkit.images import Image
from envkit.spaces import Choice, ImageSpace, UnicodeText, observation_space, response_space
from envkit.tasks import ENDLESS_INDEX_LIMIT, ListSource, Task, TaskSource, draw_index

RED = Image.from_pil(PilImage.new("RGB", (4, 4), "red"))
TOY_IDS = ("toy-echo-v0", "toy-dots-v0", "toy-adder-v0", "toy-async-echo-v0")


class FixedEnv(Env):
    """Returns the turns it was given."""

    def __init__(self, *turns: Any, max_turns: int = 9) -> None:
        super().__init__(max_turns=max_turns)
        self._turns = list(turns)

    def on_reset(self, task: Task) -> Turn:
        return self._turns.pop(0)

    def on_turn(self, response_text: str) -> Turn:
        return self._turns.pop(0)


def test_reset_and_step_unpack_as_gymnasium_tuples() -> None:
    env = EchoEnv()

    observation, info = env.reset(seed=1, options={"task": {"word": "beta"}})
    stepped, reward, terminated, truncated, step_info = env.step("beta")

    assert observation == {"text": "Repeat this word: beta", "images": (), "role": "user"}
    assert info == {"turn": 0, "tool_call": None, "parse_error": None, "reward_terms": {}}
    assert (stepped["text"], reward, terminated, truncated) == ("Right.", 1.0, True, False)
    assert step_info == {**info, "turn": 1, "reward_terms": {"exact": 1.0}}


def test_reaching_max_turns_is_truncation_and_solving_is_termination() -> None:
    env = EchoEnv(max_turns=2)
    env.reset(seed=0)
    first, second = env.step("no"), env.step("no")

    assert (first.terminated, first.truncated) == (False, False)
    assert (second.terminated, second.truncated) == (False, True)

    env.reset(seed=0, options={"task": {"word": "beta"}})
    env.step("no")
    assert env.step("beta")[2:4] == (True, False)


@pytest.mark.parametrize("env_class", [EchoEnv, AsyncEchoEnv])
def test_step_before_reset_or_after_the_end_is_an_error(env_class: type[Env]) -> None:
    env = env_class(max_turns=1)
    with pytest.raises(EpisodeStateError, match=r"call reset\(\) before step\(\)"):
        env.step("x")
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(EpisodeStateError):
        env.step("x")
    env.reset()
    env.step("x")
    env.close()


def test_failed_reset_leaves_no_running_episode() -> None:
    env = FixedEnv(Turn("start"), "wrong")
    env.reset()
    with pytest.raises(ContractError):
        env.reset()
    with pytest.raises(EpisodeStateError):
        env.step("x")


def test_task_is_drawn_by_seed_or_given_and_never_shared() -> None:
    env = EchoEnv()
    drawn = [env.reset(seed=seed).observation["text"] for seed in range(30)]
    again = [env.reset(seed=seed).observation["text"] for seed in range(30)]
    task: dict[str, Any] = {"word": "w", "more": [1]}

    env.reset(options={"task": task})
    env.task["more"].append(2)

    assert drawn == again
    assert len(set(drawn)) == 6
    assert task == {"word": "w", "more": [1]}
    with pytest.raises(ConfigurationError, match="must be a dict, got str"):
        env.reset(options={"task": "w"})


def test_recorded_task_with_the_same_seed_plays_the_same_episode() -> None:
    class NoisyEnv(EchoEnv):
        def on_turn(self, response_text: str) -> Turn:
            return Turn(str(self.np_random.integers(10**9)))

    env = NoisyEnv()
    env.reset(seed=5)
    drawn, first = env.task, env.step("x").observation

    env.reset(seed=5, options={"task": drawn})

    assert env.step("x").observation == first


def test_images_keep_the_role_of_their_turn() -> None:
    env = FixedEnv(Turn("see", images=[RED], role="tool"), Turn("3", role="tool"))

    shown = env.format_observation(env.reset().observation)
    plain = env.format_observation(env.step("x").observation)

    assert shown["role"] == "tool"
    assert shown["content"][0] == {"type": "image", "image": RED}
    assert plain == {"role": "tool", "content": "3"}


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"text": None}, "text must be a str, got NoneType"),
        ({"images": RED}, "images must be a tuple or list of images, such as [image], got Image"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8)}, "images must be a tuple or list"),
        ({"images": [np.zeros((4, 4, 3))]}, "must be uint8 of shape (height, width[, channels])"),
        ({"images": [np.zeros((4, 4, 7), np.uint8)]}, "got uint8 of shape (4, 4, 7)"),
        ({"images": "red.png"}, "images must be a tuple or list"),
        ({"images": [b"png"]}, "must hold envkit.Image"),
        ({"role": "assistant"}, "role must be 'user' or 'tool'"),
        ({"reward": float("nan")}, "reward must be a finite number"),
        ({"reward": 10**400}, "reward must be a finite number"),
        ({"reward": "1"}, "reward must be a finite number"),
        ({"reward": None}, "reward must be a finite number"),
        ({"done": 1}, "done must be a bool"),
        ({"info": [("turn", 1)]}, "info must be a mapping"),
    ],
)
def test_turn_with_a_wrong_field_names_it(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(ContractError) as caught:
        Turn(**cast(Any, {"text": "x", **fields}))

    assert part in str(caught.value)


def test_turn_takes_pillow_images_and_arrays() -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    picture = PilImage.fromarray(pixels)

    turn = Turn("see", images=[Image.from_array(pixels), picture, pixels])

    assert turn.images == (Image.from_array(pixels),) * 3
    assert all(type(image) is Image for image in turn.images)
    pixels[:] = 0
    picture.paste((0, 0, 0), (0, 0, 5, 4))
    assert turn.images[1].array().any()
    assert turn.images[2].array().any()


def test_numpy_numbers_become_plain_ones() -> None:
    env = FixedEnv(Turn("a"), Turn("b", reward=cast(float, np.float32(0.5)), done=True))
    env.reset()
    step = env.step("x")

    assert type(step.reward) is float
    assert type(FixedEnv(Turn("a"), Turn("b", reward=True))._turns[1].reward) is bool


def test_hook_that_returns_no_turn_is_named() -> None:
    with pytest.raises(ContractError, match=r"FixedEnv\.on_reset must return .*got str"):
        FixedEnv("text").reset()
    env = FixedEnv(Turn("a"), None)
    env.reset()
    with pytest.raises(ContractError, match=r"FixedEnv\.on_turn must return .*got NoneType"):
        env.step("x")


def test_missing_hooks_and_wrong_arguments_say_what_to_do() -> None:
    with pytest.raises(ContractError, match="must define on_reset"):
        Env().reset()
    with pytest.raises(ConfigurationError, match="at least 1, got 0"):
        Env(max_turns=0)
    with pytest.raises(ConfigurationError, match="got 'human'"):
        Env(render_mode="human")
    with pytest.raises(ConfigurationError, match="has no oracle"):
        Env().oracle()
    with pytest.raises(ContractError, match="define get_state and set_state"):
        Env().snapshot()


@pytest.mark.parametrize("env_class", [EchoEnv, AsyncEchoEnv])
def test_step_takes_a_reply_and_nothing_else(env_class: type[Env]) -> None:
    env = env_class()
    env.reset(seed=1)

    with pytest.raises(ConfigurationError, match=r"such as step\('3'\), got int: 3"):
        env.step(cast(str, 3))
    assert env.step("3").info["turn"] == 1


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"tsk": {}}, "only the option 'task', got options={'tsk': ...}. Did you mean 'task'?"),
        ({"level": 3}, "got options={'level': ...}"),
        ("task", "options={'task': {...}}, got str: 'task'"),
    ],
)
def test_reset_refuses_options_it_would_ignore(options: Any, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EchoEnv().reset(options=options)

    assert part in str(caught.value)


def test_info_is_never_shared_with_the_hook() -> None:
    terms = {"a": 1.0}
    env = FixedEnv(Turn("a"), *(Turn("b", info={"reward_terms": terms}) for _ in range(2)))
    env.reset()
    first, second = env.step("x"), env.step("x")

    first.info["reward_terms"]["a"] = 5

    assert second.info["reward_terms"] == terms == {"a": 1.0}
    assert second.info["turn"] == 2


REPLIES = st.lists(st.sampled_from(["1", "5", "nine", "", "oracle"]), min_size=1, max_size=8)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**31), replies=REPLIES, cut=st.integers(0, 7))
def test_invariant_12_restore_gives_byte_equal_continuations(
    seed: int, replies: list[str], cut: int
) -> None:
    def play(env: DotsEnv, written: list[str]) -> list[Step]:
        steps: list[Step] = []
        for reply in written:
            if steps and (steps[-1].terminated or steps[-1].truncated):
                break
            steps.append(env.step(str(env.dots) if reply == "oracle" else reply))
        return steps

    env, fresh = DotsEnv(max_turns=9), DotsEnv(max_turns=9)
    env.reset(seed=seed)
    before = play(env, replies[:cut])
    if before and (before[-1].terminated or before[-1].truncated):
        return
    saved = env.snapshot()
    expected = play(env, replies[cut:])

    fresh.restore(saved)

    assert fresh.snapshot() == saved
    again = play(fresh, replies[cut:])
    assert again == expected
    assert [i.png_bytes() for s in again for i in s.observation["images"]] == [
        i.png_bytes() for s in expected for i in s.observation["images"]
    ]


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**31), replies=REPLIES)
def test_invariant_7_same_seed_and_replies_give_the_same_bytes(
    seed: int, replies: list[str]
) -> None:
    def play() -> list[Any]:
        env = DotsEnv()
        seen: list[Any] = [env.reset(seed=seed)]
        for reply in replies:
            step = env.step(reply)
            seen.append((step, [image.png_bytes() for image in step.observation["images"]]))
            if step.terminated or step.truncated:
                break
        return seen

    assert play() == play()


def test_snapshot_that_is_not_json_names_the_environment() -> None:
    class Broken(EchoEnv):
        def get_state(self) -> dict[str, Any]:
            return {"lock": object()}

    env = Broken()
    env.reset(seed=0)
    with pytest.raises(ContractError, match=r"Broken: task and get_state\(\) must be JSON"):
        env.snapshot()


def test_snapshot_stays_small_over_a_long_episode() -> None:
    env = EchoEnv(max_turns=500)
    env.reset(seed=0)
    start = len(env.snapshot())
    for _ in range(400):
        env.step("no" * 100)

    assert len(env.snapshot()) < start + 20


@pytest.mark.parametrize("toy_id", TOY_IDS)
def test_gymnasium_checker_passes_without_a_warning(toy_id: str) -> None:
    register_toys()
    env = gymnasium.make(f"envkit/{toy_id}")

    gymnasium_check_env(env.unwrapped)  # warnings are errors in this test run

    env.close()


def test_render_draws_transcript_and_images() -> None:
    text_env, page_env = DotsEnv(render_mode="ansi"), DotsEnv(render_mode="rgb_array")
    for env in (text_env, page_env, plain := DotsEnv()):
        env.reset(seed=1)
    blank = page_env.render()
    for env in (text_env, page_env, plain):
        env.step("é \U0001f642 " * 400)

    assert text_env.render() == "\n".join(
        ["How many dots are there?", "é \U0001f642 " * 400, text_env._transcript[-1]]
    )
    page = page_env.render()
    assert isinstance(page, np.ndarray)
    assert isinstance(blank, np.ndarray)
    assert (page.shape, page.dtype) == ((768, 768, 3), np.uint8)
    assert (page != blank).any()
    assert plain.render() is None


def test_sync_vector_env_steps_text_and_images() -> None:
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: DotsEnv(max_turns=3), lambda: DotsEnv(max_turns=3)]
    )
    observations, _ = vector.reset(seed=[1, 2])
    assert len(observations["images"]) == 2
    for _ in range(2):
        vector.step(("1", "x"))
    observations, rewards, terminated, truncated, infos = vector.step(("1", "x"))

    assert rewards.shape == (2,)
    assert (truncated | terminated).all()
    assert infos["turn"].tolist() == [3, 3]
    assert all(isinstance(images[0], Image) for images in observations["images"])
    vector.close()


def test_gymnasium_wrappers_work() -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(cast(Any, EchoEnv(max_turns=1)))
    env.reset(seed=0)

    assert env.step("x")[4]["episode"]["l"] == 1


async def test_async_env_plays_on_the_running_loop() -> None:
    env = AsyncEchoEnv()
    start = await env.areset(seed=3, options={"task": {"word": "red"}})
    step = await env.astep("red")

    assert isinstance(start, Reset)
    assert (step.reward, step.terminated, step.info["turn"]) == (1.0, True, 1)
    with pytest.raises(EpisodeStateError):
        await env.astep("red")
    with pytest.raises(ConfigurationError, match=r"call `await env\.areset\(\.\.\.\)`"):
        env.reset()
    await env.aclose()


def test_async_env_works_without_a_loop_and_keeps_its_own() -> None:
    class LoopEnv(AsyncEchoEnv):
        loops: ClassVar[set[int]] = set()

        async def on_aturn(self, response_text: str) -> Turn:
            self.loops.add(id(asyncio.get_running_loop()))
            await asyncio.sleep(0)
            return await super().on_aturn(response_text)

    env, twin = LoopEnv(), AsyncEchoEnv()
    env.reset(seed=3)
    twin.reset(seed=3)
    assert env.step("x") == twin.step("x")
    env.step("x")
    assert len(LoopEnv.loops) == 1
    env.close()
    env.close()
    assert env.closed == 2
    twin.close()


def test_unclosed_async_env_closes_its_loop() -> None:
    env = AsyncEchoEnv()
    env.reset(seed=0)
    loop = env._own_loop
    assert loop is not None

    del env
    gc.collect()

    assert loop.is_closed()


def test_async_env_keeps_the_rest_of_its_contract() -> None:
    class Promising(AsyncEchoEnv):
        capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True)

    assert Promising.capabilities == Capabilities(replay_safe=True)


def test_async_env_without_hooks_says_so() -> None:
    env = AsyncEnv()
    with pytest.raises(ContractError, match="must define on_areset"):
        env.reset()
    env.close()


@pytest.mark.parametrize("env_class", [EchoEnv, DotsEnv, AdderEnv, AsyncEchoEnv])
def test_toy_oracles_solve_every_task(env_class: type[Env]) -> None:
    env = env_class()
    policy = env.oracle()
    for seed in range(10):
        env.reset(seed=seed)
        step = None
        while step is None or not (step.terminated or step.truncated):
            context = PolicyContext(env=env, task=env.task, turn=env.turn, messages=(), seed=seed)
            step = env.step(policy(context))
            json.dumps(step.info)
        assert (step.reward, step.terminated) == (1.0, True)
    env.close()


SPACES: list[gymnasium.Space[Any]] = [
    UnicodeText(),
    UnicodeText(3),
    ImageSpace(),
    Choice(("a", "b")),
]


@pytest.mark.parametrize("space", [*SPACES, observation_space(), response_space()], ids=repr)
def test_samples_are_inside_and_repeat_by_seed(space: gymnasium.Space[Any]) -> None:
    space.seed(5)
    first = [space.sample() for _ in range(20)]
    space.seed(5)
    second = [space.sample() for _ in range(20)]

    assert all(sample in space for sample in first)
    assert first == second
    assert not space.is_np_flattenable


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_spaces_compare_by_value_and_travel(space: gymnasium.Space[Any]) -> None:
    assert copy.deepcopy(space) == space
    assert pickle.loads(pickle.dumps(space)) == space
    assert hash(copy.deepcopy(space)) == hash(space)
    assert sum(space == other for other in SPACES) == 1


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_masked_sampling_is_refused(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError, match="no masked sampling"):
        space.sample(mask=1)


@given(text=st.text())
def test_unicode_text_takes_any_string(text: str) -> None:
    assert text in UnicodeText()


def test_spaces_refuse_what_is_too_large_or_of_another_type() -> None:
    wide = Image.from_pil(PilImage.new("L", (9, 1)))

    assert "four" not in UnicodeText(3)
    assert 5 not in UnicodeText()
    assert wide not in ImageSpace(8)
    assert wide in ImageSpace(9)
    assert wide.array() not in ImageSpace()
    assert "c" not in Choice(("a", "b"))


def test_observation_space_has_fixed_keys() -> None:
    image = Image.from_pil(PilImage.new("L", (2, 2)))
    good = {"text": "x", "images": (image,), "role": "user"}

    assert good in observation_space()
    assert {**good, "images": [image]} not in observation_space()
    assert {**good, "extra": 1} not in observation_space()
    assert {"text": "x", "images": ()} not in observation_space()
    assert {**good, "role": "system"} not in observation_space()


class Endless:
    size = None

    def task(self, index: int) -> Task:
        return {"index": index}


def test_list_source_gives_deep_copies() -> None:
    source = ListSource([{"points": [1, 2]}])

    source.task(0)["points"].append(3)

    assert source.task(0) == {"points": [1, 2]}
    assert isinstance(source, TaskSource)


def test_list_source_refuses_no_rows_and_wrong_indices() -> None:
    with pytest.raises(DatasetError, match="at least one row"):
        ListSource([])
    for index in (-1, 1):
        with pytest.raises(ConfigurationError, match=f"from 0 to 0, got {index}"):
            ListSource([{}]).task(index)


def test_draw_covers_a_sized_source_and_repeats_by_seed() -> None:
    source = ListSource([{"n": n} for n in range(5)])
    rng = np.random.default_rng(3)

    assert {draw_index(source, rng) for _ in range(200)} == {0, 1, 2, 3, 4}
    first, second = (draw_index(source, np.random.default_rng(7)) for _ in range(2))
    assert first == second


def test_draw_from_an_endless_source_survives_a_float() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_index(Endless(), rng) for _ in range(100)]

    assert len(set(drawn)) == 100
    assert all(0 <= index < ENDLESS_INDEX_LIMIT and int(float(index)) == index for index in drawn)
