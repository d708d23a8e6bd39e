"""An LRU cache of verdicts."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from envkit_judges.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """Hit counts of a cache."""

    hits: int
    misses: int
    size: int
    """Verdicts in the cache."""


class VerdictCache:
    """Keeps recent verdicts by key. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        """Make an empty cache.

        Args:
            capacity: Maximum number of verdicts; 0 disables the cache.
        """
        self._capacity = capacity
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._hits = self._misses = 0

    def get(self, key: bytes) -> Verdict | None:
        """Return the verdict, or None; it counts as used."""
        with self._lock:
            found = self._verdicts.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._verdicts.move_to_end(key)
            return found

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Store a verdict, evicting the least recently used one."""
        with self._lock:
            self._verdicts[key] = verdict
            self._verdicts.move_to_end(key)
            while len(self._verdicts) > self._capacity:
                self._verdicts.popitem(last=False)

    def statistics(self) -> CacheStatistics:
        """Return the counts so far."""
        with self._lock:
            return CacheStatistics(hits=self._hits, misses=self._misses, size=len(self._verdicts))
