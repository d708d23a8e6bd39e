"""Runs that end with one clear error: first episodes that all fail alike, and missing packages."""

import asyncio
import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.agents import GuessEnv
from fakes.codecs import text_codec
from fakes.command import run_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.faults import CountingEnv, World, say_turn
from fakes.hostile_values import PLANTED
from fakes.matrix import share
from fakes.models import tiny_model_dir
from fakes.playing import collected

import envkit
from envkit.env import Turn
from envkit.errors import (
    EnvFault,
    EnvkitError,
    MissingDependencyError,
    message_of,
    raise_missing,
)
from envkit.faults import FaultPlan
from envkit.rollout import (
    GenerateRequest,
    Generation,
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
        async with asyncio.timeout(120):
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


INSTALL = "pip install 'envkit-rl[things]'"


def absent() -> None:
    importlib.import_module("no_such_package_here")


def declared() -> None:
    raise MissingDependencyError.for_extra("it", "things", "things")


def wrapped() -> None:
    try:
        declared()
    except ImportError as error:
        raise EnvFault("the backend did not start") from error


NEEDS: dict[str, tuple[Callable[[], None], str]] = {
    "module": (absent, "provides the module 'no_such_package_here'"),
    "extra": (declared, INSTALL),
    "cause": (wrapped, INSTALL),
}


class NeedyEnv(EchoEnv):
    """Needs a package that is not installed, in one of its methods."""

    def __init__(self, *, place: str = "none", way: str = "module") -> None:
        super().__init__()
        self._place, self._way = place, way
        self._need("build")

    def _need(self, place: str) -> None:
        if place == self._place:
            NEEDS[self._way][0]()

    def on_reset(self, task: Task) -> Turn:
        self._need("reset")
        return super().on_reset(task)

    def on_turn(self, response_text: str) -> Turn:
        self._need("step")
        return super().on_turn(response_text)

    def format_observation(self, observation: Any) -> Any:
        self._need("format")
        return super().format_observation(observation)


class NeedyEngine(ScriptedEngine):
    """Needs a package that is not installed."""

    def __init__(self, codec: Any, need: Callable[[], None]) -> None:
        super().__init__(codec, lambda context: "x")
        self._need = need

    async def generate(self, request: GenerateRequest) -> Generation:
        self._need()
        return await super().generate(request)


def needy_rewards(_played: Any) -> Any:
    """Adjust rewards with a package that is not installed."""
    absent()


async def play(env: Any, *, engine: Any = None, **options: Any) -> list[Any]:
    codec = text_codec()
    engine = engine or ScriptedEngine(codec, lambda context: str(context.task["word"]))
    return [one async for one in collect(env, engine, codec, episodes=8, **options)]


@pytest.mark.parametrize("way", NEEDS)
@pytest.mark.parametrize("place", ["build", "reset", "step", "format"])
async def test_missing_package_of_an_environment_ends_the_run(place: str, way: str) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        await play(lambda: NeedyEnv(place=place, way=way))

    assert NEEDS[way][1] in str(caught.value)


@pytest.mark.parametrize("way", NEEDS)
async def test_missing_package_of_an_engine_ends_the_run(way: str) -> None:
    need, text = NEEDS[way]
    with pytest.raises(MissingDependencyError) as caught:
        await play(EchoEnv, engine=NeedyEngine(text_codec(), need))

    assert text in str(caught.value)


@pytest.mark.parametrize("place", ["on_reset", "on_replies", "adjust"])
async def test_missing_package_of_an_environment_with_agents_ends_the_run(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def need(*_: object) -> Any:
        absent()

    config = RolloutConfig()
    if place == "adjust":
        config = RolloutConfig(adjust_rewards=f"{__name__}:needy_rewards")
    else:
        monkeypatch.setattr(GuessEnv, place, need)

    with pytest.raises(MissingDependencyError, match="no_such_package_here"):
        await play(GuessEnv, engine=ScriptedEngine(text_codec(), lambda _: "5"), config=config)


async def test_missing_module_after_a_success_costs_only_its_episode() -> None:
    """A reply may have asked for the module, and a model must not be able to end a run."""
    turns = iter(range(100))

    class Late(EchoEnv):
        def on_turn(self, response_text: str) -> Turn:
            if next(turns) == 4:
                absent()
            return super().on_turn(response_text)

    played = await play(Late, concurrency=1)

    faults = [one.fault for one in played if one.fault is not None]
    assert len(played) == 8
    assert ["no_such_package_here" in fault.message for fault in faults] == [True]


@pytest.mark.parametrize(("command", "extra"), [("rollout", ("--policy", "oracle")), ("eval", ())])
@pytest.mark.parametrize("place", share(["build", "reset", "step"], of=3))
def test_command_ends_with_2_and_says_what_to_install(
    command: str, extra: tuple[str, ...], place: str, tmp_path: Path
) -> None:
    register_toys({"toy-needy-v0": NeedyEnv})
    settings = ("--env-kwargs", f"place={place}", "--env-kwargs", "way=extra")
    out = tmp_path / "run"

    ended = run_envkit(
        command, "toy-needy-v0", "-n", 4, *extra, "--out", out, *settings,
        "--model", tiny_model_dir("llama"),
    )  # fmt: skip

    assert ended.code == 2, ended.err
    assert INSTALL in ended.last_error
    assert "faulted" not in ended.err


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_missing_package_is_found_in_the_chain_of_causes(depth: int) -> None:
    error: BaseException = MissingDependencyError("things")
    for number in range(depth):
        above = RuntimeError(str(number))
        above.__cause__ = error
        error = above

    with pytest.raises(MissingDependencyError, match="things"):
        raise_missing(error)


def test_chain_of_causes_may_be_a_circle_or_hostile() -> None:
    first, second = RuntimeError("1"), RuntimeError("2")
    first.__cause__, second.__cause__ = second, first

    class Hidden(ModuleNotFoundError):
        def __getattribute__(self, name: str) -> Any:
            raise SystemExit(name)

    raise_missing(first)
    with pytest.raises(MissingDependencyError, match="a module"):
        raise_missing(Hidden("x"))
    assert isinstance(message_of(Hidden("x")), str)


BLOCKED = """
import sys
sys.modules["pyseccomp"] = None
from envkit.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", [pytest.param("eval", marks=pytest.mark.slow), "rollout"])
def test_command_without_an_extra_of_its_environment_plays_nothing(
    command: str, tmp_path: Path
) -> None:
    words = (command, "terminal-v0", "-n", "4", "--policy", "oracle")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *words],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip

    assert done.returncode == 2, done.stderr
    line = "envkit-rl[linux-desktop]" if shutil.which("bwrap") else "apt-get install"
    assert line in done.stderr.splitlines()[-1]
    assert "faulted" not in done.stderr
