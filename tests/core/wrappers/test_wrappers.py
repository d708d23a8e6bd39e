"""Budgets of text, films, changed rewards, and `--wrap`: what each changes, and nothing else."""

import math
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec, vision_codec
from fakes.command import run_envkit
from fakes.envs import DotsEnv, EchoEnv
from fakes.models import tiny_model_dir
from fakes.playing import play_one
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

import envkit
from envkit.cli.options import complete_wrap
from envkit.env import Env, Observation, Turn
from envkit.errors import (
    ConfigurationError,
    ContractError,
    EnvFault,
    FaultKind,
    StorageError,
    UnknownNameError,
)
from envkit.faults import FaultPlan
from envkit.rollout import Backoff, Limits, RetryBudget, ScriptedEngine, play
from envkit.trajectory import Trajectory, check_trajectory, load
from envkit.wrappers import (
    WRAPPERS,
    BudgetText,
    Curriculum,
    InjectFaults,
    RecordEpisode,
    RescaleReward,
    ShapeReward,
    wrapping,
)
from envkit.wrappers.budget_text import cut


class TalkativeEnv(EchoEnv):
    """Answers every wrong reply at length."""

    def on_turn(self, response_text: str) -> Turn:
        return Turn("BEGIN " + "page " * 2000 + "END")


@settings(deadline=None)
@given(st.text(max_size=400), st.data())
def test_a_cut_text_keeps_its_budget_its_beginning_and_its_end(
    text: str, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(45, 300) | at_limit(max(len(text), 45), least=45))
    short = cut(text, budget, len)

    assert len(short) <= budget
    if len(text) <= budget:
        assert short == text
    else:
        assert short.startswith(text[:1])
        missing = int(short.split("[... ")[-1].split(" ")[0])
        kept = len(text) - missing
        assert short == (
            text[: (2 * kept + 2) // 3]
            + f"\n[... {missing} characters left out ...]\n"
            + text[len(text) - (kept - (2 * kept + 2) // 3) :]
        )


def test_a_text_cut_twice_states_the_total_missing() -> None:
    text = "x" * 1000
    twice = cut(cut(text, 400, len), 200, len)

    assert twice.count("left out") == 1
    missing = int(twice.split("[... ")[1].split(" ")[0])
    assert twice.count("x") - "characters".count("x") == 1000 - missing


def test_long_observations_are_cut_and_info_says_by_how_much() -> None:
    plain, env = TalkativeEnv(), BudgetText(TalkativeEnv(), max_characters=500)
    assert env.reset(seed=1) == plain.reset(seed=1)

    whole, short = plain.step("no"), env.step("no")

    assert len(short[0]["text"]) <= 500
    assert short[0]["text"].startswith("BEGIN page")
    assert short[0]["text"].endswith("END")
    assert short[4]["left_out_characters"] == len(whole[0]["text"]) - len(short[0]["text"])
    assert short[1:4] == whole[1:4]


def test_a_token_budget_is_counted_by_the_tokenizer() -> None:
    def words(text: str) -> int:
        return len(text.split())

    env = BudgetText(TalkativeEnv(), max_characters=None, max_tokens=100, count_tokens=words)
    env.reset(seed=1)

    assert 90 <= words(env.step("no")[0]["text"]) <= 100


async def test_an_episode_continues_past_the_point_of_running_out_of_room() -> None:
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda _: "no")
    limits = Limits(max_response_tokens=400)
    plain = await play(TalkativeEnv(), engine, codec, seed=1, limits=limits)
    roomy = BudgetText(TalkativeEnv(), max_characters=None)
    short = await play(roomy, engine, codec, seed=1, limits=limits)

    assert len(plain.turns) == 1
    assert len(short.turns) == 3
    assert short.turns[-1].response_text == "no"
    assert "characters left out" in str(short.messages[3]["content"])
    assert check_trajectory(short) == ()


class ShorteningEnv(TalkativeEnv):
    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        return {**observation, "text": "my own summary"}


def test_the_environments_own_shorter_form_goes_first() -> None:
    env: Any = BudgetText(ShorteningEnv())
    observation, _ = env.reset(seed=1)

    assert env.shorten(observation, 50)["text"] == "my own summary"


def test_an_image_that_does_not_fit_ends_the_episode_as_before() -> None:
    env: Any = BudgetText(DotsEnv())
    observation, _ = env.reset(seed=1)

    assert env.shorten(observation, 50) is None


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_characters must be at least"):
        BudgetText(EchoEnv(), max_characters=10)
    with pytest.raises(ConfigurationError, match="max_tokens must be at least"):
        BudgetText(EchoEnv(), max_tokens=3)


def film(path: Path) -> tuple[str | None, int, int, tuple[int, int]]:
    with PilImage.open(path) as opened:
        frames: int = getattr(opened, "n_frames", 1)
        opened.seek(frames - 1)
        opened.load()
        return opened.format, frames, int(opened.info["duration"]), opened.size


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_a_film_has_a_frame_for_the_start_and_one_for_each_turn(tmp_path: Path, kind: str) -> None:
    env = RecordEpisode(DotsEnv(), tmp_path, format=kind, seconds=0.5)
    plain = DotsEnv()
    assert env.reset(seed=1) == plain.reset(seed=1)
    for _ in range(5):
        assert env.step("3") == plain.step("3")

    assert [path.name for path in env.written] == [f"episode-00000.{kind}"]
    assert film(env.written[0]) == (kind.upper(), 6, 500, (768, 768))


def test_frames_show_different_pages(tmp_path: Path) -> None:
    env = RecordEpisode(DotsEnv(), tmp_path)
    env.reset(seed=1)
    for _ in range(5):
        env.step("3")
    seen = set[bytes]()
    with PilImage.open(env.written[0]) as opened:
        for number in range(6):
            opened.seek(number)
            seen.add(opened.convert("RGB").tobytes())

    assert len(seen) == 6


def test_an_unfinished_episode_is_written_by_close(tmp_path: Path) -> None:
    env = RecordEpisode(EchoEnv(), tmp_path / "new" / "folder")
    env.reset(seed=1)
    env.step("no")
    env.close()
    env.close()

    assert film(env.written[0])[1] == 2
    assert len(env.written) == 1


def test_every_tenth_episode_is_recorded(tmp_path: Path) -> None:
    env = RecordEpisode(EchoEnv(max_turns=1), tmp_path, every=10)
    for seed in range(12):
        env.reset(seed=seed)
        env.step("no")

    assert [p.name for p in env.written] == ["episode-00000.webp", "episode-00010.webp"]


async def test_a_retried_turn_is_filmed_once(tmp_path: Path) -> None:
    codec = vision_codec()
    plan = FaultPlan(schedule={("step", 2, 1, 0): "transient", ("step", 2, 2, 1): "transient"})
    env = InjectFaults(RecordEpisode(DotsEnv(), tmp_path), plan)
    retries = RetryBudget(backoff=Backoff(initial_s=0.001, maximum_s=0.002))

    trajectory = await play_one(
        env, ScriptedEngine(codec, DotsEnv().oracle()), codec,
        seed=2, episode_id="an/episode", retries=retries,
    )  # fmt: skip

    assert plan.injected == {"transient": 2}
    assert trajectory.reward == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["an_episode.webp"]
    assert film(tmp_path / "an_episode.webp")[1] == 4


@pytest.mark.slow
def test_rollout_films_its_episodes(tmp_path: Path) -> None:
    outcome = run_envkit(
        "rollout", "canary-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", 3, "--out", tmp_path / "run", "-q",
        "--wrap", f"record-episode:folder={tmp_path / 'films'},format=gif",
    )  # fmt: skip

    assert outcome.code == 0, outcome.err
    films = sorted((tmp_path / "films").iterdir())
    assert len(films) == 3
    assert {film(path)[:2] for path in films} == {("GIF", 4)}


def test_rollout_refuses_arguments_that_the_wrapper_does_not_take(tmp_path: Path) -> None:
    command = ["rollout", "canary-v0", "--policy", "oracle", "--out", tmp_path / "run", "-q"]
    wrong = run_envkit(*command, "--wrap", "record-episode:folders=3")
    twice = run_envkit(*command, "--wrap", "blank-image", "--wrap", "blank-image:grey=3")
    unnamed = run_envkit(*command, "--wrap", "blank-image:3")

    assert (wrong.code, twice.code, unnamed.code) == (2, 2, 2)
    assert "record-episode cannot be built with {'folders': 3}" in wrong.last_error
    assert "each wrapper once, got 'blank-image' twice" in twice.last_error
    assert "--wrap blank-image: takes KEY=VALUE" in unnamed.last_error


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = RecordEpisode(EchoEnv(max_turns=1), tmp_path / "file" / "films")
    env.reset(seed=1)
    with pytest.raises(StorageError, match="cannot make the folder"):
        env.step("no")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one of 'webp', 'gif'"):
        RecordEpisode(EchoEnv(), format="mp4")
    with pytest.raises(ConfigurationError, match="every at least 1"):
        RecordEpisode(EchoEnv(), every=0)


def solved(env: Env) -> float:
    """Potential: how many images were counted rightly."""
    return float(cast(DotsEnv, env)._solved)


async def rewards(env: Any, reply: Any = None) -> list[float]:
    codec = vision_codec()
    engine = ScriptedEngine(codec, reply or DotsEnv().oracle())
    trajectory = await play(env, engine, codec, seed=2)
    return [turn.reward or 0.0 for turn in trajectory.turns]


async def test_each_turn_is_credited_for_its_progress() -> None:
    assert await rewards(ShapeReward(DotsEnv(), solved)) == [1.0, 1.0, 1.0 - 2.0]
    assert await rewards(ShapeReward(DotsEnv(), solved, gamma=0.5)) == [0.5, 0.0, 1.0 - 2.0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=5))
def test_the_return_changes_by_the_potential_of_the_start_alone(replies: list[int]) -> None:
    plain = DotsEnv()
    env = ShapeReward(DotsEnv(), lambda env: solved(env) * 3 + 7)
    plain.reset(seed=1)
    env.reset(seed=1)
    total = shaped = 0.0
    for reply in replies:
        step, other = plain.step(str(reply)), env.step(str(reply))
        total += step.reward
        shaped += other[1]
        assert math.isclose(sum(other[4]["reward_terms"].values()), other[1] - step.reward)
        if step.terminated or step.truncated:
            break

    assert math.isclose(shaped, total - 7)


async def test_a_recovered_episode_gets_the_rewards_of_an_undisturbed_one() -> None:
    plan = FaultPlan(schedule={("step", 2, n, 0): "transient" for n in range(3)})
    shaken = ShapeReward(InjectFaults(DotsEnv(), plan), solved)
    codec = vision_codec()
    retries = RetryBudget(backoff=Backoff(initial_s=0.001, maximum_s=0.002))

    trajectory = await play(
        shaken, ScriptedEngine(codec, DotsEnv().oracle()), codec, seed=2, retries=retries
    )

    assert plan.injected == {"transient": 1}  # the next attempts have other numbers
    assert [turn.reward for turn in trajectory.turns] == [1.0, 1.0, -1.0]


def test_a_potential_must_be_finite() -> None:
    env = ShapeReward(EchoEnv(), lambda _: math.nan)
    env.reset(seed=1)
    with pytest.raises(ContractError, match="finite number, got nan"):
        env.step("x")


def test_rewards_are_scaled_then_bounded_and_the_terms_add_up() -> None:
    env = RescaleReward(EchoEnv(), scale=4.0, shift=-0.5, low=-0.25, high=2.0)
    env.reset(seed=1)
    wrong = env.step("wrong")
    right = env.step(env.unwrapped.task["word"])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    assert wrong[1] == -0.25
    assert wrong[4]["reward_terms"] == {"rescaled": -0.25}
    assert right[1] == 2.0
    assert right[4]["reward_terms"] == {"exact": 1.0, "rescaled": 1.0}


async def test_a_fault_stays_a_fault() -> None:
    class Broken(EchoEnv):
        def on_turn(self, response_text: str) -> Any:
            raise EnvFault("the judge is gone", kind=FaultKind.GRADER)

    codec = text_codec()
    env = RescaleReward(Broken(), shift=1.0)
    trajectory = await play(env, ScriptedEngine(codec, lambda _: "x"), codec, seed=1)

    assert trajectory.reward is None


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="gamma must be 0 to 1"):
        ShapeReward(EchoEnv(), solved, gamma=1.5)
    with pytest.raises(ConfigurationError, match="low must not be above high"):
        RescaleReward(EchoEnv(), low=1.0, high=0.0)
    with pytest.raises(ConfigurationError, match="finite"):
        RescaleReward(EchoEnv(), scale=math.inf)


def test_wrapped_environments_pass_the_check() -> None:
    env = RescaleReward(ShapeReward(envkit.make("canary-v0"), lambda env: env.turn / 3))
    assert envkit.check_env(env).passed


def rollout(out: Path, env_id: str, *options: object, episodes: int = 8) -> list[Trajectory]:
    outcome = run_envkit(
        "rollout", env_id, "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", episodes, "--concurrency", 1, "--out", out, "-q", *options,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    return list(load(out))


def test_completion_offers_every_wrapper() -> None:
    assert complete_wrap("") == [*WRAPPERS]
    assert complete_wrap("re") == ["record-episode", "rescale-reward", "resize-image"]


@pytest.mark.slow
def test_inject_faults_is_survived(tmp_path: Path) -> None:
    played = rollout(
        tmp_path / "run", "canary-v0",
        "--wrap", 'inject-faults:rate=0.5,worst_attempts=1,kinds=["transient"]',
    )  # fmt: skip

    assert [t.reward for t in played] == [pytest.approx(1.0)] * 8
    assert sum(sum(turn.env_retries.values()) for t in played for turn in t.turns) > 2
    assert played[0].metadata["wrap_kwargs"] == {
        "inject-faults": {"rate": 0.5, "worst_attempts": 1, "kinds": ["transient"]},
    }


@pytest.mark.slow
def test_curriculum_climbs_with_the_oracle(tmp_path: Path) -> None:
    played = rollout(
        tmp_path / "run", "geo3k-v0", "--wrap", "curriculum:levels=[1,3],window=3",
    )  # fmt: skip

    assert [t.task["level"] for t in played] == [1, 1, 1, 3, 3, 3, 3, 3]
    assert [t.reset_info["curriculum_level"] for t in played] == [1, 1, 1, 3, 3, 3, 3, 3]


def test_rescale_reward_changes_the_trajectorys_reward(tmp_path: Path) -> None:
    played = rollout(
        tmp_path / "run", "canary-v0", "--wrap", "rescale-reward:scale=3.0", episodes=2
    )

    assert [t.reward for t in played] == [pytest.approx(3.0)] * 2


def test_wrappers_by_name_say_what_is_wrong() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'blank-image'"):
        wrapping("blank-images", {})
    with pytest.raises(ConfigurationError, match="curriculum cannot be built with"):
        wrapping("curriculum", {"window": 3})
    with pytest.raises(ConfigurationError, match="blank-image cannot be built with"):
        wrapping("blank-image", {"gray": 3})(EchoEnv())
    with pytest.raises(ConfigurationError, match="grey must be from 0 to 255"):
        wrapping("blank-image", {"grey": 300})(EchoEnv())
    with pytest.raises(ContractError, match=r"wraps an envkit\.Env"):
        wrapping("blank-image", {"grey": 3})(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_environments_of_one_wrapping_share_the_progress() -> None:
    wrap = wrapping("curriculum", {"levels": [1, 2]})
    first, second = (wrap(envkit.make("geo3k-v0")) for _ in range(2))

    assert isinstance(first, Curriculum)
    assert isinstance(second, Curriculum)
    assert first.progress is second.progress
