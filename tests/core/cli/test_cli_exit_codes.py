"""Exit codes: an environment that ends the process never makes a command look successful."""

import sys
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest
from fakes.command import run_envkit
from fakes.envs import EchoEnv
from fakes.models import tiny_model_dir

import envkit
from envkit.env import Capabilities, Policy
from envkit.trajectory import read_trajectories


class ExitingCloseEnv(EchoEnv):
    """Raises when it is closed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)
    error: ClassVar[type[BaseException]] = SystemExit

    def close(self) -> None:
        raise self.error(0)


class ExitingOracleEnv(EchoEnv):
    """Ends the process where its policy is made."""

    def oracle(self) -> Policy:
        sys.exit(0)


@pytest.fixture(autouse=True)
def _registered() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    for env_id, entry_point in (
        ("exiting-close-v0", ExitingCloseEnv),
        ("exiting-oracle-v0", ExitingOracleEnv),
    ):
        if f"envkit/{env_id}" not in gymnasium.registry:
            envkit.register(env_id, entry_point=entry_point)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, RuntimeError])
def test_rollout_survives_close_that_raises_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setattr(ExitingCloseEnv, "error", error)

    outcome = run_envkit(
        *("rollout", "exiting-close-v0", "--policy", "oracle", "-n", 2),
        *("--model", tiny_model_dir("qwen2_5_vl"), "--out", tmp_path / "run", "--quiet"),
    )

    assert outcome.code == 0
    assert outcome.last_error == f"closing ExitingCloseEnv failed: {error.__name__}: 0"
    assert len(list(read_trajectories(tmp_path / "run"))) == 2
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("rollout", "exiting-oracle-v0", "--policy", "oracle", "-n", 2, "--quiet"),
        ("info", "exiting-close-v0"),
    ],
)
def test_command_ended_by_foreign_exit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = ("--model", tiny_model_dir("qwen2_5_vl")) if command[0] == "rollout" else ()

    outcome = run_envkit(*command, *model)

    assert outcome.code == 1
    assert "sys.exit(0)" in outcome.last_error
