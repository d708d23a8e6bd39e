"""A missing package ends a run before its first episode, whatever foreign code needs it."""

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
from fakes.matrix import share
from fakes.models import tiny_model_dir

from envkit.env import Turn
from envkit.errors import (
    EnvFault,
    MissingDependencyError,
    message_of,
    raise_missing,
)
from envkit.rollout import (
    GenerateRequest,
    Generation,
    RolloutConfig,
    ScriptedEngine,
    collect,
)
from envkit.tasks import Task

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


WAYS: dict[str, tuple[Callable[[], None], str]] = {
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
            WAYS[self._way][0]()

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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["build", "reset", "step", "format"])
async def test_missing_package_of_an_environment_ends_the_run(place: str, way: str) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        await play(lambda: NeedyEnv(place=place, way=way))

    assert WAYS[way][1] in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
async def test_missing_package_of_an_engine_ends_the_run(way: str) -> None:
    need, text = WAYS[way]
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "terminal-v0", "-n", "4", "--policy", "oracle"),
        ("rollout", "terminal-v0", "-n", "4", "--policy", "oracle"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_command_without_an_extra_of_its_environment_plays_nothing(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip

    assert done.returncode == 2, done.stderr
    line = "envkit-rl[linux-desktop]" if shutil.which("bwrap") else "apt-get install"
    assert line in done.stderr.splitlines()[-1]
    assert "faulted" not in done.stderr
