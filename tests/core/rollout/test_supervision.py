"""A run whose first episodes all fail the same way stops with one clear error.

Otherwise a wrong argument or a broken environment would train on nothing, for hours.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.command import run_envkit
from fakes.envs import EchoEnv
from fakes.faults import CountingEnv, World, say_turn
from fakes.hostile_values import PLANTED
from fakes.models import tiny_model_dir
from fakes.playing import collected

import envkit
from envkit.env import Turn
from envkit.errors import EnvkitError
from envkit.faults import FaultPlan
from envkit.rollout import (
    Interrupt,
    Player,
    Progress,
    RolloutConfig,
    Run,
    RunPlan,
    ScriptedEngine,
    collect,
)
from envkit.tasks import Task
from envkit.trajectory import StopReason, Trajectory

EPISODES = 240
"""Far more than anybody needs to see to stop."""


class AlikeEnv(EchoEnv):
    """Misbehaves in every episode, in one way."""

    def __init__(self, *, way: str = "none") -> None:
        super().__init__()
        self._way = way
        if way == "build":
            raise ValueError(PLANTED)
        if way == "exit":
            raise SystemExit(0)

    def reset(self, **options: Any) -> Any:
        return None if self._way == "reset_none" else super().reset(**options)

    def on_reset(self, task: Task) -> Turn:
        if self._way == "reset_raises":
            raise KeyError(PLANTED)
        if self._way == "reset_raises_differently":
            raise KeyError(f"{PLANTED} {task['word']} {self.np_random.integers(1 << 30)}")
        return super().on_reset(task)

    def on_turn(self, response_text: str) -> Turn:
        if self._way == "turn_text":
            return "Right."  # type: ignore[return-value]
        if self._way == "turn_nan":
            return Turn("Right.", reward=float("nan"), done=True)
        if self._way == "cancelled":
            raise asyncio.CancelledError(PLANTED)
        return super().on_turn(response_text)

    def format_observation(self, observation: Any) -> Any:
        return None if self._way == "format_none" else super().format_observation(observation)


WAYS = {
    "build": PLANTED,
    "exit": "SystemExit",
    "reset_none": "reset must return",
    "reset_raises": PLANTED,
    "reset_raises_differently": PLANTED,
    "turn_text": "must return envkit.Turn",
    "turn_nan": "finite",
    "cancelled": "CancelledError",
    "format_none": "format_observation",
}
"""What happens in every episode, and what the error says of it."""


@pytest.fixture(autouse=True)
def _registered(toys_here: Path) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    envkit.register("toy-alike-v0", entry_point=AlikeEnv)


def run(
    env: str | Callable[[], Any], config: RolloutConfig | None = None
) -> tuple[list[Trajectory], BaseException]:
    """Collect until the run stops; return what came out, and the error that ended it."""
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda context: str(context.task["word"]))
    played: list[Trajectory] = []

    async def play() -> None:
        async with asyncio.timeout(30):
            async for trajectory in collect(
                env, engine, codec, episodes=EPISODES, concurrency=8, config=config
            ):
                played.append(trajectory)

    try:
        asyncio.run(play())
    except BaseException as error:  # noqa: BLE001  # SystemExit would end the test run
        return played, error
    pytest.fail(f"the run continued to its end: {len(played)} episodes, {played[-1].fault}")


@pytest.mark.parametrize("way", WAYS)
def test_a_run_whose_first_episodes_fail_alike_stops_with_one_error(way: str) -> None:
    played, error = run(lambda: AlikeEnv(way=way))
    assert isinstance(error, EnvkitError), repr(error)
    assert WAYS[way] in str(error)
    assert len(played) <= EPISODES // 4
    assert all(one.reward is None for one in played)  # faults, and what was cut short


@pytest.mark.parametrize(
    ("env_id", "kwargs", "says"),
    [
        ("toy-eco-v0", {}, "toy-echo-v0"),
        ("toy-echo-v0", {"max_trns": 3}, "max_trns"),
        ("toy-echo-v0", {"max_turns": 0}, "max_turns"),
        ("toy-echo-v0", {"max_turns": "three"}, "max_turns"),
    ],
)
def test_a_wrong_setting_ends_the_run(env_id: str, kwargs: dict[str, Any], says: str) -> None:
    played, error = run(env_id, RolloutConfig(env_kwargs=kwargs))
    assert isinstance(error, EnvkitError), repr(error)
    assert says in str(error)
    assert len(played) <= 64
    assert all(one.reward is None for one in played)


@pytest.mark.slow
def test_a_run_whose_episodes_sometimes_fail_continues() -> None:
    class NowAndThenEnv(AlikeEnv):
        def on_reset(self, task: Task) -> Turn:
            if task["word"] != "alpha":
                raise KeyError(PLANTED)
            return super().on_reset(task)

    words = ["alpha" if number % 16 == 3 else "beta" for number in range(EPISODES)]
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda context: str(context.task["word"]))

    async def play() -> list[Trajectory]:
        tasks = [{"word": word} for word in words]
        stream = collect(
            NowAndThenEnv, engine, codec, episodes=EPISODES, concurrency=8, tasks=tasks
        )
        return [one async for one in stream]

    played = asyncio.run(play())
    assert len(played) == EPISODES
    assert sum(one.reward == 1.0 for one in played) == words.count("alpha")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exit", "reset_none", "turn_nan", "build"])
def test_the_command_ends_such_a_run_with_one_message_and_an_error_code(way: str) -> None:
    shown = run_envkit(
        "rollout", "toy-alike-v0", "--env-kwargs", f"way={way}", "--policy", "oracle",
        "--model", tiny_model_dir("llama"), "-n", EPISODES, "--out", "run", "--quiet",
    )  # fmt: skip
    assert shown.code not in (0, 130), shown.out
    assert WAYS[way] in shown.err
    assert "Traceback" not in shown.err
    assert len(shown.err.splitlines()) <= 4  # how many faulted, and why the run was stopped


class Forgetful(CountingEnv):
    """Returns no turn in the episodes after the first ones."""

    def on_turn(self, response_text: str) -> Turn:
        if len({episode for episode, _, _ in self._world.steps}) >= 3 and not self.turn:
            return "no turn"  # type: ignore[return-value]
        return super().on_turn(response_text)


async def test_collect_faults_episodes_that_break_the_contract_and_continues() -> None:
    world, codec = World(), text_codec()
    stream = collected(
        lambda: Forgetful(world, FaultPlan(0.0)), ScriptedEngine(codec, say_turn), codec,
        episodes=20, concurrency=1,
    )  # fmt: skip
    done = [trajectory async for trajectory in stream]
    assert [t.is_faulted for t in done] == [False] * 3 + [True] * 17
    assert all("Turn" in t.fault.message for t in done if t.fault)
    assert world.open_envs == 0


@pytest.mark.parametrize("group_size", [1, 4])
async def test_run_of_any_length_starts_at_once_and_holds_only_its_active_episodes(
    group_size: int,
) -> None:
    codec, played = text_codec(), list[Trajectory]()
    player = Player(ScriptedEngine(codec, lambda context: str(context.task["word"])), codec)
    plan = RunPlan(episodes=4 * 10**15, group_size=group_size, concurrency=4)
    # As an interrupted run leaves it: a whole group, and a member of a later one.
    progress = Progress(delivered=frozenset({*range(group_size), 10 * group_size}))
    interrupt = Interrupt()

    async def deliver(episode: tuple[Trajectory, ...]) -> None:
        played.extend(episode)
        if len(played) == 16 * group_size:
            interrupt.fire()

    run = Run(AlikeEnv, player, plan, interrupt=interrupt, progress=progress)
    try:
        await run.play(deliver)
    finally:
        await player.aclose()

    finished = [one for one in played if one.stop_reason is not StopReason.ABORTED]
    indices = {one.metadata["group"] * group_size + one.metadata["member"] for one in finished}
    assert len(indices) == len(finished) >= 16 * group_size
    assert not indices & progress.delivered
    assert set(range(group_size, 15 * group_size)) - progress.delivered <= indices
    assert run.state.total == plan.episodes
