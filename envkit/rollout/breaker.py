"""Stops a player whose episodes all fault, after waiting for what may come back.

A trainer that gets only faulted episodes makes steps without a gradient, and its curves look calm.
So a player counts the faulted episodes in a row. Beyond a limit it admits new ones only one by one,
with growing pauses, and gives up in the end.
"""

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Final

from envkit.errors import ConfigurationError, FaultKind, RunFailedError
from envkit.ranges import at_least
from envkit.rollout.availability import Outage
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.setting_types import check_fields
from envkit.trajectory.stop import FaultRecord

_LOG: Final = logging.getLogger(__name__)
_SHOWN: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """How many faulted episodes in a row a player accepts, and how long it waits for a good one."""

    episodes: int | None = 32
    """Faulted episodes in a row after which the player waits, or at least twice the concurrency of
    a run: one cause may fault all concurrent episodes. None turns the breaker off."""
    first_wait_s: float = 1.0
    """Seconds until the next episode starts; doubled after each faulted one."""
    longest_wait_s: float = 300.0
    give_up_s: float | None = 900.0
    """Seconds after the first fault of the row at which the player gives up; None waits forever. If
    none of the faults is of a kind that a retry may survive, it gives up as soon as no other
    episode is running, which might succeed."""

    def __post_init__(self) -> None:
        """Validate the numbers.

        Raises:
            ConfigurationError: A value has the wrong type or is out of range.
        """
        check_fields(self, "breaker")
        if self.episodes is not None and self.episodes < 1:
            raise ConfigurationError(
                f"breaker.episodes must be at least 1, or null for no breaker, got {self.episodes}"
            )
        waits = ("first_wait_s", "longest_wait_s", "give_up_s")
        at_least(0, **{f"breaker.{name}": getattr(self, name) for name in waits})


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Permission to play one episode."""

    patience_s: float | None = None
    """Seconds that the episode may wait for an unavailable engine before the player gives up; None
    leaves its own budget."""
    wave: int | None = None
    """Number of the pause after which it was admitted; None if the player was not waiting."""


class Breaker:
    """Counts faulted episodes in a row, and holds new ones back while there are too many."""

    def __init__(self, settings: BreakerSettings) -> None:
        """Start without a fault.

        Args:
            settings: Limits and pauses.
        """
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._concurrency = 0
        self._count = 0
        self._first_at = 0.0
        """Time of the first fault of the row, on the loop's clock."""
        self._may_pass = False
        """Whether a fault of the row is of a kind that a retry may survive."""
        self._last = ""
        self._wave = 0
        """Pauses that ended in a fault."""
        self._pause_s = 0.0
        self._not_before = 0.0
        self._waiting = 0
        self._running = 0
        """Episodes that have started and not ended."""
        self._trying = 0
        """Those of them that started although the player waits."""
        self._changed: asyncio.Future[None] | None = None
        self._failure: str | None = None

    def expect(self, concurrency: int) -> None:
        """Set how many episodes are played at once.

        Args:
            concurrency: At least 1.
        """
        self._concurrency = concurrency

    @property
    def outage(self) -> Outage | None:
        """What the player waits for, to show to a user on any thread; None if it does not wait."""
        if not self._is_open or self._loop is None:
            return None
        return Outage(
            what=f"{self._count} episodes in a row faulted, none succeeded",
            seconds=self._loop.time() - self._first_at,
            waiting=self._waiting,
            attempts=self._wave,
            reason=self._last,
        )

    async def enter(self, interrupt: Interrupt) -> Admission:
        """Wait until an episode may start; `leave` when it has ended.

        Args:
            interrupt: Ends the wait; the episode then ends by itself.

        Raises:
            RunFailedError: No further episode may start.
        """
        self._waiting += 1
        try:
            while self._is_open and interrupt.reason is None:
                now = asyncio.get_running_loop().time()
                if now >= self._ends_at and not self._trying and self._failure is None:
                    self._give_up_late(now)
                if self._failure is not None:
                    raise RunFailedError(self._failure)
                if self._not_before <= now < self._ends_at:
                    return self._try(now)
                is_late = now >= self._ends_at  # then the running trials decide
                until = math.inf if is_late else min(self._not_before, self._ends_at)
                await self._next_change(interrupt, until - now)
        finally:
            self._waiting -= 1
        self._running += 1
        return Admission()

    def leave(self, admission: Admission) -> None:
        """Record that an episode has ended, after `note` if it was played.

        Args:
            admission: Its permission.
        """
        self._running -= 1
        if admission.wave is not None:
            self._trying -= 1
        if self._is_open:
            if not self._running and not self._may_pass and self._failure is None:
                self._give_up_hopeless()  # the last one was aborted, which is not counted
            self._wake()

    def note(self, fault: FaultRecord | None, admission: Admission) -> str | None:
        """Count an episode; return why no further one may start, or None.

        Args:
            fault: Its fault; None if it ended well. An aborted episode says nothing: do not count
                it.
            admission: Its permission.
        """
        if fault is not None:
            return self._note_fault(fault, admission)
        if self._failure is None:
            if self._is_open:
                _LOG.warning("an episode succeeded after %d faulted ones: going on", self._count)
            self._count, self._wave, self._pause_s, self._may_pass = 0, 0, 0.0, False
            self._wake()
        return None

    @property
    def _limit(self) -> int | None:
        least = self._settings.episodes
        return None if least is None else max(least, 2 * self._concurrency)

    @property
    def _is_open(self) -> bool:
        limit = self._limit
        return self._failure is not None or (limit is not None and self._count >= limit)

    @property
    def _ends_at(self) -> float:
        give_up_s = self._settings.give_up_s
        return math.inf if give_up_s is None else self._first_at + give_up_s

    def _note_fault(self, fault: FaultRecord, admission: Admission) -> str | None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        if not self._count:
            self._first_at = now
        self._count += 1
        self._may_pass |= FaultKind(fault.kind).is_retryable
        self._last = f"{fault.where}: {fault.message}"[:_SHOWN]
        if not self._is_open or self._failure is not None:
            return self._failure
        # Broken tasks fault first. The others of a batch may be about to succeed.
        if not self._may_pass and self._running <= 1:
            return self._give_up_hopeless()
        # Long trial episodes are not cut when the time is up: the last one of them decides.
        others = self._trying - (admission.wave is not None)
        if now >= self._ends_at and not others:
            return self._give_up_late(now)
        if not self._wave or admission.wave == self._wave:  # one pause for those that fault at once
            self._pause(now)
        return None

    def _pause(self, now: float) -> None:
        longer_s = 2 * self._pause_s or self._settings.first_wait_s
        self._pause_s = min(longer_s, self._settings.longest_wait_s)
        self._wave += 1
        self._not_before = now + self._pause_s
        _LOG.warning(
            "%d episodes in a row faulted; the next one starts in %.0f s. The last: %s",
            self._count,
            self._pause_s,
            self._last,
        )
        self._wake()

    def _give_up(self, why: str) -> str:
        self._failure = (
            f"{self._count} episodes in a row faulted, {why}, the last at {self._last}; there "
            "would be nothing to train on. Fix the cause, and start again with a new player"
        )
        self._wake()
        return self._failure

    def _give_up_hopeless(self) -> str:
        return self._give_up("and a retry survives none of these faults")

    def _give_up_late(self, now: float) -> str:
        return self._give_up(f"for {now - self._first_at:.0f} s (breaker.give_up_s)")

    def _try(self, now: float) -> Admission:
        """Admit an episode; another one may follow after the same pause, even if this one runs."""
        self._running += 1
        self._trying += 1
        self._not_before = now + self._pause_s
        left_s = self._ends_at - now
        return Admission(patience_s=None if left_s == math.inf else left_s, wave=self._wave)

    async def _next_change(self, interrupt: Interrupt, seconds: float) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        fired = asyncio.ensure_future(interrupt.fired())
        try:
            await asyncio.wait(
                (self._changed, fired),
                timeout=None if seconds == math.inf else seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            fired.cancel()

    def _wake(self) -> None:
        """Let the waiting episodes look again."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)
