"""Play episodes with settings named one by one, for tests."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict
from typing import Any

import pytest
from fakes.hostile_values import PLANTED

from envkit.rollout import (
    EpisodeSpec,
    Interrupt,
    Player,
    RolePlan,
    RolloutConfig,
    RolloutState,
    Run,
    RunPlan,
    Sampling,
    delivered,
    has_role,
    role_of,
)
from envkit.tokens import ChatCodec
from envkit.trajectory import Trajectory

_SPEC = ("seed", "task", "episode_id", "group_id", "group_start", "member", "metadata")
_ROLES = ("engines", "samplings", "adjust_rewards")
_PLAN = ("episodes", "group_size", "concurrency", "tasks", "metadata")


def config_of(options: dict[str, Any]) -> RolloutConfig:
    """Return settings; `sampling` may be a `Sampling`."""
    known = {name: value for name, value in options.items() if value is not None}
    sampling = known.get("sampling")
    if isinstance(sampling, Sampling):
        defaults = asdict(Sampling())
        known["sampling"] = {
            name: getattr(sampling, name)
            for name in defaults
            if getattr(sampling, name) != defaults[name]
        }
    return RolloutConfig(**known)


def _taken(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found = {name: options.pop(name) for name in names if name in options}
    return {name: value for name, value in found.items() if value is not None}


async def play_all(
    env: Any, engine: Any, codec: ChatCodec, *, interrupt: Interrupt | None = None, **options: Any
) -> tuple[Trajectory, ...]:
    """Play one episode and return the record of each role."""
    spec, roles = EpisodeSpec(**_taken(options, _SPEC)), _taken(options, _ROLES)
    player = Player(engine, codec, config_of(options), roles=RolePlan(**roles) if roles else None)
    try:
        return await player.play(env, spec, interrupt=interrupt)
    finally:
        await player.aclose()


async def play_one(env: Any, engine: Any, codec: ChatCodec, **options: Any) -> Trajectory:
    """Play one episode of an environment with one agent."""
    (played,) = await play_all(env, engine, codec, **options)
    return played


async def play_roles(
    env: Any, engine: Any, codec: ChatCodec, **options: Any
) -> Mapping[str, Trajectory]:
    """Play one episode of an environment with several agents and return the records by role."""
    played = await play_all(env, engine, codec, **options)
    assert all(map(has_role, played))
    return {role_of(one) or "": one for one in played}


async def resume_one(
    trajectory: Trajectory,
    env: Any,
    engine: Any,
    codec: ChatCodec,
    *,
    interrupt: Interrupt | None = None,
    **options: Any,
) -> Trajectory:
    """Resume an aborted episode."""
    player = Player(engine, codec, config_of(options))
    try:
        (played,) = await player.resume(trajectory, env, interrupt=interrupt)
        return played
    finally:
        await player.aclose()


async def collected(
    env: Any,
    engine: Any,
    codec: ChatCodec,
    *,
    interrupt: Interrupt | None = None,
    state: RolloutState | None = None,
    **options: Any,
) -> AsyncGenerator[Trajectory, None]:
    """Play a run and yield its trajectories."""
    plan, roles = RunPlan(**_taken(options, _PLAN)), _taken(options, _ROLES)
    player = Player(engine, codec, config_of(options), roles=RolePlan(**roles) if roles else None)
    run = Run(env, player, plan, interrupt=interrupt, state=state)
    try:
        async with contextlib.aclosing(delivered(run)) as trajectories:
            async for trajectory in trajectories:
                yield trajectory
    finally:
        await player.aclose()


def play_hostile(run: AsyncGenerator[Trajectory]) -> list[Trajectory]:
    """Play a run of `collect` in which something misbehaves; fail the test if it ends early."""
    played: list[Trajectory] = []

    async def play() -> None:
        async with asyncio.timeout(120.0):  # a run that takes longer hangs
            async for trajectory in run:
                played.append(trajectory)

    try:
        asyncio.run(play())
    except BaseException as error:  # a hostile exception may end a test run too
        if type(error) is KeyboardInterrupt and error.args != (PLANTED,):
            raise
        pytest.fail(f"the run ended after {len(played)} trajectories by {type(error).__name__}")
    return played
