"""The actors of a player: their state, their episodes, and recovery of lost ones.

A call to an actor that Ray is restarting fails at once. A worker is therefore down from the first
lost call until it answers `start` again, and calls go to workers that are up. Ray never repeats a
call (`max_task_retries=0`), so no environment takes a step twice.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from envkit.errors import ConfigurationError, EnvFault, FaultKind, describe
from envkit.rollout.availability import Outage
from envkit_ray.cluster import Cluster
from envkit_ray.greeting import Hello, check_hello, check_import, unusable
from envkit_ray.line import WorkerChannel, WorkerLostError
from envkit_ray.messages import Answer
from envkit_ray.options import RayOptions
from envkit_ray.worker import NotStartedError, Worker

T = TypeVar("T")

_AT_ONCE: Final = 1000
"""Concurrent calls of an actor, for any number of episodes."""
_GROUPS: Final = 4096
"""Maximum groups whose worker is remembered."""
_AHEAD: Final = 4
"""Episodes by which a group's worker may exceed the least busy one."""
_RETRY_S: Final = 0.5
"""Seconds between attempts to reach a worker that is down."""
_LOOK_S: Final = 5.0
"""Seconds between checks of idle workers and their engines."""
_FOLLOW_S: Final = 0.02
"""Seconds between checks of the value that workers follow."""
_CLOSE_S: Final = 10.0
_LOST: Final = (
    "RayActorError",
    "NodeDiedError",
    "ObjectLostError",
    "WorkerCrashedError",
    "OutOfMemoryError",
    "TaskCancelledError",
)
"""Ray exceptions, including subclasses, that mean a call will never be answered."""


@dataclass(kw_only=True, eq=False)
class Member:
    """One worker."""

    actor: Any
    """Ray's handle; None before the first."""
    load: int = 0
    """Episodes that it plays."""
    lives: int = 0
    """Number of losses. Late failures of an earlier incarnation are ignored."""
    line: WorkerChannel | None = None
    """Channel to its current incarnation; None while it is down."""
    hello: Hello | None = None
    """Its process; None before the first."""
    outage: Outage | None = None
    """Outage of its engine at the last check."""

    @property
    def is_up(self) -> bool:
        """Whether it answers, as last observed."""
        return self.line is not None


class Workers:
    """Starts a player's actors, assigns them to episodes and revives them."""

    def __init__(
        self,
        count: int,
        options: RayOptions,
        recipe: bytes,
        *,
        keeps_features: bool,
        follows: Callable[[], object] | None,
    ) -> None:
        """Start nothing yet.

        Args:
            count: Number of actors.
            options: Where they run and what they reserve.
            recipe: As for `Worker`.
            keeps_features: As for `Worker`.
            follows: As for `RayPlayer`.
        """
        self._follows = follows
        self._options, self._recipe, self._keeps_features = options, recipe, keeps_features
        self.members = [Member(actor=None) for _ in range(count)]
        self.lost_calls = 0
        """Calls lost with their worker."""
        self._cluster: Cluster | None = None
        self._lost: tuple[type[Exception], ...] = ()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._groups: OrderedDict[str, Member] = OrderedDict()
        self._waiting = 0
        self._down_since = 0.0
        self._reason = ""

    @property
    def outage(self) -> Outage | None:
        """Why nothing is played: all workers are down, or a worker's engine is unavailable."""
        if any(one.is_up for one in self.members):
            return next((one.outage for one in self.members if one.is_up and one.outage), None)
        return Outage(
            what="Ray workers unavailable",
            seconds=time.monotonic() - self._down_since if self._down_since else 0.0,
            waiting=self._waiting,
            attempts=sum(one.lives for one in self.members),
            reason=self._reason,
        )

    async def start(self) -> None:
        """Join the cluster and start all workers.

        Raises:
            MissingDependencyError: Ray is not installed.
            ConfigurationError: No cluster answers, the workers do not fit or start in time, or one
                of them cannot play; the message says why.
        """
        cluster = await asyncio.to_thread(Cluster.join, self._options.address)
        self._cluster = cluster
        found = (getattr(cluster.ray.exceptions, name) for name in _LOST)
        self._lost = (NotStartedError, *found)
        greetings = {asyncio.create_task(self._first_hello(one)) for one in self.members}
        try:
            done, late = await asyncio.wait(
                greetings,
                timeout=self._options.start_timeout_s,
                return_when=asyncio.FIRST_EXCEPTION,
            )
            for one in done:
                one.result()
            if late:
                raise self._late(len(done))
        except BaseException:
            await _cancel(greetings)
            await self.close()
            raise
        self._spawn(self._watch_health())
        if self._follows is not None:
            self._spawn(self._notify_followers(self._follows))

    async def ask(self, member: Member, name: str, order: bytes) -> Answer:
        """Send an order to a running worker.

        Raises:
            WorkerLostError: The worker was lost before it answered.
        """
        if member.line is None:
            raise WorkerLostError(self._reason)
        return await member.line.ask(name, order)

    async def call(self, member: Member, method: str, *arguments: object) -> Any:  # noqa: ANN401  # as the method
        """Call a worker's method and return its answer.

        Raises:
            WorkerLostError: The worker was lost before it answered.
        """
        life = member.lives
        try:
            return await getattr(member.actor, method).remote(*arguments)
        except self._lost as error:
            self._note_lost(member, life, error)
            raise WorkerLostError(describe(error)) from error

    def tell(self, member: Member, method: str, *arguments: object) -> None:
        """Call a method without waiting for its answer; skip a worker that is down."""
        if member.is_up:
            getattr(member.actor, method).remote(*arguments)

    async def lend(self, group_id: str | None) -> Member:
        """Return a worker for an episode, waiting while all are down; `give_back` ends it.

        Args:
            group_id: Members of a group go to the same worker unless it is much busier than the
                others: they share images and the engine's prefix.

        Raises:
            EnvFault: No worker recovered in time.
        """
        up = await self.up()
        best = min(up, key=lambda one: one.load)
        if group_id is not None:
            usual = self._groups.setdefault(group_id, best)
            self._groups.move_to_end(group_id)
            if len(self._groups) > _GROUPS:
                self._groups.popitem(last=False)
            if usual.is_up and usual.load <= best.load + max(_AHEAD, best.load // 4):
                best = usual
        best.load += 1
        return best

    async def up(self) -> list[Member]:
        """Return the workers that answer, waiting while there is none.

        Raises:
            EnvFault: No worker recovered in time.
        """
        if not any(one.is_up for one in self.members):
            await self._any_up()
        return [one for one in self.members if one.is_up]

    def give_back(self, member: Member) -> None:
        """End an episode's use of a worker."""
        member.load -= 1

    async def close(self) -> None:
        """Close every worker, in bounded time, and leave the cluster; safe to call twice."""
        await _cancel(self._tasks)
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        closing = [self.call(one, "close") for one in self.members if one.is_up]
        if closing:
            await asyncio.wait(map(asyncio.ensure_future, map(_quietly, closing)), timeout=_CLOSE_S)
        for one in self.members:
            one.line = None
            if one.actor is not None:
                cluster.ray.kill(one.actor)
        await asyncio.to_thread(cluster.leave)

    async def _first_hello(self, member: Member) -> None:
        """Start a worker; restart it if it dies meanwhile."""
        while not member.is_up:
            hello = await self._hello(member)
            if hello is None:
                await asyncio.sleep(_RETRY_S)
                continue
            check_hello(hello)
            self._bring_up(member, hello)

    async def _revive(self, member: Member) -> None:
        """Wait until a lost worker answers again, which it may do on another node."""
        while not member.is_up:
            await asyncio.sleep(_RETRY_S)
            hello = await self._hello(member)
            if hello is None:
                continue
            try:
                check_hello(hello)
            except ConfigurationError as error:
                self._reason = str(error)
                continue
            self._bring_up(member, hello)
        async with self._changed:
            self._changed.notify_all()

    def _bring_up(self, member: Member, hello: Hello) -> None:
        """Put an answering worker into service."""
        exchange = partial(self.call, member, "exchange")
        member.hello, member.line = hello, WorkerChannel(exchange, self._spawn)

    async def _hello(self, member: Member) -> Hello | None:
        """Ask a worker whether it can play; None if it is gone."""
        if member.actor is None:
            member.actor = self._new_actor()
        assert self._cluster is not None
        errors = self._cluster.ray.exceptions
        try:
            value = None if self._follows is None else self._follows()
            return await member.actor.start.remote(value)
        except errors.ActorUnavailableError as error:
            self._reason = _first_line(error)
        except self._lost as error:
            self._reason = _first_line(error)
            check_import(str(error))
            self._cluster.ray.kill(member.actor)  # Ray abandoned it; it must not come back too
            member.actor = None
        except Exception as error:  # a class that cannot be loaded raises what its import raised
            raise unusable(describe(error)) from error
        return None

    def _new_actor(self) -> Any:  # noqa: ANN401  # Ray's handle
        cluster, options = self._cluster, self._options
        assert cluster is not None
        cpus = cluster.default_cpus if options.num_cpus is None else options.num_cpus
        made = cluster.ray.remote(Worker).options(
            num_cpus=cpus,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=_AT_ONCE,
            scheduling_strategy="SPREAD",
            runtime_env=dict(options.runtime_env) or None,
        )
        return made.remote(self._recipe, keeps_features=self._keeps_features)

    def _note_lost(self, member: Member, life: int, error: Exception) -> None:
        self._reason = _first_line(error)
        if member.line is None or member.lives != life or self._cluster is None:
            return
        line, member.line = member.line, None
        line.lose(WorkerLostError(self._reason))
        member.lives += 1
        if not any(one.is_up for one in self.members):
            self._down_since = time.monotonic()
        self._spawn(self._revive(member))

    async def _any_up(self) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(self._options.start_timeout_s), self._changed:
                await self._changed.wait_for(lambda: any(one.is_up for one in self.members))
        except TimeoutError as error:
            raise EnvFault(
                f"all {len(self.members)} Ray workers are lost and none recovered in "
                f"{self._options.start_timeout_s:g} s (player_options.start_timeout_s): "
                f"{self._reason}",
                kind=FaultKind.CRASHED,
            ) from error
        finally:
            self._waiting -= 1

    async def _watch_health(self) -> None:
        """Detect unavailable engines and idle workers that die."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for one in self.members:
                if one.is_up:
                    one.outage = await _quietly(self.call(one, "outage"))

    async def _notify_followers(self, follows: Callable[[], object]) -> None:
        """Notify the workers when the value that they follow changes."""
        told = follows()
        while True:
            await asyncio.sleep(_FOLLOW_S)
            value = follows()
            if value != told:
                told = value
                for one in self.members:
                    self.tell(one, "follow", value)

    def _late(self, started: int) -> ConfigurationError:
        assert self._cluster is not None
        cpus = self._options.num_cpus
        each = self._cluster.default_cpus if cpus is None else cpus
        reason = f" The last error was: {self._reason}." if self._reason else ""
        return ConfigurationError(
            f"{started} of {len(self.members)} Ray workers started in "
            f"{self._options.start_timeout_s:g} s. Each reserves {each:g} CPUs, and "
            f"{self._cluster.resources()}.{reason} Lower workers, or set player_options.num_cpus=0 "
            "if they may share CPUs that are reserved; raise player_options.start_timeout_s if "
            "they are just slow"
        )

    def _spawn(self, work: Any) -> None:  # noqa: ANN401  # a coroutine
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _first_line(error: BaseException) -> str:
    return describe(error).splitlines()[0][:300]


async def _quietly(call: Awaitable[T]) -> T | None:
    try:
        return await call
    except Exception:  # noqa: BLE001  # whatever failed, the worker is checked and closed elsewhere
        return None


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
