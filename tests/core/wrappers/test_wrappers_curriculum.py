"""`LevelProgress` and `Curriculum`: the level follows the results, and episodes stay replayable."""

import random
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec
from fakes.envs import PROMISES, EchoEnv
from fakes.playing import collected
from hypothesis import given, settings
from hypothesis import strategies as st

import envkit
from envkit.env import Env, PolicyContext, Turn
from envkit.errors import ConfigurationError, StorageError
from envkit.faults import FaultPlan
from envkit.rollout import (
    Backoff,
    RetryBudget,
    ScriptedEngine,
    play,
)
from envkit.tasks import ListSource, Task
from envkit.wrappers import Curriculum, InjectFaults, LevelProgress


class StairsEnv(Env):
    """Repeat a number of as many digits as the level, in two halves of the reward."""

    capabilities = PROMISES

    def __init__(self, *, level: int = 1, render_mode: str | None = None) -> None:
        super().__init__(max_turns=3, render_mode=render_mode)
        rng = random.Random(level)
        numbers = [rng.randrange(10 ** (level - 1), 10**level) for _ in range(50)]
        self.tasks = ListSource([{"number": n, "level": level} for n in numbers])

    def on_reset(self, task: Task) -> Turn:
        return Turn(f"Repeat {task['number']} twice.")

    def on_turn(self, response_text: str) -> Turn:
        right = response_text == str(self.task["number"])
        return Turn("Next.", reward=0.5 * right, done=self.turn == 1)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        del state


def stairs(**arguments: Any) -> Env:
    if "envkit/toy-stairs-v0" not in gymnasium.registry:
        envkit.register("toy-stairs-v0", entry_point=StairsEnv, reward_threshold=1.0)
    return envkit.make("toy-stairs-v0", disable_env_checker=True, **arguments)


def short_memory(context: PolicyContext) -> str:
    """Knows numbers of up to two digits."""
    return str(context.task["number"] % 100)


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=200), st.integers(0, 200) | at_limit(5))
def test_the_sequence_of_results_decides_the_level_also_through_a_file(
    results: list[bool], cut: int
) -> None:
    whole, part = (LevelProgress([1, 2, 3, 4], window=5) for _ in range(2))
    for is_success in results:
        whole.record(whole.level, is_success)
    for is_success in results[:cut]:
        part.record(part.level, is_success)
    part = LevelProgress.from_json(part.to_json())
    for is_success in results[cut:]:
        part.record(part.level, is_success)

    assert part.to_json() == whole.to_json()


def test_the_level_rises_and_falls_at_the_rates_and_stops_at_the_ends() -> None:
    progress = LevelProgress([1, 2, 3], window=4, up=0.75, down=0.25)
    seen = [progress.level]
    for rate in ("1110", "1011", "1111", "1111", "0100", "1010", "0000", "0000"):
        for result in rate:
            progress.record(progress.level, result == "1")
        seen.append(progress.level)

    assert seen == [1, 2, 3, 3, 3, 2, 2, 1, 1]
    assert progress.moves == [(4, 2), (8, 3), (20, 2), (25, 1)]


def test_late_results_of_another_level_do_not_count() -> None:
    progress = LevelProgress([1, 2], window=2)
    progress.record(1, True)
    progress.record(1, True)
    progress.record(1, False)
    progress.record(1, False)

    assert progress.level == 2
    assert progress.success_rate is None


def test_an_episode_that_ends_twice_counts_once() -> None:
    progress = LevelProgress([1, 2], window=8)
    for _ in range(3):
        progress.record(1, True, episode="a")

    assert progress.count == 1


def test_progress_is_saved_and_loaded(tmp_path: Path) -> None:
    progress = LevelProgress(["easy", "hard"], window=2)
    progress.record("easy", True)
    progress.save(tmp_path / "progress.json")

    assert LevelProgress.load(tmp_path / "progress.json").to_json() == progress.to_json()
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(StorageError, match="cannot read the progress"):
        LevelProgress.load(tmp_path / "other.json")


async def levels_played(progress: LevelProgress, wrap: Any, **options: Any) -> list[Any]:
    codec = text_codec()
    stream = collected(
        wrap, ScriptedEngine(codec, short_memory), codec, episodes=80, seed=1, **options
    )
    return [t.reset_info["curriculum_level"] async for t in stream]


async def test_a_rollout_climbs_to_the_level_that_the_policy_cannot_do() -> None:
    progress = LevelProgress([1, 2, 3, 4], window=8, down=-1)

    played = await levels_played(progress, lambda: Curriculum(stairs(), progress), concurrency=1)

    assert played == [1] * 8 + [2] * 8 + [3] * 64
    assert progress.level == 3
    assert progress.success_rate == 0.0


@pytest.mark.parametrize(("bound", "level"), [({}, 1), ({"reward_threshold": 0.5}, 4)])
async def test_solved_means_a_return_from_the_threshold_on(
    bound: dict[str, Any], level: int
) -> None:
    progress = LevelProgress([1, 2, 3, 4], window=8, down=-1)
    codec = text_codec()

    def half_right(context: PolicyContext) -> str:
        return str(context.task["number"]) if context.turn == 0 else "?"

    stream = collected(
        lambda: Curriculum(stairs(), progress, **bound),
        ScriptedEngine(codec, half_right), codec, episodes=40, seed=1, concurrency=1,
    )  # fmt: skip
    assert {one.reward async for one in stream} == {0.5}
    assert progress.level == level


async def test_members_of_a_group_play_one_level_while_it_moves() -> None:
    progress = LevelProgress([1, 2, 3, 4], window=3, down=-1)
    codec = text_codec()
    stream = collected(
        lambda: Curriculum(stairs(), progress), ScriptedEngine(codec, short_memory), codec,
        episodes=64, group_size=8, concurrency=8, seed=1,
    )  # fmt: skip
    groups: dict[str | None, set[int]] = {}
    async for trajectory in stream:
        assert not trajectory.is_faulted
        level = trajectory.reset_info["curriculum_level"]
        groups.setdefault(trajectory.group_id, set()).add(level)
        assert trajectory.task["level"] == level

    assert all(len(levels) == 1 for levels in groups.values())
    assert progress.level == 3


async def test_the_filter_chooses_tasks_of_the_level() -> None:
    progress = LevelProgress([1, 2, 3], window=8, down=-1)

    def build() -> Curriculum:
        env = stairs()
        rows = [source.task(n) for k in (1, 2, 3) if (source := StairsEnv(level=k).tasks)
                for n in range(20)]  # fmt: skip
        env.tasks = ListSource(rows)
        return Curriculum(env, progress, level_of=lambda task: task["level"])

    assert await levels_played(progress, build, concurrency=1) == [1] * 8 + [2] * 8 + [3] * 64


async def test_crashes_change_no_result() -> None:
    plan = FaultPlan({"step": 0.4}, kinds=("crashed", "transient"), worst_attempts=3)
    progress = LevelProgress([1, 2, 3, 4], window=8, down=-1)
    retries = RetryBudget(
        backoff=Backoff(initial_s=0.001, maximum_s=0.002),
        max_env_retries_per_turn=8,
        max_env_retries_per_episode=40,
    )

    played = await levels_played(
        progress,
        lambda: InjectFaults(Curriculum(stairs(), progress), plan),
        concurrency=1,
        retries=retries,
    )

    assert plan.injected["crashed"] > 10
    assert played == [1] * 8 + [2] * 8 + [3] * 64


async def test_a_recorded_task_is_played_as_it_is_and_does_not_count() -> None:
    progress = LevelProgress([1, 2, 3], start=3)
    codec = text_codec()
    engine = ScriptedEngine(codec, short_memory)
    first = await play(Curriculum(stairs(), progress), engine, codec, seed=4)
    elsewhere = LevelProgress([1, 2, 3])

    again = await play(
        Curriculum(stairs(), elsewhere), engine, codec, seed=4, task=dict(first.task)
    )

    assert again.messages == first.messages
    assert elsewhere.count == 0
    assert "curriculum_level" not in again.reset_info


def test_a_curriculum_refuses_what_it_cannot_do() -> None:
    progress = LevelProgress([1, 2])
    with pytest.raises(ConfigurationError, match="make it by its id, or pass level_of"):
        Curriculum(EchoEnv(), progress)
    with pytest.raises(ConfigurationError, match="cannot be built with"):
        Curriculum(stairs(), progress, argument="size").reset(seed=1)
    with pytest.raises(ConfigurationError, match="no task of level 2"):
        Curriculum(
            stairs(), LevelProgress([2, 1]), level_of=lambda task: task["level"]
        ).reset(seed=1)  # fmt: skip
    with pytest.raises(ConfigurationError, match="down < up"):
        LevelProgress([1, 2], up=0.2, down=0.5)
    with pytest.raises(ConfigurationError, match="start must be one of"):
        LevelProgress([1, 2], start=3)


def test_closing_closes_every_level() -> None:
    env = Curriculum(stairs(), LevelProgress([1, 2], window=1))
    env.reset(seed=1)
    env.progress.record(1, True)
    env.reset(seed=2)
    env.close()
    env.close()

    assert env.inner.task == {}  # the first instance again, which played nothing
