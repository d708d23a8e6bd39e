"""Garbage collection during a run, without long pauses of its event loop.

A full collection looks at every object of the process and holds the event loop meanwhile: over
200 ms at 4,096 episodes. During a run the interpreter therefore collects only what is young. What
has survived that is collected from the event loop as soon as it amounts to some ten thousand
objects, and survivors of that are frozen: later collections leave them out. A frozen object is
freed as usual when its last reference goes, so only a reference cycle that was alive when it was
frozen can stay. Episodes leave no cycles behind, but an environment may. A collection of
everything, which does take long, is due once more objects are frozen than the run's episodes need.
"""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Generator
from typing import Final

_EVERY_S: Final = 0.1
_LONG: Final = 32
"""A shorter run is over before a full collection is due."""
_OBJECTS: Final = 25_000
"""Objects that survived young collections before they are looked at: about 12 ms."""
_SURVIVORS: Final = 15_000
"""Survivors that are frozen. Fewer, as 128 episodes have, are looked at again."""
_PER_EPISODE: Final = 200
"""Frozen objects for each episode at once, which has about 115. More are taken for garbage."""
_YOUNGEST: Final = 5_000
"""New objects that start a collection, by default 700: most of a turn's are gone by then."""
_GEN1_EVERY: Final = 2
"""Collections of generation 0 between two of generation 1, by default 10: shorter pauses."""
_NEVER: Final = 1 << 30


class Collector:
    """Collects instead of the interpreter while runs are played; one for the whole process.

    It leaves collection alone where the caller has disabled it or has frozen objects.
    """

    def __init__(self, *, objects: int = _OBJECTS, survivors: int = _SURVIVORS) -> None:
        """Make one that is not active.

        Args:
            objects: How many objects of the oldest generation are looked at.
            survivors: How many of them must survive to be frozen.
        """
        self._objects, self._survivors = objects, survivors
        # Runs may be played on event loops of several threads. A collection may end an abandoned
        # run, which leaves while its thread holds the lock.
        self._lock = threading.RLock()
        self._runs = 0
        self._threshold: tuple[int, int, int] | None = None
        self._allowed = 0
        """Objects that may be frozen in addition before everything is collected."""
        self._base = 0
        """How many were frozen after that was done last."""
        self._frozen = 0
        """The most that can be frozen now."""
        self._seen = 0
        """Collections of generation 1 at the last look."""

    @property
    def is_active(self) -> bool:
        """Whether it has taken over from the interpreter."""
        return self._threshold is not None

    def enter(self, episodes_at_once: int) -> None:
        """Begin a run; the first one freezes what the process holds already, garbage included."""
        with self._lock:
            self._runs += 1
            self._allowed += _PER_EPISODE * episodes_at_once
            if self._runs > 1 or not gc.isenabled() or gc.get_freeze_count():
                return
            self._threshold = gc.get_threshold()
            youngest, middle, _ = self._threshold
            gc.set_threshold(max(youngest, _YOUNGEST), min(middle, _GEN1_EVERY), _NEVER)
            gc.freeze()  # a collection first would hold the event loop for 200 ms
            self._base = self._frozen = gc.get_freeze_count()

    def leave(self, episodes_at_once: int) -> None:
        """End a run; the last one puts everything back as it was."""
        with self._lock:
            self._runs -= 1
            self._allowed -= _PER_EPISODE * episodes_at_once
            if self._runs or self._threshold is None:
                return
            gc.set_threshold(*self._threshold)
            self._threshold = None
            gc.unfreeze()

    def tend(self) -> None:
        """Collect if that is due. Call it often: it mostly reads one counter."""
        older = gc.get_count()[2]  # collections of generation 1 since the last full one
        if older == self._seen:
            return
        with self._lock:
            self._seen = older
            if self._threshold is None:
                return
            if self._frozen > self._limit:
                self._frozen = gc.get_freeze_count()  # most may have been freed since
                if self._frozen > self._limit:
                    gc.unfreeze()
                    gc.collect()
                    if self.is_active:
                        gc.freeze()
                        self._base = self._frozen = gc.get_freeze_count()
            elif len(gc.get_objects(generation=2)) >= self._objects:
                gc.collect()
                survivors = len(gc.get_objects(generation=2))
                if self.is_active and survivors >= self._survivors:
                    gc.freeze()
                    self._frozen += survivors

    @property
    def _limit(self) -> int:
        """How many objects may be frozen before everything is collected."""
        return self._base + max(self._allowed, self._base // 4)


_collector: Final = Collector()
tend: Final = _collector.tend


@contextlib.contextmanager
def collecting(episodes: int, *, at_once: int) -> Generator[None]:
    """Keep collections short while a run is played on this event loop.

    Args:
        episodes: How many the run plays.
        at_once: How many of them at once.
    """
    if episodes < _LONG:
        yield
        return
    loop = asyncio.get_running_loop()

    def tend_again() -> None:
        nonlocal timer
        tend()
        timer = loop.call_later(_EVERY_S, tend_again)

    _collector.enter(at_once)
    timer = loop.call_later(_EVERY_S, tend_again)
    try:
        yield
    finally:
        timer.cancel()
        _collector.leave(at_once)
