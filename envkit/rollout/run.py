"""Play many episodes at once: bounded concurrency, groups, bounded delivery, a clean stop.

Every episode runs by itself: none waits for another's turn. A finished one is delivered before its
slot takes the next, and all others are held back while several wait to be delivered, so only a
handful of finished trajectories is ever unwritten.
"""

import asyncio
import contextlib
import uuid
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envkit.errors import ConfigurationError, RunFailedError
from envkit.rollout.availability import Availability, availability_of
from envkit.rollout.collecting import collecting, tend
from envkit.rollout.config import FaultPolicy, RolloutConfig
from envkit.rollout.engine import Engine
from envkit.rollout.host import EnvFactory
from envkit.rollout.interrupt import Brake, Interrupt
from envkit.rollout.player import Player
from envkit.rollout.setup import EpisodeSpec, GroupStart
from envkit.rollout.sources import Source, source_of
from envkit.rollout.supervision import FaultStreak
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory

Played = tuple[Trajectory, ...]
"""The records of one episode: one, or with several agents one for each role."""
Deliver = Callable[[Played], Awaitable[object]]
"""Takes the records of a finished episode; returns once they are safe."""
_MOST_UNDELIVERED: Final = 4
"""Finished episodes that wait for delivery before the others are held back."""
_STARTED_AT_ONCE: Final = 16
"""Episodes whose start may hold the event loop: thousands would hold it for seconds."""


@dataclass(kw_only=True)
class RolloutState:
    """How far a run is. Updated in place; a progress bar may read it at any time."""

    total: int = 0
    """Episodes that were asked for."""
    started: int = 0
    finished: int = 0
    """Delivered, dropped, or about to be."""
    in_flight: int = 0
    undelivered: int = 0
    """Finished episodes that wait to be written."""
    most_undelivered: int = 0
    """The highest that `undelivered` ever was."""
    faulted: int = 0
    """Delivered with a fault."""
    retried: int = 0
    """Faulted episodes that were played again."""
    dropped: list[Trajectory] = field(default_factory=list[Trajectory])
    """Members of groups that DROP_GROUP withheld."""
    availability: Availability | None = None
    """Of the engine; None before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Which episodes a run plays."""

    episodes: int
    """How many in all; a multiple of `group_size`."""
    group_size: int = 1
    """Members of a group play one task from one initial state."""
    concurrency: int = 64
    """Episodes at once; an environment's `max_sessions` lowers it."""
    tasks: Sequence[Task | None] | None = None
    """Task of each group, in order; None draws them with the seed."""
    seeds: Sequence[int | None] | None = None
    """Seed of each group, in order; None derives it from the run's."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON data to keep with every record."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit together.

        Raises:
            ConfigurationError: See the message.
        """
        for name in ("episodes", "group_size", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.episodes % self.group_size:
            raise ConfigurationError(
                f"episodes counts trajectories and must be a multiple of group_size, got "
                f"{self.episodes} episodes in groups of {self.group_size}"
            )
        groups = self.episodes // self.group_size
        for name in ("tasks", "seeds"):
            given: Sequence[object] | None = getattr(self, name)
            if given is not None and len(given) < groups:
                raise ConfigurationError(f"{groups} groups need as many {name}, got {len(given)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What an earlier, interrupted run has left."""

    delivered: frozenset[int] = frozenset()
    """Indices of the episodes that need not be played: group * group_size + member."""
    unfinished: Mapping[int, Trajectory] = field(default_factory=dict[int, Trajectory])
    """Aborted trajectories to resume, by index."""
    starts: Mapping[int, str] = field(default_factory=dict[int, str])
    """Hash of the first observation of groups that have begun, by group."""


@dataclass(slots=True)
class _Group:
    missing: int
    """Members that have not finished."""
    start: GroupStart
    held: list[Played] = field(default_factory=list[Played])
    """Finished members that wait for their siblings."""


class Run:
    """Plays the episodes of a plan through a player."""

    def __init__(
        self,
        env: str | EnvFactory,
        player: Player,
        plan: RunPlan,
        *,
        interrupt: Interrupt | None = None,
        state: RolloutState | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Prepare a run; `play` starts it.

        Args:
            env: A registered environment, or a function that builds one.
            player: Plays the episodes; the caller closes it. Its configuration has the seed, the
                environment's arguments and the fault policy.
            plan: Which episodes.
            interrupt: Ends the run early: running episodes are delivered as aborted.
            state: Filled with the progress.
            progress: Of an earlier run of the same plan, which this one completes.

        Raises:
            ConfigurationError: Arguments for a function.
        """
        self._player, self._plan, self._config = player, plan, player.config
        self._source: Source = source_of(env, self._config.env_kwargs)
        self.interrupt = interrupt or Interrupt()
        self.interrupt.brake = self._brake = Brake()
        self.state = state if state is not None else RolloutState()
        self._progress = progress or Progress()
        self.undelivered: list[Played] = []
        """Finished episodes that could not be delivered, after `play` has raised."""
        self._indices = iter(i for i in range(plan.episodes) if i not in self._progress.delivered)
        self._groups: dict[int, _Group] = {}
        self._streak = FaultStreak(plan.concurrency)
        self._failure: BaseException | None = None
        self._delivering: set[asyncio.Task[None]] = set()
        """Workers whose episode has finished; these must not be cancelled."""
        self._is_cancelled = False

    async def play(self, deliver: Deliver) -> None:
        """Play all episodes that are missing.

        Cancel the task to drop what runs; fire the interrupt to keep it as aborted trajectories. In
        both cases what is finished is delivered first.

        Args:
            deliver: Called with each finished episode, several at a time; an episode's slot plays
                the next one only after it returned. If it raises, no further episode starts.

        Raises:
            ConfigurationError: The environment cannot be built with its arguments, or the engine's
                server cannot play the run.
            RunFailedError: The first episodes all failed alike, too many in a row, or several by
                tokens that differ from the full render.
            Exception: What `deliver` raised; `undelivered` then holds what is finished.
        """
        plan, state = self._plan, self.state
        state.total, state.availability = plan.episodes, availability_of(self._player.engine)
        state.finished = state.started = len(self._progress.delivered)
        missing = plan.episodes - len(self._progress.delivered)
        sessions = await self._player.max_sessions(self._source)
        most = min(plan.concurrency, missing, plan.concurrency if sessions is None else sessions)
        if missing:
            await self._player.check_engines(self.interrupt)
            with collecting(missing, at_once=most):
                await self._play_all(most, deliver)
        for group in tuple(self._groups.values()):  # incomplete, because the run was stopped
            await self._release(group, deliver)
        if self._failure is not None:
            raise self._failure

    async def _play_all(self, most: int, deliver: Deliver) -> None:
        workers: list[asyncio.Task[None]] = []
        try:
            for _ in range(most):
                workers.append(asyncio.create_task(self._work(deliver)))
                if len(workers) % _STARTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            ended, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in ended:
                worker.result()
        except BaseException:
            self._is_cancelled = True
            for worker in workers:
                if worker not in self._delivering:
                    worker.cancel()
            await _until_done(workers)
            raise
        finally:
            await self.interrupt.close()

    async def _work(self, deliver: Deliver) -> None:
        """Play one episode after another; a finished one is delivered, whoever cancels the run."""
        this = asyncio.current_task()
        assert this is not None
        while self.interrupt.reason is None and not self._is_cancelled:
            tend()
            index = next(self._indices, None)
            if index is None:
                return
            self.state.started += 1
            self.state.in_flight += 1
            try:
                episode = await self._play(index)
            finally:
                self.state.in_flight -= 1
            self._delivering.add(this)
            try:
                await self._settle(index, episode, deliver)
            finally:
                self._delivering.discard(this)

    async def _play(self, index: int) -> Played:
        number, member = divmod(index, self._plan.group_size)
        group = self._group(number)
        earlier = self._progress.unfinished.get(index)
        if earlier is not None:
            resumed = await self._attempt(
                lambda: self._player.resume(
                    earlier, self._source, member=member, interrupt=self.interrupt
                )
            )
            if not _is_faulted(resumed):
                return resumed  # else it starts again: masking long episodes would bias the run
        task = None if self._plan.tasks is None else self._plan.tasks[number]
        seed = None if self._plan.seeds is None else self._plan.seeds[number]
        spec = EpisodeSpec(
            env_id=self._source.env_id,
            seed=derive_seed("group", self._config.seed, number) if seed is None else seed,
            task=None if task is None else dict(task),
            group_id=f"{self._config.seed}-{number}",
            group_start=group.start,
            member=member,
            metadata={**self._plan.metadata, "group": number, "member": member},
        )
        episode = await self._play_spec(spec)
        if _is_faulted(episode) and self._config.on_fault is FaultPolicy.RETRY:
            self.state.retried += 1
            episode = await self._play_spec(replace(spec, episode_id=uuid.uuid4().hex))
        return episode

    async def _play_spec(self, spec: EpisodeSpec) -> Played:
        return await self._attempt(
            lambda: self._player.play(self._source, spec, interrupt=self.interrupt)
        )

    async def _attempt(self, play: Callable[[], Awaitable[Played]]) -> Played:
        """Play; an episode that shows the run to be pointless is still delivered."""
        try:
            return await play()
        except RunFailedError as failure:
            self._stop(failure)
            return failure.played

    def _group(self, number: int) -> _Group:
        group = self._groups.get(number)
        if group is None:
            size = self._plan.group_size
            first = number * size
            delivered = sum(i in self._progress.delivered for i in range(first, first + size))
            start = GroupStart(self._progress.starts.get(number))
            group = self._groups[number] = _Group(size - delivered, start)
        return group

    async def _settle(self, index: int, episode: Played, deliver: Deliver) -> None:
        """Deliver an episode, or hold it until its group is complete."""
        self.state.finished += 1
        number = index // self._plan.group_size
        group = self._groups[number]
        group.held.append(episode)
        group.missing -= 1
        if group.missing == 0:
            del self._groups[number]
        reason = self._streak.note(episode)
        if reason is not None:
            self._stop(RunFailedError(reason))
        if self._config.on_fault is not FaultPolicy.DROP_GROUP or group.missing == 0:
            await self._release(group, deliver)

    async def _release(self, group: _Group, deliver: Deliver) -> None:
        held, group.held = group.held, []
        if self._config.on_fault is FaultPolicy.DROP_GROUP and any(map(_is_faulted, held)):
            self.state.dropped.extend(one for member in held for one in member)
            return
        for episode in held:
            self.state.faulted += _is_faulted(episode)
            await self._deliver(episode, deliver)

    async def _deliver(self, episode: Played, deliver: Deliver) -> None:
        state = self.state
        state.undelivered += 1
        state.most_undelivered = max(state.most_undelivered, state.undelivered)
        if state.undelivered >= _MOST_UNDELIVERED and self._failure is None:
            self._brake.hold()
        try:
            await deliver(episode)
        except asyncio.CancelledError:
            self.undelivered.append(episode)
            raise
        except Exception as error:  # noqa: BLE001  # raised again when all episodes have stopped
            self.undelivered.append(episode)
            self._stop(error)
        finally:
            state.undelivered -= 1
            if state.undelivered < _MOST_UNDELIVERED:
                self._brake.release()

    def _stop(self, failure: BaseException) -> None:
        """End the run: no further episode starts, running ones end early."""
        self._failure = self._failure or failure
        self._brake.release()
        self.interrupt.fire()


async def collect(
    env_id: str | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    episodes: int,
    group_size: int = 1,
    concurrency: int = 64,
    config: RolloutConfig | None = None,
    tasks: Sequence[Task] | None = None,
    state: RolloutState | None = None,
) -> AsyncGenerator[Trajectory, None]:
    """Play episodes and yield their records as they finish.

    A record counts as delivered when the loop asks for the next one. Close the generator, or leave
    its `async for` by an exception, and every running episode is cancelled and every environment
    closed. `Run` takes an interrupt, engines of single roles, and an earlier run's progress.

    Args:
        env_id: A registered environment, or a function that builds one.
        engine: Samples the replies; the caller closes it.
        codec: Encodes what the environments say.
        episodes: As in `RunPlan`.
        group_size: As in `RunPlan`.
        concurrency: As in `RunPlan`.
        config: Limits, retries, sampling, seed and the environment's arguments; None takes the
            defaults.
        tasks: As in `RunPlan`.
        state: Filled with the progress.

    Yields:
        One trajectory for each episode, in the order they finish; in an environment with several
        agents one for each role that replied, those of an episode together.

    Raises:
        ConfigurationError: Numbers that do not fit together, or an environment that cannot be
            built with its arguments.
        RunFailedError: The first episodes all failed alike; they were yielded.
    """
    plan = RunPlan(episodes=episodes, group_size=group_size, concurrency=concurrency, tasks=tasks)
    player = Player(engine, codec, config)
    try:
        run = Run(env_id, player, plan, state=state)
        async with contextlib.aclosing(delivered(run)) as trajectories:
            async for trajectory in trajectories:
                yield trajectory
    finally:
        await player.aclose()


async def delivered(run: Run) -> AsyncGenerator[Trajectory, None]:
    """Play a run and yield its trajectories; see `collect`.

    Args:
        run: One that has not been played.

    Raises:
        ConfigurationError: As for `Run.play`.
        RunFailedError: As for `Run.play`.
    """
    ready: asyncio.Queue[tuple[Played, asyncio.Future[None]] | None] = asyncio.Queue()
    waiting: set[asyncio.Future[None]] = set()
    is_closed = False

    async def deliver(episode: Played) -> None:
        if is_closed:
            raise asyncio.CancelledError("nobody takes the trajectories any more")
        taken = asyncio.get_running_loop().create_future()
        waiting.add(taken)
        ready.put_nowait((episode, taken))
        try:
            await taken
        finally:
            waiting.discard(taken)

    async def play() -> None:
        try:
            await run.play(deliver)
        finally:
            ready.put_nowait(None)

    playing = asyncio.create_task(play())
    try:
        while (item := await ready.get()) is not None:
            episode, taken = item
            for trajectory in episode:
                yield trajectory
            if not taken.done():
                taken.set_result(None)
        await playing
    finally:
        is_closed = True
        playing.cancel()
        for taken in tuple(waiting):
            taken.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def _until_done(tasks: Collection[asyncio.Task[None]]) -> None:
    """Wait for tasks, whoever cancels the caller meanwhile."""
    while any(not task.done() for task in tasks):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


def _is_faulted(episode: Played) -> bool:
    """Whether infrastructure ended it; that ends all roles."""
    return any(trajectory.is_faulted for trajectory in episode)
