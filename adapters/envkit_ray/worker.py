"""The actor: one `Player` in a process of the cluster."""

import asyncio
import inspect
import os
import platform
from collections import Counter
from contextlib import ExitStack
from typing import Final, cast

from envkit.errors import ConfigurationError, EnvFault, EnvkitError, RunFailedError, describe
from envkit.rollout.availability import Outage
from envkit.rollout.collecting import collecting
from envkit.rollout.host import EnvFactory
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.player import Player
from envkit.rollout.sources import EnvSource, FunctionSource, Source
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit_ray import messages
from envkit_ray.greeting import Hello, version

_BEGUN_AT_ONCE: Final = 16
"""Maximum concurrent episode starts, which may block the event loop."""
_AT_ONCE: Final = 256
"""Episodes that the garbage collector is tuned for at first; with more, the number doubles."""
_MANY: Final = 1 << 30
"""Assumed episodes of a worker, whose number is unknown."""
_GATHER_S: Final = 0.1
"""Seconds that a finished episode waits for others while the worker plays more."""
_MOST_ANSWERS: Final = 16
"""Maximum answers per call; more would block the driver."""


class Outbox:
    """Collects answers, and passes them to the driver's latest call, several at a time.

    A call of Ray costs the driver 0.75 ms of CPU time and the worker 1.2 ms, however little it
    carries. An episode of two turns costs 15 ms, so a call for each would be a tenth of it.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._parcels: list[messages.Parcel] = []
        self._waiting: asyncio.Future[tuple[messages.Parcel, ...]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    async def take(self) -> tuple[messages.Parcel, ...]:
        """Return answers as soon as they are due; an earlier waiting call returns at once."""
        self._release()
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        if self._is_due:
            self._release()
        return await waiting

    def add(self, parcel: messages.Parcel, *, is_last: bool) -> None:
        """Add an answer.

        Args:
            parcel: The answer.
            is_last: Whether no other is expected, so that waiting gains nothing.
        """
        self._parcels.append(parcel)
        if is_last or len(self._parcels) >= _MOST_ANSWERS:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._send)

    def clear(self) -> None:
        """Drop all answers: the driver has abandoned their orders."""
        self._parcels.clear()
        self._end_timer()
        self._release()

    def _send(self) -> None:
        """Deliver pending answers, now or to the next call."""
        self._end_timer()
        self._is_due = True
        self._release()

    def _release(self) -> None:
        """Complete the driver's waiting call, if any, with the pending answers."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return
        waiting.set_result(tuple(self._parcels))
        self._parcels.clear()
        self._end_timer()

    def _end_timer(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class NotStartedError(Exception):
    """Ray has restarted the actor's process since `start`: its state is lost."""


class Worker:
    """An asynchronous actor: all its methods run on one event loop."""

    def __init__(self, recipe: bytes, *, keeps_features: bool) -> None:
        """Store the recipe; `start` creates the player and can report failures.

        Args:
            recipe: A pickled `MakePlayer`.
            keeps_features: Whether trajectories keep the processor's tensors, which are 50 to 100
                times as large as the rest.
        """
        self._recipe, self._keeps_features = recipe, keeps_features
        self._player: Player | None = None
        self._starting = asyncio.Lock()
        self._sources: dict[bytes, Source] = {}
        self._interrupts: dict[str, Interrupt] = {}
        self._users: Counter[str] = Counter()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._outbox = Outbox()
        self._held = ExitStack()
        self._collected_for = 0
        """Number of episodes the garbage collector is tuned for."""

    async def start(self, value: object) -> Hello:
        """Create the player if needed, and cancel attempts left by a lost connection.

        Args:
            value: As for `follow`.
        """
        self.drop(tuple(self._running))
        self._outbox.clear()
        error: EnvkitError | None = None
        async with self._starting:
            if self._player is None:
                try:
                    self._player = await _checked(await _made(self._recipe))
                    self._tune_collections(_AT_ONCE)
                except EnvkitError as caught:
                    error = caught
                except Exception as caught:  # noqa: BLE001  # foreign code; the driver reports it
                    error = ConfigurationError(f"the worker's player fails: {describe(caught)}")
        await self.follow(value)
        return Hello(version=version(), host=platform.node(), pid=os.getpid(), error=error)

    async def exchange(self, orders: tuple[messages.Sent, ...]) -> tuple[messages.Parcel, ...]:
        """Start episodes, and return answers to these or older orders as soon as there are any.

        Only the latest call waits; the others return at once.

        Raises:
            NotStartedError: The process was restarted.
        """
        self._ready()
        for number, (name, data) in enumerate(orders, 1):
            task = asyncio.create_task(self._work(name, data))
            self._running[name] = task
            if len(self._running) > self._collected_for:
                # Else every few hundred more episodes are a full collection, which blocks the
                # event loop for the longer the more there are.
                self._tune_collections(self._collected_for)
            if number % _BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)
        return await self._outbox.take()

    async def max_sessions(self, source: messages.Packed) -> int | EnvkitError | None:
        """Return how many instances this process may have, or why it cannot have any."""
        try:
            factory = cast("Source", self._factory(source))
            return await self._ready().max_sessions(factory)
        except EnvkitError as error:
            return error

    async def roles_of(self, source: messages.Packed) -> tuple[str, ...] | EnvkitError:
        """Return the roles of an environment, or why it cannot be built."""
        try:
            return await self._ready().roles_of(self._factory(source))
        except EnvkitError as error:
            return error

    async def stop(self, interrupt: str, reason: StopReason, grace_s: float) -> None:
        """Fire an interrupt; its episodes return their turns so far. May be repeated.

        Args:
            interrupt: Its name in the orders.
            reason: Reason passed to the interrupt.
            grace_s: As for `Interrupt`; 0 cuts running calls at once.
        """
        known = self._interrupts.get(interrupt)
        if known is not None:
            known.fire(reason)
            if grace_s == 0 and known.grace_s:
                known.hurry()

    async def cancel(self, name: str) -> None:
        """Cancel an attempt without a waiter."""
        self.drop((name,))

    async def follow(self, value: object) -> None:
        """Pass a value of the trainer's process to the player's own `follow`, if it has one."""
        take = getattr(self._player, "follow", None)
        if take is not None:
            take(value)

    async def outage(self) -> Outage | None:
        """Return the engine's outage; None while it answers."""
        return self._ready().availability.outage

    async def close(self) -> None:
        """Close environments and engine."""
        self.drop(tuple(self._running))
        self._held.close()
        self._collected_for = 0
        player, self._player = self._player, None
        if player is not None:
            await player.aclose()
            await player.engine.aclose()

    def drop(self, names: tuple[str, ...]) -> None:
        """Cancel attempts."""
        for name in names:
            if name in self._running:
                self._running[name].cancel()

    async def end_session(self, episode_id: str) -> None:
        """End an engine's session that was kept open for forks."""
        if self._player is not None:
            await self._player.end_session(episode_id)

    async def _work(self, name: str, data: bytes) -> None:
        """Play an order and pack its answer; a cancelled one has none."""
        try:
            parts = messages.packed(await self._answer(data))
        except Exception as error:  # noqa: BLE001  # whatever a record's own data raises
            fault = EnvFault(f"the worker cannot send the episode: {describe(error)}")
            parts = messages.packed(messages.Answer(error=fault))
        finally:
            self._running.pop(name, None)
        self._outbox.add((name, *parts), is_last=not self._running)

    async def _answer(self, data: bytes) -> messages.Answer:
        """Return an order's result; the player's exception is part of it."""
        try:
            order: messages.Order = messages.loaded(data, "the episode's order")
        except ConfigurationError as error:
            return messages.Answer(error=error)
        return await self._play(order)

    async def _play(self, order: messages.Order) -> messages.Answer:
        spec, interrupt = order.spec, self._enter(order)
        played: tuple[Trajectory, ...] = ()
        failure: EnvkitError | None = None
        try:
            player, factory = self._ready(), self._factory(order.source)
            played = await player.play_spec(factory, spec, interrupt)
        except RunFailedError as error:
            played, failure = error.played, RunFailedError(str(error))
        except EnvkitError as error:
            failure = error
        finally:
            self._leave(order.interrupt)
        if not self._keeps_features:
            played = tuple(map(messages.without_features, played))
        start = None if spec.group_start is None else spec.group_start.expected
        return messages.Answer(
            played=played, error=failure, snapshots=spec.snapshots or {}, start=start
        )

    def _tune_collections(self, more: int) -> None:
        """Tune the garbage collector for more episodes at once."""
        self._held.enter_context(collecting(_MANY, at_once=more))
        self._collected_for += more

    def _ready(self) -> Player:
        if self._player is None:
            raise NotStartedError
        return self._player

    def _factory(self, source: messages.Packed) -> EnvFactory:
        """Return the unpickled factory, cached by its bytes."""
        if isinstance(source, EnvSource):
            return source
        known = self._sources.get(source)
        if known is None:
            known = messages.loaded(source, "the environment's factory")
            if not isinstance(known, FunctionSource):  # its environments are not kept
                return cast("EnvFactory", known)
            self._sources[source] = known
        return known

    def _enter(self, order: messages.Order) -> Interrupt:
        interrupt = self._interrupts.setdefault(order.interrupt, Interrupt())
        self._users[order.interrupt] += 1
        if order.reason is not None:
            interrupt.fire(order.reason)
        return interrupt

    def _leave(self, name: str) -> None:
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name], self._interrupts[name]


async def _made(recipe: bytes) -> Player:
    make: messages.MakePlayer = messages.loaded(recipe, "what makes the player")
    made = make()
    return await made if inspect.isawaitable(made) else made


async def _checked(player: Player) -> Player:
    """Return the player once its engine checks pass; otherwise close it."""
    try:
        await player.check_engines(Interrupt())
    except BaseException:
        await player.aclose()
        await player.engine.aclose()
        raise
    return player
