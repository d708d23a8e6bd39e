"""Which of a pool's threads compute and which only wait, told from the CPU time that they use.

Python runs one thread at a time. Where many compute at once, each of them, and the event loop among
them, waits for all the others at every turn, so a pool must not answer a backlog of computations
with more threads. Threads that wait for a socket or a lock cost nothing, and need company.
"""

import threading
import time
from typing import Final

_YOUNG_S: Final = 0.02
"""Of a call that is younger nobody can tell what it does; it is taken for one like those before."""
_WINDOW_S: Final = 0.05
"""How long CPU time is added up: a thread that computes gets its turn in it, even beside others."""
_COMPUTED_S: Final = 0.001
"""CPU time in a window that makes a call one that computes."""
_MEMORY: Final = 0.2
"""Weight of the latest call among those that the next ones are likened to."""


class _Running:
    """One call that a thread is in."""

    __slots__ = ("_clock", "_computed", "_first_cpu", "_marked_at", "_marked_cpu", "_started_at")

    def __init__(self, clock: int, now: float) -> None:
        self._clock = clock
        self._first_cpu = self._marked_cpu = time.clock_gettime(clock)
        self._started_at = self._marked_at = now
        self._computed = False

    @property
    def used(self) -> float:
        """CPU time of the call so far, in seconds."""
        return time.clock_gettime(self._clock) - self._first_cpu

    def waits(self, now: float, *, is_usual: bool) -> bool:
        """Return whether it waits; `is_usual` says so of the calls before it."""
        if now - self._started_at < _YOUNG_S:
            return is_usual
        cpu = self._first_cpu + self.used
        has_computed = cpu - self._marked_cpu >= _COMPUTED_S
        waits = not (has_computed or self._computed)
        if now - self._marked_at >= _WINDOW_S:
            self._computed, self._marked_cpu, self._marked_at = has_computed, cpu, now
        return waits


class Gauge:
    """Counts the calls of a pool that only wait."""

    def __init__(self) -> None:
        # Without a lock: each access is one operation of a dict, and a thread that lost the
        # interpreter while it held a lock would keep the event loop waiting.
        self._running: dict[int, _Running] = {}
        self._usual_cpu = _COMPUTED_S
        """CPU time of a call, in seconds: a mean in which the latest weigh most."""

    @property
    def can_tell(self) -> bool:
        """Whether the platform tells the CPU time of other threads; macOS and Windows don't."""
        return hasattr(time, "pthread_getcpuclockid")

    def enter(self) -> None:
        """Take note that the calling thread begins a call."""
        if self.can_tell:
            ident = threading.get_ident()
            running = _Running(time.pthread_getcpuclockid(ident), time.monotonic())
            self._running[ident] = running

    def leave(self) -> None:
        """Take note that the calling thread's call is over."""
        running = self._running.pop(threading.get_ident(), None)
        if running is not None:
            self._usual_cpu += _MEMORY * (running.used - self._usual_cpu)

    def waiting(self) -> int:
        """Return how many calls have lately used no CPU time worth the name."""
        now, is_usual = time.monotonic(), self._usual_cpu < _COMPUTED_S
        return sum(call.waits(now, is_usual=is_usual) for call in list(self._running.values()))
