"""Plays episodes of environments with several agents: each role through the one loop.

The shared environment keeps its deadlines, retries and recovery; a role's seat has none. What ends
one role by a limit ends that role alone. What ends one by a fault or an abort ends the episode for
all of them: no reward is ever computed from a part of an episode.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from envkit.agents import MultiAgentEnv, Seat, Table, Verdict, credit, earned
from envkit.env import Reset, Step
from envkit.errors import ConfigurationError, ContractError, EnvFault, FaultKind
from envkit.rollout.host import EnvHost
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.loop import play_episode
from envkit.rollout.outcome import observation_hash
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.recovery import EpisodeLostError, RecoveringEnv
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.threads.pool import WorkerPool
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import FaultRecord, Trajectory

ROLE: Final = "role"
"""Key of `Trajectory.metadata`: whose trajectory it is. None for an episode of several agents that
failed before anybody spoke."""
ROLLOUT_ID: Final = "rollout_id"
"""Key of `Trajectory.metadata`: equal for the siblings of one episode, and for them alone."""


def role_of(trajectory: Trajectory) -> str | None:
    """Return whose trajectory it is; None where the environment has one agent."""
    role = trajectory.metadata.get(ROLE)
    return role if isinstance(role, str) else None


def is_shared(trajectory: Trajectory) -> bool:
    """Return whether it is of an episode of several agents, also where nobody came to speak."""
    return ROLE in trajectory.metadata


def rollout_id_of(trajectory: Trajectory) -> str:
    """Return what the siblings of an episode share; the episode's own id where it has none."""
    shared = trajectory.metadata.get(ROLLOUT_ID)
    return shared if isinstance(shared, str) else trajectory.episode_id


async def play_all(
    setup: Setup, spec: EpisodeSpec, host: EnvHost, pool: WorkerPool, interrupt: Interrupt
) -> tuple[Trajectory, ...]:
    """Play an episode of any environment: one trajectory for each role that spoke.

    Args:
        setup: Engine, codec, limits, budgets, and what differs between roles.
        spec: Which episode.
        host: Where its environment lives; usable for another episode afterwards.
        pool: Threads for blocking calls.
        interrupt: Fires to end the episode early with valid partial trajectories.
    """
    if not host.is_usable:
        with contextlib.suppress(EnvFault):  # the episode builds it again, under its budget
            await host.ensure(timeout_s=setup.retries.reset_timeout_s)
    if not host.is_usable or not isinstance(host.env, MultiAgentEnv):
        return (await play_episode(setup, spec, host, pool, interrupt),)
    return await _SharedEpisode(setup, spec, host, pool, interrupt).play()


@dataclass(slots=True)
class _World:
    """The shared environment under its retry budget."""

    env: RecoveringEnv
    can_restart: bool
    """Whether an episode whose state is lost is played anew; otherwise that is a fault."""

    @property
    def game(self) -> MultiAgentEnv:
        return cast(MultiAgentEnv, self.env.env)

    async def reset(self) -> Reset:
        return await self.env.reset()

    async def step(self, text: str) -> Step:
        try:
            return await self.env.step(text)
        except EpisodeLostError as lost:
            if self.can_restart:
                raise
            raise lost.fault from lost


class _SharedEpisode:
    """One episode of several roles, restarts included."""

    def __init__(
        self,
        setup: Setup,
        spec: EpisodeSpec,
        host: EnvHost,
        pool: WorkerPool,
        interrupt: Interrupt,
    ) -> None:
        self._setup, self._spec, self._host, self._pool = setup, spec, host, pool
        self._parent = interrupt
        self._started = time.perf_counter()
        self._restarts, self._spent = 0, 0

    async def play(self) -> tuple[Trajectory, ...]:
        """Play to the end, starting anew with a fresh environment where one was lost."""
        while True:
            try:
                return await self._attempt()
            except EpisodeLostError:
                self._host.mark_broken()
                self._restarts += 1

    @property
    def _can_restart(self) -> bool:
        most = self._setup.retries.max_episode_restarts
        return self._restarts < most and self._host.can_rebuild

    async def _attempt(self) -> tuple[Trajectory, ...]:
        own, timer = self._parent.child(), None
        timeout = self._setup.limits.episode_timeout_s
        if timeout is not None:
            left = timeout - (time.perf_counter() - self._started)
            timer = asyncio.get_running_loop().call_later(
                max(0.0, left), own.fire, StopReason.EPISODE_TIMEOUT
            )
        world = _World(self._recovering(), self._can_restart)
        try:
            return await self._at_table(world, own)
        finally:
            self._spent = world.env.spent
            if timer is not None:
                timer.cancel()
            self._parent.discard(own)
            await own.close()

    def _recovering(self) -> RecoveringEnv:
        return RecoveringEnv(
            self._host,
            self._setup.retries,
            episode_id=self._spec.episode_id,
            seed=self._spec.seed,
            task=self._spec.task,
            spent=self._spent,
        )

    async def _at_table(self, world: _World, own: Interrupt) -> tuple[Trajectory, ...]:
        try:
            reset = await world.reset()
            start = observation_hash(reset.observation)
            if self._spec.group_start is not None:
                self._spec.group_start.check(start)
        except EnvFault as fault:
            return (self._stillborn(fault),)
        roles = world.game.roles
        self._check_roles(roles)
        task = dict(world.game.task)
        table = Table(world, lambda seat: self._play_seat(seat, task, own), own)
        await table.run(reset)
        verdict = table.verdict
        if verdict is not None and verdict.stop_reason is StopReason.ENV_FAULT:
            self._retire()
        played = {role: table.trajectories[role] for role in roles if role in table.trajectories}
        if not played:  # the whole rollout was stopped before anybody could begin
            return (self._unspoken(task),)
        finished = {
            role: replace(
                credit(trajectory, table.late.get(role, 0.0)) if verdict is None else trajectory,
                initial_observation_hash=start,
                env_restarts=self._restarts,
            )
            for role, trajectory in played.items()
        }
        if verdict is None:
            finished, verdict = await self._adjusted(finished)
        return tuple(_concluded(one, verdict) for one in finished.values())

    async def _play_seat(
        self, seat: Seat, task: dict[str, Any], interrupt: Interrupt
    ) -> Trajectory:
        spec, role = self._spec, seat.role
        host = EnvHost(self._pool, env=seat)
        try:
            return await play_episode(
                self._setup.of_role(role),
                replace(
                    spec,
                    task=task,
                    episode_id=f"{spec.episode_id}-{role}",
                    group_id=None if spec.group_id is None else f"{spec.group_id}-{role}",
                    group_start=None,
                    metadata=self._metadata(role),
                ),
                host,
                self._pool,
                interrupt,
            )
        finally:
            await host.close()

    def _metadata(self, role: str | None) -> Mapping[str, Any]:
        return {**self._spec.metadata, ROLE: role, ROLLOUT_ID: self._spec.episode_id}

    def _check_roles(self, roles: tuple[str, ...]) -> None:
        plan = self._setup.roles
        for role in (*plan.engines, *plan.samplings):
            if role not in roles:
                raise ConfigurationError(
                    f"engines and samplings are given by role, got {role!r}; the roles of "
                    f"{self._spec.env_id} are {list(roles)}"
                )

    async def _adjusted(
        self, played: dict[str, Trajectory]
    ) -> tuple[dict[str, Trajectory], Verdict | None]:
        adjust = self._setup.roles.adjust_rewards
        unscored = any(one.reward is None for one in played.values())
        if adjust is None or unscored:
            return played, None
        timeout_s = self._setup.retries.step_timeout_s
        try:
            return await self._pool.run(lambda: earned(played, adjust), timeout_s=timeout_s), None
        except ContractError:
            raise
        except Exception as error:  # noqa: BLE001  # a user's function; recorded as a fault
            message = f"adjust_rewards failed: {type(error).__name__}: {error}"
            fault = FaultRecord(where="rewards", kind=FaultKind.GRADER.value, message=message)
            return played, Verdict(stop_reason=StopReason.ENV_FAULT, fault=fault)

    def _stillborn(self, fault: EnvFault) -> Trajectory:
        """Return the record of an episode that failed before any role has a trajectory."""
        record = EpisodeRecord()
        record.faulted("reset", fault)
        self._retire()
        return self._without_role(record, StopReason.ENV_FAULT)

    def _retire(self) -> None:
        """Let the next episode start with a fresh environment, where one can be had."""
        if self._host.can_rebuild:
            self._host.mark_broken()

    def _unspoken(self, task: dict[str, Any]) -> Trajectory:
        record = EpisodeRecord()
        record.task = task
        return self._without_role(record, self._parent.reason or StopReason.EPISODE_TIMEOUT)

    def _without_role(self, record: EpisodeRecord, reason: StopReason) -> Trajectory:
        record.started = self._started
        return record.trajectory(
            reason,
            episode_id=self._spec.episode_id,
            env_id=self._spec.env_id,
            seed=self._spec.seed,
            group_id=self._spec.group_id,
            env_restarts=self._restarts,
            engine=self._setup.engine.name,
            metadata=self._metadata(None),
        )


def _concluded(trajectory: Trajectory, verdict: Verdict | None) -> Trajectory:
    """Return a role's trajectory as the end of the whole episode wants it."""
    if verdict is None:
        return trajectory
    return replace(trajectory, stop_reason=verdict.stop_reason, fault=verdict.fault, reward=None)
