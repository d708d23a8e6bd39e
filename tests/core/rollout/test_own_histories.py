"""History policies that an environment or one of its roles brings."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.branching import IMAGES, Screens, Summarised, reply
from fakes.own_histories import (
    HangingRole,
    LeavingRole,
    Own,
    OwnPolicies,
    Pair,
    PerTask,
    Raising,
    SharedPolicy,
    UnreadableRole,
    Untyped,
    UntypedRole,
)
from fakes.policy_runs import QUICK, assert_played, assert_verifies, run
from fakes.templates import make_codec

from envkit.env import Env
from envkit.rollout import EpisodeSpec, Player, RetryBudget, RolloutConfig, ScriptedEngine
from envkit.trajectory import FaultPlace, StopReason, Trajectory
from envkit_isolation import isolated
from envkit_isolation.process import close_supervisors


async def test_environment_brings_its_own_policy_and_the_rollout_may_refuse_it() -> None:
    class Brings(Screens):
        history_policy: ClassVar = IMAGES

    trajectory = await run(None, env=Brings(images=True), images=True)
    assert trajectory.branches
    trajectory = await run("keep", env=Brings(images=True), images=True)
    assert not trajectory.branches


@pytest.fixture(scope="module", autouse=True)
def _no_supervisor_left() -> Iterator[None]:
    yield
    close_supervisors()


def _made(env: type[Env], isolation: str) -> Any:
    return isolated(env) if isolation == "process" else env


ISOLATIONS = pytest.mark.parametrize("isolation", ["none", "process"])


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "reason"),
    [(Own, "last_two"), (PerTask, "keep_last_turns"), (Summarised, "summarise")],
)
@pytest.mark.slow
async def test_environment_applies_its_own_policy(
    env: type[Env], reason: str, isolation: str, tmp_path: Path
) -> None:
    trajectory = await run(None, env=_made(env, isolation))
    assert_played(trajectory, tmp_path)
    assert {branch.reason for branch in trajectory.branches} == {reason}
    trajectory = await run("keep", env=_made(env, isolation))
    assert not trajectory.branches


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "text"), [(Raising, "SystemExit"), (Untyped, "history_policy must be")]
)
async def test_environments_bad_policy_faults_the_episode(
    env: type[Env], text: str, isolation: str, tmp_path: Path
) -> None:
    trajectory = await run(None, env=_made(env, isolation), retries=QUICK)
    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.fault is not None
    assert text in trajectory.fault.message
    assert trajectory.reward is None
    assert_verifies(trajectory, tmp_path)


async def _roles(env: type[Env], isolation: str, tmp_path: Path) -> dict[str, Trajectory]:
    codec = make_codec("qwen3")
    retries = RetryBudget(step_timeout_s=1, max_episode_restarts=0)
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(retries=retries))
    async with asyncio.timeout(15):
        played = await player.play(_made(env, isolation), EpisodeSpec(seed=3))
    await player.aclose()
    for one in played:
        assert_verifies(one, tmp_path)
    return {str(one.metadata.get("role")): one for one in played}


@ISOLATIONS
async def test_roles_apply_their_own_policies(isolation: str, tmp_path: Path) -> None:
    for env, reasons in (
        (SharedPolicy, ("keep_last_turns",) * 2),
        (OwnPolicies, ("keep_last_turns", "last_two")),
    ):
        played = await _roles(env, isolation, tmp_path)
        found = [{branch.reason for branch in played[role].branches} for role in Pair.roles]
        assert found == [{reason} for reason in reasons]
        assert [one.reward for one in played.values()] == [7.0, 7.0]


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "where", "text"),
    [
        (HangingRole, FaultPlace.HISTORY, "role 'second' failed: history policy 'never' failed"),
        (LeavingRole, FaultPlace.HISTORY, "role 'first' failed: history policy 'leave' failed"),
        (UntypedRole, FaultPlace.RESET, "history_policy must be"),
        (UnreadableRole, FaultPlace.RESET, "SystemExit"),
    ],
)
@pytest.mark.slow
async def test_bad_policy_of_a_role_ends_its_episode_alone(
    env: type[Env], where: FaultPlace, text: str, isolation: str, tmp_path: Path
) -> None:
    played = await _roles(env, isolation, tmp_path)
    for one in played.values():
        assert one.fault is not None
        assert text in one.fault.message
        assert one.reward is None
        if isolation == "none" or where is FaultPlace.HISTORY:
            assert one.fault.where is where
