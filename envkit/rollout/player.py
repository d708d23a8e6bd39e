"""Plays single episodes for somebody who asks for many: a trainer's rollout workers.

Threads are shared, and an environment is used again for the next episode that asks for the same
one. A player belongs to the event loop that it was made on.
"""

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from envkit.agents import MultiAgentEnv
from envkit.env import Env
from envkit.errors import ConfigurationError, EnvFault
from envkit.rollout.engine import Engine, Sampling
from envkit.rollout.host import AnyEnv, EnvFactory, EnvHost
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits
from envkit.rollout.loop import play_episode
from envkit.rollout.request import EnvSource
from envkit.rollout.retries import RetryBudget
from envkit.rollout.setup import EpisodeSpec, GroupStart, RolePlan, Setup
from envkit.rollout.shared import is_shared, play_all
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.tokens import ChatCodec
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory


class Player:
    """Plays and resumes episodes with one engine and one codec, any number at once."""

    def __init__(
        self,
        engine: Engine,
        codec: ChatCodec,
        *,
        limits: Limits | None = None,
        retries: RetryBudget | None = None,
        sampling: Sampling | None = None,
        roles: RolePlan | None = None,
    ) -> None:
        """Make a player on the running event loop.

        Args:
            engine: Samples the replies; it stays the caller's to close.
            codec: Encodes what the environments say.
            limits: Where episodes end; None bounds nothing but the environments' own turns.
            retries: Deadlines and budgets; None takes the defaults.
            sampling: Temperature and length of replies; None takes the defaults.
            roles: What differs between the roles of environments with several agents; None is
                nothing.

        Raises:
            ConfigurationError: Engine and sampling do not fit together.
        """
        self._setup = Setup(
            engine=engine,
            codec=codec,
            limits=limits or Limits(),
            retries=retries or RetryBudget(),
            sampling=sampling or Sampling(),
            roles=roles or RolePlan(),
        )
        self._pool = WorkerPool()
        self._shelves: dict[EnvSource, _Shelf] = {}

    async def play(
        self,
        env: AnyEnv | EnvFactory,
        *,
        seed: int | None = None,
        task: Task | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        group_start: GroupStart | None = None,
        member: int = 0,
        interrupt: Interrupt | None = None,
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
    ) -> Trajectory:
        """Play one episode of an environment with one agent and return its record.

        Args:
            env: An environment, which stays the caller's to close; a function that builds one,
                which is closed after the episode; or an `EnvSource`, whose environments are kept
                for later episodes.
            seed: Of the environment; None draws one, which is in the record.
            task: Plays this task; None draws one with the seed.
            episode_id: Identifies the episode, also to the engine; None makes one.
            group_id: Marks the episodes that a trainer compares.
            group_start: Shared by a group's members, which must start from the same observation.
            member: Index in the group; makes sampling seeds differ between its members.
            interrupt: Ends the episode early with a valid partial trajectory.
            metadata: JSON data to keep with the record.
            limits: For this episode instead of the player's.
            sampling: For this episode instead of the player's.

        Raises:
            ConfigurationError: Engine, sampling or environment do not fit together, or the
                environment has several agents.
            ContractError: The environment returned something its contract does not allow.
        """
        spec = _spec(env, seed, task, episode_id, group_id, group_start, member, metadata)
        return await self._run(env, spec, None, interrupt, limits, sampling)

    async def play_all(
        self,
        env: AnyEnv | EnvFactory,
        *,
        seed: int | None = None,
        task: Task | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        group_start: GroupStart | None = None,
        member: int = 0,
        interrupt: Interrupt | None = None,
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
    ) -> tuple[Trajectory, ...]:
        """Play one episode of any environment and return a record for each role that spoke.

        An environment with one agent gives one record, that of `play`. The records of several
        agents share `rollout_id` in their metadata, and their episode and group ids end with the
        role. The arguments are those of `play`.

        Raises:
            ConfigurationError: Engine, sampling or environment do not fit together.
            ContractError: The environment returned something its contract does not allow.
        """
        spec = _spec(env, seed, task, episode_id, group_id, group_start, member, metadata)
        setup = self._setup_with(limits, sampling)
        async with self._host(env) as host:
            return await play_all(setup, spec, host, self._pool, interrupt or Interrupt())

    async def roles_of(self, env: AnyEnv | EnvFactory) -> tuple[str, ...]:
        """Return the roles of an environment with several agents; none where it has one agent.

        Args:
            env: As for `play`; it is built where it is a function or a source.

        Raises:
            EnvFault: It could not be built.
        """
        async with self._host(env) as host:
            await host.ensure(timeout_s=self._setup.retries.reset_timeout_s)
            return host.env.roles if isinstance(host.env, MultiAgentEnv) else ()

    async def resume(
        self,
        trajectory: Trajectory,
        env: AnyEnv | EnvFactory,
        *,
        member: int = 0,
        interrupt: Interrupt | None = None,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
    ) -> Trajectory:
        """Go on with an aborted trajectory, images included, and return the whole record.

        Args:
            trajectory: One whose `stop_reason` is ABORTED.
            env: As for `play`.
            member: As for `play`.
            interrupt: As for `play`.
            limits: As for `play`; the budgets count what was there already.
            sampling: As for `play`.

        Raises:
            ConfigurationError: The trajectory did not end by an abort, or has no seed.
        """
        if trajectory.stop_reason is not StopReason.ABORTED:
            raise ConfigurationError(
                "only an aborted trajectory can be resumed, got one that ended with "
                f"{trajectory.stop_reason.value!r}"
            )
        if is_shared(trajectory):
            raise ConfigurationError(
                "a role's trajectory cannot be resumed without its siblings: play the episode again"
            )
        if trajectory.seed is None:
            raise ConfigurationError("a trajectory without a seed cannot be resumed")
        spec = EpisodeSpec(
            env_id=trajectory.env_id,
            seed=trajectory.seed,
            task=dict(trajectory.task) or None,
            episode_id=trajectory.episode_id,
            group_id=trajectory.group_id,
            member=member,
            metadata=trajectory.metadata,
        )
        return await self._run(env, spec, trajectory, interrupt, limits, sampling)

    async def aclose(self) -> None:
        """Close the environments that are kept, and end the threads; closing twice is fine."""
        shelves, self._shelves = self._shelves, {}
        await asyncio.gather(*(shelf.close() for shelf in shelves.values()))
        self._pool.close()

    async def _run(
        self,
        env: AnyEnv | EnvFactory,
        spec: EpisodeSpec,
        earlier: Trajectory | None,
        interrupt: Interrupt | None,
        limits: Limits | None,
        sampling: Sampling | None,
    ) -> Trajectory:
        setup = self._setup_with(limits, sampling)
        async with self._host(env) as host:
            return await play_episode(
                setup, spec, host, self._pool, interrupt or Interrupt(), earlier
            )

    def _setup_with(self, limits: Limits | None, sampling: Sampling | None) -> Setup:
        setup = self._setup
        if limits is None and sampling is None:
            return setup
        return replace(setup, limits=limits or setup.limits, sampling=sampling or setup.sampling)

    @asynccontextmanager
    async def _host(self, env: AnyEnv | EnvFactory) -> AsyncGenerator[EnvHost]:
        if isinstance(env, EnvSource):
            shelf = self._shelves.get(env)
            if shelf is None:
                timeout_s = self._setup.retries.reset_timeout_s
                shelf = self._shelves[env] = _Shelf(env, self._pool, timeout_s)
            async with shelf.lend() as host:
                yield host
            return
        host = EnvHost(self._pool, factory=env) if callable(env) else EnvHost(self._pool, env=env)
        try:
            yield host
        finally:
            await host.close()


class _Shelf:
    """The environments of one source: lent to one episode at a time, kept in between."""

    def __init__(self, source: EnvSource, pool: WorkerPool, timeout_s: float | None) -> None:
        self._source, self._pool, self._timeout_s = source, pool, timeout_s
        self._idle: list[EnvHost] = []
        self._first = asyncio.Lock()
        self._sessions: asyncio.Semaphore | None = None
        self._known = False
        self._closed = False

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[EnvHost]:
        """Lend a host, waiting while as many are in use as the environment allows."""
        await self._ask_sessions()
        if self._sessions is not None:
            await self._sessions.acquire()
        host = self._idle.pop() if self._idle else EnvHost(self._pool, factory=self._source)
        try:
            yield host
        finally:
            if self._closed:
                await host.close()
            else:
                self._idle.append(host)
            if self._sessions is not None:
                self._sessions.release()

    async def _ask_sessions(self) -> None:
        """Build the first environment and obey its `max_sessions`."""
        async with self._first:
            if self._known:
                return
            host = EnvHost(self._pool, factory=self._source)
            self._idle.append(host)
            try:
                await host.ensure(timeout_s=self._timeout_s)
            except EnvFault:
                return  # its episode builds it again, under the retry budget
            most = host.env.capabilities.max_sessions
            self._sessions = None if most is None else asyncio.Semaphore(most)
            self._known = True

    async def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(host.close() for host in idle))


def _spec(
    env: AnyEnv | EnvFactory,
    seed: int | None,
    task: Task | None,
    episode_id: str | None,
    group_id: str | None,
    group_start: GroupStart | None,
    member: int,
    metadata: Mapping[str, Any] | None,
) -> EpisodeSpec:
    return EpisodeSpec(
        env_id=_env_id(env),
        seed=secrets.randbits(31) if seed is None else seed,
        task=task,
        episode_id=episode_id or uuid.uuid4().hex,
        group_id=group_id,
        group_start=group_start,
        member=member,
        metadata=metadata or {},
    )


def _env_id(env: AnyEnv | EnvFactory) -> str:
    if isinstance(env, EnvSource):
        return env.env_id
    spec = getattr(env, "spec", None)  # a factory has none
    if spec is not None:
        return str(spec.id).removeprefix("envkit/")
    unwrapped = getattr(env, "unwrapped", None)
    return (
        type(unwrapped).__name__
        if isinstance(unwrapped, Env)
        else getattr(env, "__name__", type(env).__name__)
    )
