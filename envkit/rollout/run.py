"""Play many episodes at once: bounded concurrency, groups, bounded delivery, a clean stop.

Episodes run independently: none waits for another's turn. A slot delivers its finished episode
before it starts the next one. While several deliveries are pending, all other episodes pause, so
only a handful of finished trajectories is ever unwritten.
"""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from envkit.errors import ConfigurationError, RunFailedError
from envkit.rollout.collecting import collecting, tend
from envkit.rollout.config import FaultPolicy, RolloutConfig
from envkit.rollout.engine import Engine
from envkit.rollout.host import EnvFactory
from envkit.rollout.interrupt import Brake, Interrupt, until_done
from envkit.rollout.multi_agent import can_resume
from envkit.rollout.plan import Deliver, Played, Progress, RolloutState, RunPlan
from envkit.rollout.player import AnyPlayer, Player
from envkit.rollout.setup import EpisodeSpec, GroupStart
from envkit.rollout.sources import Source, source_of
from envkit.rollout.staleness import Freshness, Stale
from envkit.rollout.tail import ParkedGroup, Stragglers, is_aborted, marked
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.tokens.codec import ChatCodec
from envkit.trajectory.trajectory import STALE_TOKENS, TAIL, TIMES_PARKED, Trajectory

_MAX_UNDELIVERED: Final = 4
"""Pending deliveries at which the other episodes pause."""
_STARTED_AT_ONCE: Final = 16
"""Episodes started before the event loop runs again; thousands would block it for seconds."""


@dataclass(slots=True)
class _Group:
    group_id: str
    seed: int
    task: Task | None
    start: GroupStart
    missing: int
    """Members that have not finished."""
    held: dict[int, Played] = field(default_factory=dict[int, Played])
    """Members that have ended and are waiting for their siblings."""
    times_parked: int = 0

    @property
    def mark(self) -> dict[str, int]:
        """Metadata that says how often the group was parked."""
        return {TIMES_PARKED: self.times_parked} if self.times_parked else {}

    def parked(self) -> ParkedGroup:
        """Return the group for a later run."""
        return ParkedGroup(
            group_id=self.group_id,
            seed=self.seed,
            task=self.task,
            initial_observation_hash=self.start.expected,
            members=dict(self.held),
            times=self.times_parked + 1,
        )


class Run:
    """Plays the episodes of a plan through a player."""

    def __init__(
        self,
        env: str | EnvFactory,
        player: AnyPlayer,
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
            plan: The episodes to play.
            interrupt: Ends the run early: running episodes are delivered as aborted.
            state: Updated with the progress. Groups that an earlier run parked in it come first.
            progress: Progress of an earlier run of the same plan, which this one completes.

        Raises:
            ConfigurationError: The configuration has arguments for a function, or the plan has
                fewer tasks or seeds than the tail may start groups, or its shard cannot be played.
        """
        self._player, self._plan, self._config = player, plan, player.config
        self._source: Source = source_of(env, self._config.env_kwargs)
        self.interrupt = interrupt or Interrupt()
        self.interrupt.brake = self._brake = Brake()
        self.state = state if state is not None else RolloutState()
        self._progress = progress or Progress()
        self.undelivered: list[Played] = []
        """Finished episodes that could not be delivered, set when `play` raises."""
        self._tail = self._config.tail
        limit = self._tail.max_staleness
        self._freshness = None if limit is None else Freshness(limit)
        self._groups: dict[int, _Group] = {}
        self._parked = dict(enumerate(self.state.parked))
        """Groups of an earlier run that have not started yet, by their number in this run."""
        self._parked_count = len(self._parked)
        groups = plan.episodes // plan.group_size
        plan.shard.check(groups, self._tail)
        self._started = self._tail.started(groups)
        plan.check(new_groups=self._started - self._parked_count)
        self._unfinished = dict(self._progress.unfinished)
        self._complete = 0
        """Complete groups of the batch."""
        self._is_full = False
        """Whether the batch is complete, so that stragglers are being stopped."""
        self._ending = self.interrupt
        self._indices: Iterator[int] = iter(())
        self._failure: BaseException | None = None
        self._delivering: set[asyncio.Task[None]] = set()
        """Workers that are delivering a finished episode; these must not be cancelled."""
        self._is_cancelled = False

    async def play(self, deliver: Deliver) -> None:
        """Play all missing episodes.

        Cancel the task to drop running episodes; fire the interrupt to keep them as aborted
        trajectories. In both cases finished episodes are delivered first.

        Args:
            deliver: Called with each finished episode, several concurrently; a slot starts its
                next episode only after the call returned. If it raises, no further episode starts.
                Episodes that the tail stopped come last, marked in their metadata.

        Raises:
            ConfigurationError: The environment cannot be built with its arguments, or the engine's
                server cannot play the run.
            RunFailedError: The first episodes all failed in the same way, too many failed in a
                row, or the tokens of several differ from the full render.
            Exception: The exception of `deliver`; `undelivered` then holds the finished episodes.
        """
        state = self.state
        state.total, state.availability = self._episodes(), self._player.availability
        state.finished = state.started = len(self._progress.delivered)
        # The tail stops stragglers by this one, without an interrupt of the whole run.
        self._ending = self.interrupt.child()
        try:
            await self._take_complete(deliver)
            await self._play_missing(deliver)
        finally:
            await self.interrupt.discard(self._ending)
            state.parked = list(self._parked.values())  # started groups now belong to this run
        for group in tuple(self._groups.values()):  # incomplete: the run or its tail was stopped
            await (self._set_aside if self._is_full else self._release)(group, deliver)
        if self._failure is not None:
            raise self._failure

    async def _play_missing(self, deliver: Deliver) -> None:
        plan = self._plan
        missing = 0 if self._is_full else self._find_missing()
        sessions = await self._player.max_sessions(self._source)
        slots = min(plan.concurrency, missing)
        slots = slots if sessions is None else min(slots, sessions)
        if missing:
            self._player.expect(slots)
            await self._player.check_engines(self._ending)
            with collecting(missing, at_once=slots):
                await self._play_all(slots, deliver)

    def _episodes(self) -> int:
        """Return how many episodes the batch has."""
        size = self._plan.group_size
        needed = self._tail.needed(self._plan.episodes // size)
        return len(self._plan.shard.groups(needed)) * size

    def _find_missing(self) -> int:
        """Prepare to draw the indices of the episodes to play, in order; return their number."""
        size = self._plan.group_size
        groups = self._plan.shard.groups(self._started)
        done = self._progress.delivered | {
            number * size + member
            for number, parked in self._parked.items()
            for member, played in parked.members.items()
            if not is_aborted(played)
        }
        # A generator: a run may have more episodes than fit in memory.
        self._indices = (
            index
            for group in groups
            for index in range(group * size, (group + 1) * size)
            if index not in done
        )
        return len(groups) * size - sum(index // size in groups for index in done)

    async def _take_complete(self, deliver: Deliver) -> None:
        """Count the groups that an earlier process delivered; deliver those that were parked."""
        size = self._plan.group_size
        members = Counter(index // size for index in self._progress.delivered)
        self._complete = sum(
            number < self._started and count == size for number, count in members.items()
        )
        self._is_full = self._tail.cuts and self._complete * size >= self._episodes()
        for number in tuple(self._parked):
            if not self._is_full and self._parked[number].is_complete(size):
                await self._end(number, self._group(number), deliver)

    async def _play_all(self, slots: int, deliver: Deliver) -> None:
        workers: list[asyncio.Task[None]] = []
        try:
            for _ in range(slots):
                workers.append(asyncio.create_task(self._work(deliver)))
                if len(workers) % _STARTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            ended, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in ended:
                worker.result()
        except BaseException:
            self._is_cancelled = True
            for worker in workers:
                # A finished episode is delivered even now: only its slot has it.
                if worker not in self._delivering:
                    worker.cancel()
            # A second cancellation must not leave episodes behind that still use the player.
            await until_done(workers)
            raise
        finally:
            await self.interrupt.close()

    async def _work(self, deliver: Deliver) -> None:
        """Play and deliver one episode after another, even if the run is cancelled meanwhile."""
        this = asyncio.current_task()
        assert this is not None
        while self._ending.reason is None and not self._is_cancelled:
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
            # Before anything is awaited: a cancellation from here on must not drop the episode.
            self._delivering.add(this)
            try:
                await self._settle(index, episode, deliver)
            finally:
                self._delivering.discard(this)

    async def _play(self, index: int) -> Played:
        number, member = divmod(index, self._plan.group_size)
        group = self._group(number)
        earlier = self._unfinished.pop(index, None)
        if earlier is not None:
            resumed = await self._attempt(
                lambda: self._player.resume(
                    earlier, self._source, member=member, interrupt=self._ending
                )
            )
            if not _is_faulted(resumed):
                return resumed  # else start over: masking long episodes would bias the run
        place = {"group": number, "member": member}
        spec = EpisodeSpec(
            env_id=self._source.env_id,
            seed=group.seed,
            task=None if group.task is None else dict(group.task),
            group_id=group.group_id,
            group_start=group.start,
            member=member,
            metadata={**self._plan.metadata, **place, **group.mark},
        )
        episode = await self._play_spec(spec)
        if _is_faulted(episode) and self._config.on_fault is FaultPolicy.RETRY:
            self.state.retried += 1
            # A new id: step keys and the engine's session contain the old one.
            episode = await self._play_spec(replace(spec, episode_id=uuid.uuid4().hex))
        return episode

    async def _play_spec(self, spec: EpisodeSpec) -> Played:
        return await self._attempt(
            lambda: self._player.play(self._source, spec, interrupt=self._ending)
        )

    async def _attempt(self, play: Callable[[], Awaitable[Played]]) -> Played:
        """Play; on a `RunFailedError`, stop the run and return its last episode."""
        try:
            return await play()
        except RunFailedError as failure:
            self._stop(failure)
            return failure.played

    def _group(self, number: int) -> _Group:
        group = self._groups.get(number)
        if group is None:
            group = self._adopted(number) if number in self._parked else self._new(number)
            self._groups[number] = group
        return group

    def _new(self, number: int) -> _Group:
        plan, place = self._plan, number - self._parked_count
        task = None if plan.tasks is None else plan.tasks[place]
        seed = None if plan.seeds is None else plan.seeds[place]
        first = number * plan.group_size
        indices = range(first, first + plan.group_size)
        # Runs of parts of a task file have the same places, so the task is part of the id.
        listed = "" if task is None and seed is None else f"-{derive_seed(task, seed):08x}"
        return _Group(
            group_id=f"{self._config.seed}-{place}{listed}",
            seed=derive_seed("group", self._config.seed, place) if seed is None else seed,
            task=task,
            start=GroupStart(self._progress.starts.get(number)),
            missing=sum(index not in self._progress.delivered for index in indices),
        )

    def _adopted(self, number: int) -> _Group:
        """Return a parked group; its aborted members will be resumed."""
        parked, size = self._parked.pop(number), self._plan.group_size
        group = _Group(
            group_id=parked.group_id,
            seed=parked.seed,
            task=parked.task,
            start=GroupStart(parked.initial_observation_hash),
            missing=size,
            times_parked=parked.times,
        )
        for member, played in parked.members.items():
            place = {"group": number, "member": member, **group.mark}
            known = tuple(marked(one, place) for one in played)
            if not is_aborted(known):
                group.held[member] = known
                group.missing -= 1
            elif can_resume(known[0]):
                self._unfinished[number * size + member] = known[0]
        return group

    async def _settle(self, index: int, episode: Played, deliver: Deliver) -> None:
        """Deliver an episode, or hold it until its group is complete."""
        number, member = divmod(index, self._plan.group_size)
        group = self._groups[number]
        # The batch was completed while this episode ran, and its group is incomplete.
        if self._is_full:
            if not _is_faulted(episode):
                group.held[member] = episode
            return
        # With a tail, only complete groups count.
        self.state.finished += not self._tail.cuts
        group.held[member] = episode
        group.missing -= 1
        if group.missing == 0:
            await self._end(number, group, deliver)
        elif not self._holds_groups():
            self._freshen(group)
            await self._release(group, deliver)

    async def _end(self, number: int, group: _Group, deliver: Deliver) -> None:
        """Release a group whose members have all ended, which may complete the batch."""
        del self._groups[number]
        self._freshen(group)
        is_short = self._is_dropped(group) or any(map(is_aborted, group.held.values()))
        self._complete += not is_short
        if self._tail.cuts and self._complete * self._plan.group_size >= self._episodes():
            self._is_full = True
            self._ending.fire()
            # A parked straggler still needs its grace period, for a state that can be resumed.
            if self._tail.then is Stragglers.DROP:
                self._ending.hurry()
        await self._release(group, deliver)

    async def _release(self, group: _Group, deliver: Deliver) -> None:
        is_dropped, held, group.held = self._is_dropped(group), group.held, {}
        self.state.finished += len(held) if self._tail.cuts else 0
        if is_dropped:
            self.state.dropped.extend(one for member in held.values() for one in member)
            return
        for episode in held.values():
            self.state.faulted += _is_faulted(episode)
            await self._deliver(episode, deliver)

    def _is_dropped(self, group: _Group) -> bool:
        """Whether a fault or stale tokens of one member drop the whole group."""
        if self._config.on_fault is FaultPolicy.DROP_GROUP and any(
            map(_is_faulted, group.held.values())
        ):
            return True
        return self._tail.stale is Stale.DROP and any(
            STALE_TOKENS in one.metadata for played in group.held.values() for one in played
        )

    def _holds_groups(self) -> bool:
        """Whether a group is delivered only as a whole."""
        drops_stale = self._freshness is not None and self._tail.stale is Stale.DROP
        drops_faulted = self._config.on_fault is FaultPolicy.DROP_GROUP
        return self._tail.cuts or drops_faulted or drops_stale

    def _freshen(self, group: _Group) -> None:
        """Mask the tokens that outdated weights sampled."""
        if self._freshness is None:
            return
        try:
            for one in (one for played in group.held.values() for one in played):
                self._freshness.note(one)
        except ConfigurationError as error:
            self._stop(error)
            return
        for member, played in group.held.items():
            group.held[member] = tuple(map(self._freshness.masked, played))

    async def _set_aside(self, group: _Group, deliver: Deliver) -> None:
        """Keep a group that the tail stopped, and deliver its episodes with a mark."""
        if self._tail.then is Stragglers.PARK:
            self.state.parked.append(group.parked())
        else:
            self.state.cut.extend(one for member in group.held.values() for one in member)
        for episode in group.held.values():
            cut = tuple(marked(one, {TAIL: self._tail.then.value}) for one in episode)
            await self._deliver(cut, deliver)

    async def _deliver(self, episode: Played, deliver: Deliver) -> None:
        state = self.state
        state.undelivered += 1
        state.most_undelivered = max(state.most_undelivered, state.undelivered)
        # After a failure nothing is held, so that running episodes end.
        if state.undelivered >= _MAX_UNDELIVERED and self._failure is None:
            self._brake.hold()
        try:
            await deliver(episode)
        except asyncio.CancelledError:
            self.undelivered.append(episode)
            raise
        except Exception as error:  # noqa: BLE001  # re-raised once all episodes have stopped
            self.undelivered.append(episode)
            self._stop(error)
        finally:
            state.undelivered -= 1
            if state.undelivered < _MAX_UNDELIVERED:
                self._brake.release()

    def _stop(self, failure: BaseException) -> None:
        """End the run: no further episodes start, and running ones end early."""
        # The first failure is the cause; later ones follow from it.
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

    A record is delivered once the loop asks for the next one. Closing the generator, or leaving
    its `async for` with an exception, cancels all running episodes and closes all environments.
    `Run` also accepts an interrupt, engines per role, and an earlier run's progress.

    Args:
        env_id: A registered environment, or a function that builds one.
        engine: Samples the replies; the caller closes it.
        codec: Encodes the environments' messages.
        episodes: As in `RunPlan`.
        group_size: As in `RunPlan`.
        concurrency: As in `RunPlan`.
        config: Limits, retries, sampling, seed and the environment's arguments; None uses the
            defaults.
        tasks: As in `RunPlan`.
        state: Updated with the progress. Groups that `config.tail` parked in it come first.

    Yields:
        One trajectory per episode of the batch, in the order they finish. With several agents, one
        per role that replied; those of an episode come together.

    Raises:
        ConfigurationError: The plan is invalid, or the environment cannot be built with its
            arguments.
        RunFailedError: The first episodes all failed in the same way; they were yielded.
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
        if TAIL in episode[0].metadata:
            return
        if is_closed:
            raise asyncio.CancelledError("the generator is closed")
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


def _is_faulted(episode: Played) -> bool:
    """Whether an infrastructure fault ended the episode, which ends all its roles."""
    return any(trajectory.is_faulted for trajectory in episode)
