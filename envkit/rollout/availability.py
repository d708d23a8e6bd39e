"""Waits for an unavailable engine, so that restarting a server costs no episode.

A circuit breaker, one per engine and event loop. While the engine answers, requests pass. Once a
request finds it unavailable, all requests wait here in order of arrival. One at a time tries the
engine, when the back-off or the server's `Retry-After` allows it. After a success the others follow
in growing batches.
"""

import asyncio
import math
import random
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol
from weakref import WeakValueDictionary

from envkit.errors import EngineFault, Fault
from envkit.rollout.engine import Engine, ProbingEngine
from envkit.rollout.limits import Backoff

LONGEST_HOLD_S: Final = 120.0
"""Upper bound on a server's `Retry-After`, in seconds."""
RAMP_S: Final = 0.1
"""Seconds between two batches of released requests, each twice as large as the previous one."""
_PROBE_S: Final = 30.0


class _Phase(StrEnum):
    UP = "up"
    DOWN = "down"
    RETURNING = "returning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Why episodes wait, for a progress line."""

    what: str
    """What they wait for, such as "engine sglang unavailable"."""
    seconds: float
    """Seconds since the first failure."""
    waiting: int
    """Waiting episodes."""
    attempts: int
    """Failed attempts to go on. Attempts that failed together count once."""
    reason: str
    """The error of the last attempt."""

    def __str__(self) -> str:
        episodes = "episode" if self.waiting == 1 else "episodes"
        return f"{self.what} for {self.seconds:.0f} s, {self.waiting} {episodes} waiting"


class Watched(Protocol):
    """What episodes may wait for: an engine, the workers of a cluster, an end of faults."""

    @property
    def outage(self) -> Outage | None:
        """The current outage, to show to a user; None while nothing waits."""
        ...


@dataclass(frozen=True, slots=True)
class FirstOutage:
    """Several things that episodes may wait for; the first outage is shown."""

    parts: tuple[Watched, ...]

    @property
    def outage(self) -> Outage | None:
        """The first outage of the parts; None if none has one."""
        outages = (one.outage for one in self.parts)
        return next((one for one in outages if one is not None), None)


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Permission to send one request."""

    epoch: int
    """Number of outages before the ticket was issued."""
    is_trial: bool = False
    """Whether it is the first request after a failed attempt."""


class Availability:
    """Whether one engine answers; requests wait here while it does not."""

    def __init__(self, engine: Engine) -> None:
        """Assume that the engine answers. Use `availability_of` instead of calling this."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._phase = _Phase.UP
        self._epoch = 0
        self._waiting: dict[int, asyncio.Future[Ticket]] = {}
        self._numbers = 0
        self._trial: Ticket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._batch = 1
        self._failures = 0
        self._not_before = 0.0
        self._since = 0.0
        self._attempts = 0
        self._reason = ""

    @property
    def is_up(self) -> bool:
        """Whether a request may be sent without waiting."""
        return self._phase is _Phase.UP

    @property
    def outage(self) -> Outage | None:
        """The current outage, to show to a user; None while the engine answers."""
        if self.is_up:
            return None
        return Outage(
            what=f"engine {self._engine.name} unavailable",
            seconds=self._loop.time() - self._since,
            waiting=len(self._waiting) + (self._trial is not None),
            attempts=self._attempts,
            reason=self._reason,
        )

    def admitted(self) -> Ticket | None:
        """Return permission to send a request now; None if unavailable (then `enter`)."""
        return Ticket(self._epoch) if self.is_up else None

    async def enter(self, backoff: Backoff, rng: random.Random) -> Ticket:
        """Wait for permission to send a request; cancel the call to stop waiting.

        Report the outcome with `answered` or `failed`, and `leave` in any case.

        Args:
            backoff: How long to wait after a failed probe.
            rng: Draws its jitter.
        """
        while True:
            ticket = await self._admission()
            if not (ticket.is_trial and isinstance(self._engine, ProbingEngine)):
                return ticket
            if await self._is_back(self._engine, ticket, backoff, rng):
                return ticket

    def answered(self, ticket: Ticket) -> None:
        """Record that the engine answered a request, even if it rejected that request."""
        is_current = ticket.epoch == self._epoch
        if is_current:
            self._failures = 0
        # An engine that shuts down still finishes its running requests: that does not mean it is
        # back.
        if self._phase is _Phase.DOWN and (is_current or self._loop.time() >= self._not_before):
            self._open()
            self._release()

    def failed(
        self, ticket: Ticket, fault: EngineFault, backoff: Backoff, rng: random.Random
    ) -> None:
        """Record that a request or a probe found the engine unavailable."""
        now, hold = self._loop.time(), _hold(fault)
        if ticket.epoch == self._epoch:
            if self.is_up:
                self._since, self._attempts = now, 0
            self._epoch += 1
            self._phase = _Phase.DOWN
            self._reason = str(fault)
            self._attempts += 1
            delay = backoff.delay(min(self._failures, 64), rng)
            self._not_before = now + (delay if hold is None else max(hold, backoff.initial_s))
            self._failures += 1
        # An answer to an older request still says how long the server wants to be left alone.
        elif hold is not None and self._phase is _Phase.DOWN:
            self._not_before = max(self._not_before, now + hold)
        if self._trial is ticket:
            self._trial = None
        if self._phase is _Phase.DOWN:
            self._plan_trial()

    def leave(self, ticket: Ticket) -> None:
        """Record that a request ended. A trial without an outcome passes to the next request."""
        if self._trial is ticket:
            self._trial = None
            if self._phase is _Phase.DOWN:
                self._plan_trial()

    async def _admission(self) -> Ticket:
        ticket = self.admitted()
        if ticket is not None:
            return ticket
        if self._can_try() and not self._waiting:
            return self._new_trial()
        number, self._numbers = self._numbers, self._numbers + 1
        future = self._waiting[number] = self._loop.create_future()
        if self._timer is None and self._phase is _Phase.DOWN:
            self._plan_trial()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(future.result())  # admitted at the same moment
            raise
        finally:
            self._waiting.pop(number, None)

    async def _is_back(
        self, engine: ProbingEngine, ticket: Ticket, backoff: Backoff, rng: random.Random
    ) -> bool:
        """Probe the engine if it supports that; if it fails, the next request tries again."""
        try:
            async with asyncio.timeout(_PROBE_S):
                await engine.probe()
        except asyncio.CancelledError:
            self.leave(ticket)
            raise
        except Exception as error:  # noqa: BLE001  # foreign code; the request itself tells more
            if isinstance(error, EngineFault) and not error.is_unavailable:
                return True
            text = str(error) if isinstance(error, Fault) else type(error).__name__
            hold = error.retry_after_s if isinstance(error, EngineFault) else None
            fault = EngineFault(text, is_unavailable=True, retry_after_s=hold)
            self.failed(ticket, fault, backoff, rng)
            return False
        # Another request may have found the engine unavailable while the probe ran.
        if self._phase is _Phase.DOWN and ticket.epoch == self._epoch:
            self._open()
            self._timer = self._loop.call_later(RAMP_S, self._release)
        return True

    def _can_try(self) -> bool:
        return (
            self._phase is _Phase.DOWN
            and self._trial is None
            and self._loop.time() >= self._not_before
        )

    def _new_trial(self) -> Ticket:
        self._trial = Ticket(self._epoch, is_trial=True)
        return self._trial

    def _plan_trial(self) -> None:
        self._stop_timer()
        if self._trial is None and self._waiting:
            self._timer = self._loop.call_at(self._not_before, self._try_next)

    def _try_next(self) -> None:
        self._timer = None
        if self._phase is _Phase.DOWN and self._trial is None:
            self._admit(is_trial=True)

    def _open(self) -> None:
        self._stop_timer()
        self._phase, self._trial, self._batch = _Phase.RETURNING, None, 2

    def _release(self) -> None:
        self._timer = None
        for _ in range(self._batch):
            if not self._admit(is_trial=False):
                self._phase = _Phase.UP
                return
        self._batch *= 2
        self._timer = self._loop.call_later(RAMP_S, self._release)

    def _admit(self, *, is_trial: bool) -> bool:
        """Release the first waiting request; return False if none waits."""
        while self._waiting:
            future = self._waiting.pop(next(iter(self._waiting)))
            if not future.done():
                future.set_result(self._new_trial() if is_trial else Ticket(self._epoch))
                return True
        return False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _hold(fault: EngineFault) -> float | None:
    """Return the delay that the server requested, bounded; None if it sent no usable one."""
    with suppress(TypeError, ValueError, OverflowError):
        seconds = None if fault.retry_after_s is None else float(fault.retry_after_s)
        if seconds is not None and not math.isnan(seconds):
            return min(max(seconds, 0.0), LONGEST_HOLD_S)
    return None


_known: Final[WeakValueDictionary[tuple[int, int], Availability]] = WeakValueDictionary()


def availability_of(engine: Engine) -> Availability:
    """Return the running loop's shared view of an engine.

    It lives as long as it is referenced.
    """
    # Futures of one event loop cannot be set from another.
    key = (id(engine), id(asyncio.get_running_loop()))
    found = _known.get(key)
    if found is None:
        found = _known[key] = Availability(engine)
    return found
