"""Whether a pool's threads keep the event loop from its turn.

Python runs one thread at a time. Where many compute at once, each of them, and the event loop among
them, waits for all the others, so a pool must not answer a backlog of computations with more
threads. Threads that wait for a socket or a lock keep nobody from anything, and need company. What
a thread does can't be asked; what the loop suffers can: it comes late to its own timers while the
process uses the processor.
"""

import time
from typing import Final

_LATE_S: Final = 0.008
"""Mean lateness of timers from which on the loop suffers: more than its own work takes."""
_RELIEVED_S: Final = 0.003
"""Lateness below which it suffers no longer."""
_BUSY: Final = 0.3
"""Least share of one core that the process uses when its threads are to blame."""
_WEIGHT: Final = 0.25
"""Of the latest timer in the average."""
_WINDOW_S: Final = 0.05
"""Over which the share is measured."""


class Crowding:
    """Watches the timers of one event loop."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._share = 0.0
        self._marked_at, self._marked_cpu = time.monotonic(), time.process_time()
        self.is_crowded = False
        """Whether threads compete with the loop. May be read on any thread."""

    def note(self, late_s: float) -> None:
        """Take note of how late a timer was, in seconds. On the event loop."""
        self._late_s += _WEIGHT * (late_s - self._late_s)
        now = time.monotonic()
        if now - self._marked_at >= _WINDOW_S:
            cpu = time.process_time()
            self._share = (cpu - self._marked_cpu) / (now - self._marked_at)
            self._marked_at, self._marked_cpu = now, cpu
        bearable_s = _RELIEVED_S if self.is_crowded else _LATE_S
        self.is_crowded = self._late_s >= bearable_s and self._share >= _BUSY
