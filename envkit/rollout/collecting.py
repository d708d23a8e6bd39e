"""Garbage collection during a run without long pauses of its event loop.

A full collection traverses every object of the process and blocks the event loop meanwhile: over
200 ms at 4,096 episodes. During a run the interpreter therefore collects only young objects. The
event loop collects the survivors once there are some ten thousand of them, and freezes what
survives again, so later collections skip it. A frozen object is freed as usual when its last
reference goes. Only a reference cycle that was alive when it was frozen can stay. Episodes leave no
cycles, but an environment may. A full collection, which does take long, is due once the process
has more small objects than the run's episodes need. Their number is read from the allocator:
counting what is frozen walks through all of it, which blocks the event loop as well.
"""

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Generator
from typing import Final

from envkit.fast_json import collection

_EVERY_S: Final = 0.1
_LONG: Final = 32
"""A run of fewer episodes ends before a full collection is due."""
_OBJECTS: Final = 25_000
"""Objects that survive young collections before they are collected, which takes about 12 ms."""
_BURST: Final = 3
"""Multiple of these objects that is frozen without a collection."""
_SURVIVORS: Final = 15_000
"""Minimum number of survivors to freeze. Fewer, as in a run of 128, are collected again."""
_PER_EPISODE: Final = 4_000
"""Allocated blocks per concurrent episode; more are assumed to be garbage. An episode of the
simulated desktop has about 700, a large environment more."""
_YOUNGEST: Final = 5_000
"""New objects that start a collection (default 700): most of a turn's are freed by then."""
_GEN1_EVERY: Final = 2
"""Collections of generation 0 per collection of generation 1 (default 10): shorter pauses."""
_NEVER: Final = 1 << 30


class GcPacer:
    """Replaces the interpreter's collections during runs; one for the whole process.

    It changes nothing if the caller has disabled collection or frozen objects.
    """

    def __init__(self, *, objects: int = _OBJECTS, survivors: int = _SURVIVORS) -> None:
        """Create an inactive pacer.

        Args:
            objects: Number of objects in the oldest generation that triggers a collection.
            survivors: Minimum number of survivors to freeze.
        """
        self._objects, self._survivors = objects, survivors
        # Event loops of several threads may play runs. A collection may end an abandoned run, which
        # calls `leave` while its thread has the lock.
        self._lock = threading.RLock()
        self._runs = 0
        self._threshold: tuple[int, int, int] | None = None
        self._allowed = 0
        """Blocks that may still be allocated before a full collection."""
        self._base = 0
        """Number of allocated blocks after the last full collection."""
        self._seen = 0
        """Collections of generation 1 at the last check."""

    @property
    def is_active(self) -> bool:
        """Whether it has replaced the interpreter's collections."""
        return self._threshold is not None

    def enter(self, episodes_at_once: int) -> None:
        """Begin a run; the first one freezes all objects of the process, garbage included."""
        with self._lock:
            self._runs += 1
            self._allowed += _PER_EPISODE * episodes_at_once
            if self._runs > 1 or not collection.is_enabled or gc.get_freeze_count():
                return
            self._threshold = gc.get_threshold()
            youngest, middle, _ = self._threshold
            gc.set_threshold(max(youngest, _YOUNGEST), min(middle, _GEN1_EVERY), _NEVER)
            gc.freeze()  # collecting first would block the event loop for 200 ms
            self._base = sys.getallocatedblocks()

    def leave(self, episodes_at_once: int) -> None:
        """End a run; the last one restores the interpreter's settings."""
        with self._lock:
            self._runs -= 1
            self._allowed -= _PER_EPISODE * episodes_at_once
            if self._runs or self._threshold is None:
                return
            gc.set_threshold(*self._threshold)
            self._threshold = None
            gc.unfreeze()

    def tend(self) -> None:
        """Collect if due. Call it often: it mostly reads one counter."""
        older = gc.get_count()[2]  # collections of generation 1 since the last full one
        if older == self._seen:
            return
        with self._lock:
            self._seen = older
            if self._threshold is None:
                return
            survivors = len(gc.get_objects(generation=2))
            if survivors < self._objects:
                return
            if sys.getallocatedblocks() > self._limit:
                gc.unfreeze()
                gc.collect()
                if self.is_active:
                    gc.freeze()
                    self._base = sys.getallocatedblocks()
                return
            # After a burst of starts there are too many to look at. Their cycles wait.
            if survivors < _BURST * self._objects:
                gc.collect()
            if self.is_active and len(gc.get_objects(generation=2)) >= self._survivors:
                gc.freeze()

    @property
    def _limit(self) -> int:
        """Return the number of allocated blocks that starts a full collection."""
        return self._base + max(self._allowed, self._base // 4)


_pacer: Final = GcPacer()
tend: Final = _pacer.tend


@contextlib.contextmanager
def collecting(episodes: int, *, at_once: int) -> Generator[None]:
    """Keep collections short while a run is played on this event loop.

    Args:
        episodes: Number of episodes in the run.
        at_once: Number of concurrent episodes.
    """
    if episodes < _LONG:
        yield
        return
    loop = asyncio.get_running_loop()

    def tend_again() -> None:
        nonlocal timer
        tend()
        timer = loop.call_later(_EVERY_S, tend_again)

    _pacer.enter(at_once)
    timer = loop.call_later(_EVERY_S, tend_again)
    try:
        yield
    finally:
        timer.cancel()
        _pacer.leave(at_once)
