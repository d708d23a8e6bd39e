"""Many episodes at once: bounded concurrency, groups, a clean stop.

Every episode runs by itself: none waits for another's turn. Results come out as they finish.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from envkit.agents import AdjustRewards
from envkit.errors import ConfigurationError, EnvFault
from envkit.registration import make
from envkit.rollout.engine import Engine, Sampling
from envkit.rollout.host import EnvFactory, EnvHost
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits
from envkit.rollout.retries import RetryBudget
from envkit.rollout.setup import EpisodeSpec, GroupStart, RolePlan, Setup
from envkit.rollout.shared import play_all
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory


class FaultPolicy(StrEnum):
    """What happens to a group when infrastructure failed one of its episodes."""

    MASK = "mask"
    """The faulted trajectory is delivered, without reward and with mask 0."""
    RETRY = "retry"
    """The episode is played again with a fresh environment; if that faults too, it is masked."""
    DROP_GROUP = "drop_group"
    """No member of the group is delivered; `RolloutState.dropped` has them."""


@dataclass(kw_only=True)
class RolloutState:
    """How far a rollout is. Updated in place; a progress bar may read it at any time."""

    total: int = 0
    """Episodes that were asked for."""
    started: int = 0
    finished: int = 0
    """Delivered or dropped."""
    in_flight: int = 0
    faulted: int = 0
    """Delivered with a fault."""
    retried: int = 0
    """Faulted episodes that were played again."""
    dropped: list[Trajectory] = field(default_factory=list[Trajectory])
    """Members of groups that DROP_GROUP withheld."""


_Episode = tuple[Trajectory, ...]
"""The records of one episode: one, or with several agents one for each role."""


@dataclass(slots=True)
class _Group:
    missing: int
    """Members that have not finished."""
    start: GroupStart = field(default_factory=GroupStart)
    held: list[_Episode] = field(default_factory=list[_Episode])
    """Finished members that wait for their siblings."""


async def collect(
    env_id: str | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    episodes: int,
    group_size: int = 1,
    concurrency: int = 64,
    seed: int = 0,
    limits: Limits | None = None,
    retries: RetryBudget | None = None,
    sampling: Sampling | None = None,
    tasks: Sequence[Task] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    on_fault: FaultPolicy = FaultPolicy.MASK,
    interrupt: Interrupt | None = None,
    state: RolloutState | None = None,
    metadata: Mapping[str, Any] | None = None,
    engines: Mapping[str, Engine] | None = None,
    samplings: Mapping[str, Sampling] | None = None,
    adjust_rewards: AdjustRewards | None = None,
) -> AsyncGenerator[Trajectory, None]:
    """Play episodes and yield their records as they finish.

    Close the generator, or leave its `async for` by an exception, and every running episode is
    cancelled and every environment closed. Fire `interrupt` instead to get the running ones as
    valid partial trajectories.

    Args:
        env_id: A registered environment, or a function that builds one.
        engine: Samples the replies; it stays the caller's to close.
        codec: Encodes what the environments say.
        episodes: How many trajectories in all; a multiple of `group_size`.
        group_size: Members of a group play one task from one initial state.
        concurrency: Episodes at once; an environment's `max_sessions` lowers it.
        seed: Of the rollout: group g is the same task whatever the concurrency.
        limits: Where episodes end.
        retries: Deadlines and budgets.
        sampling: Temperature and length of replies.
        tasks: Task of each group, in order; None draws them with the seed.
        env_kwargs: Arguments of the environment.
        on_fault: What a fault does to its group.
        interrupt: Ends the rollout early.
        state: Filled with the progress.
        metadata: JSON data to keep with every record.
        engines: Of single roles, in an environment with several agents; see `play_agents`.
        samplings: Of single roles.
        adjust_rewards: Makes the rewards of an episode's roles.

    Yields:
        One trajectory for each episode, in the order they finish; in an environment with several
        agents one for each role that spoke, those of an episode together.

    Raises:
        ConfigurationError: Numbers that do not fit together, or an unknown environment.
        ContractError: An environment broke its contract; finished trajectories were yielded.
    """
    _check(episodes, group_size, concurrency, tasks)
    rollout = _Rollout(
        setup=Setup(
            engine=engine,
            codec=codec,
            limits=limits or Limits(),
            retries=retries or RetryBudget(),
            sampling=sampling or Sampling(),
            roles=RolePlan(
                engines=engines or {}, samplings=samplings or {}, adjust_rewards=adjust_rewards
            ),
        ),
        factory=_factory(env_id, env_kwargs or {}),
        env_id=env_id if isinstance(env_id, str) else getattr(env_id, "__name__", "env"),
        group_size=group_size,
        seed=seed,
        tasks=tasks,
        on_fault=on_fault,
        interrupt=interrupt or Interrupt(),
        state=state if state is not None else RolloutState(),
        metadata=metadata or {},
    )
    async with contextlib.aclosing(rollout.run(episodes, concurrency)) as results:
        async for trajectory in results:
            yield trajectory


class _Rollout:
    """The workers of one `collect` call and what they share."""

    def __init__(
        self,
        *,
        setup: Setup,
        factory: EnvFactory,
        env_id: str,
        group_size: int,
        seed: int,
        tasks: Sequence[Task] | None,
        on_fault: FaultPolicy,
        interrupt: Interrupt,
        state: RolloutState,
        metadata: Mapping[str, Any],
    ) -> None:
        self._setup, self._factory, self._env_id = setup, factory, env_id
        self._group_size, self._seed, self._tasks = group_size, seed, tasks
        self._on_fault, self._interrupt, self._state = on_fault, interrupt, state
        self._metadata = metadata
        self._groups: dict[int, _Group] = {}
        self._next = 0
        self._results: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        self._pool = WorkerPool()

    async def run(self, episodes: int, concurrency: int) -> AsyncGenerator[Trajectory, None]:
        """Yield the results while the workers fill the queue."""
        self._state.total = episodes
        hosts = [
            EnvHost(self._pool, factory=self._factory) for _ in range(min(concurrency, episodes))
        ]
        try:
            most = await self._limit_sessions(hosts)
            async with contextlib.aclosing(self._played(hosts[:most])) as results:
                async for trajectory in results:
                    yield trajectory
        finally:
            await asyncio.gather(*(host.close() for host in hosts))
            self._pool.close()
            await self._interrupt.close()

    async def _played(self, hosts: list[EnvHost]) -> AsyncGenerator[Trajectory, None]:
        """Play on these environments, one worker on each."""
        workers = [asyncio.create_task(self._work(host)) for host in hosts]
        watcher = asyncio.create_task(self._watch(workers))
        try:
            while (trajectory := await self._results.get()) is not None:
                yield trajectory
            await watcher  # raises what ended a worker
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, watcher, return_exceptions=True)

    async def _limit_sessions(self, hosts: list[EnvHost]) -> int:
        """Build the first environment and obey its `max_sessions`."""
        try:
            await hosts[0].ensure(timeout_s=self._setup.retries.reset_timeout_s)
        except EnvFault:
            return len(hosts)  # its episode builds it again, under the retry budget
        most = hosts[0].env.capabilities.max_sessions
        return len(hosts) if most is None else max(1, min(most, len(hosts)))

    async def _watch(self, workers: list[asyncio.Task[None]]) -> None:
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
        finally:
            for group in self._groups.values():  # incomplete, because the rollout was stopped
                self._release(group)
            self._results.put_nowait(None)

    async def _work(self, host: EnvHost) -> None:
        """Play one episode after another on one environment."""
        while self._next < self._state.total and self._interrupt.reason is None:
            index, self._next = self._next, self._next + 1
            self._state.started += 1
            self._state.in_flight += 1
            try:
                episode = await self._play(index, host)
            finally:
                self._state.in_flight -= 1
            self._deliver(index, episode)

    async def _play(self, index: int, host: EnvHost) -> _Episode:
        number, member = divmod(index, self._group_size)
        group = self._groups.setdefault(number, _Group(self._group_size))
        spec = EpisodeSpec(
            env_id=self._env_id,
            seed=derive_seed("group", self._seed, number),
            task=None if self._tasks is None else dict(self._tasks[number]),
            group_id=f"{self._seed}-{number}",
            group_start=group.start,
            member=member,
            metadata={**self._metadata, "group": number, "member": member},
        )
        episode = await self._play_spec(spec, host)
        if _is_faulted(episode) and self._on_fault is FaultPolicy.RETRY:
            self._state.retried += 1
            host.mark_broken()
            episode = await self._play_spec(replace(spec, episode_id=uuid.uuid4().hex), host)
        return episode

    async def _play_spec(self, spec: EpisodeSpec, host: EnvHost) -> _Episode:
        return await play_all(self._setup, spec, host, self._pool, self._interrupt)

    def _deliver(self, index: int, episode: _Episode) -> None:
        """Put a result out, or hold it back until its group is complete."""
        self._state.finished += 1
        number = index // self._group_size
        group = self._groups[number]
        group.held.append(episode)
        group.missing -= 1
        if self._on_fault is not FaultPolicy.DROP_GROUP or group.missing == 0:
            self._release(group)
        if group.missing == 0:
            del self._groups[number]

    def _release(self, group: _Group) -> None:
        drop = self._on_fault is FaultPolicy.DROP_GROUP
        if drop and any(map(_is_faulted, group.held)):
            self._state.dropped.extend(one for member in group.held for one in member)
        else:
            for member in group.held:
                self._put(member)
        group.held.clear()

    def _put(self, episode: _Episode) -> None:
        self._state.faulted += _is_faulted(episode)
        for trajectory in episode:
            self._results.put_nowait(trajectory)


def _is_faulted(episode: _Episode) -> bool:
    """Whether infrastructure ended it; that ends all roles."""
    return any(trajectory.is_faulted for trajectory in episode)


def _factory(env_id: str | EnvFactory, env_kwargs: Mapping[str, Any]) -> EnvFactory:
    if isinstance(env_id, str):
        return partial(make, env_id, **env_kwargs)
    if env_kwargs:
        raise ConfigurationError(
            "env_kwargs go with a registered environment's id; put them into the function instead"
        )
    return env_id


def _check(episodes: int, group_size: int, concurrency: int, tasks: Sequence[Task] | None) -> None:
    for name, value in (
        ("episodes", episodes),
        ("group_size", group_size),
        ("concurrency", concurrency),
    ):
        if value < 1:
            raise ConfigurationError(f"{name} must be at least 1, got {value}")
    if episodes % group_size:
        raise ConfigurationError(
            f"episodes counts trajectories and must be a multiple of group_size, got {episodes} "
            f"episodes in groups of {group_size}"
        )
    if tasks is not None and len(tasks) < episodes // group_size:
        raise ConfigurationError(
            f"{episodes // group_size} groups need as many tasks, got {len(tasks)}"
        )
