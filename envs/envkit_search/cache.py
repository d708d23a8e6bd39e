"""A cache in front of a backend: least recently used, with an age limit, one flight a query."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit_search.document import Hit, SearchBackend

_FlightKey = tuple[asyncio.AbstractEventLoop, str, int]
"""Loop, query, topk: a request under way can only be waited for on its own loop."""


@dataclass(slots=True, kw_only=True)
class CacheStatistics:
    """What became of the queries so far."""

    hits: int = 0
    """Answered from memory."""
    shared: int = 0
    """Answered by a request that another caller had under way already."""
    misses: int = 0
    """Sent to the backend."""
    expired: int = 0
    """Of the misses, those that had been known but were too old."""
    evicted: int = 0
    """Answers that made room for others."""

    @property
    def hit_rate(self) -> float:
        """Share of the queries that needed no request of their own; 0.0 before the first."""
        asked = self.hits + self.shared + self.misses
        return (self.hits + self.shared) / asked if asked else 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Flight:
    """One request under way, and how many callers wait for it."""

    task: asyncio.Task[dict[str, tuple[Hit, ...]]]
    keys: list[_FlightKey] = field(default_factory=list[_FlightKey])
    waiters: int = 0


class CachedBackend:
    """Remembers the answers of another backend. Failures are never remembered."""

    def __init__(
        self,
        inner: SearchBackend,
        *,
        capacity: int = 4096,
        ttl_s: float | None = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put an empty cache in front of a backend.

        Args:
            inner: Answers what is not known; closed with the cache.
            capacity: Answers to keep, one for each query and `topk`.
            ttl_s: Age at which an answer is asked for again, in seconds; None keeps it.
            clock: Seconds, for the ages.

        Raises:
            ConfigurationError: `capacity` is below 1, or `ttl_s` is not positive.
        """
        if capacity < 1 or (ttl_s is not None and ttl_s <= 0):
            raise ConfigurationError(
                "capacity must be at least 1 and ttl_s positive or None, got "
                f"capacity={capacity} and ttl_s={ttl_s}"
            )
        self.statistics = CacheStatistics()
        self._inner, self._capacity = inner, capacity
        self._ttl_s, self._clock = ttl_s, clock
        self._known: OrderedDict[tuple[str, int], tuple[float, tuple[Hit, ...]]] = OrderedDict()
        self._lock = threading.Lock()  # environments may run on loops of several threads
        self._flights: dict[_FlightKey, _Flight] = {}

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first, from memory where they are known.

        Raises:
            EnvFault: The backend failed, or was closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        known: dict[str, tuple[Hit, ...]] = {}
        flights: list[_Flight] = []
        missing: list[str] = []
        for query in dict.fromkeys(queries):
            found = self._recall(query, topk)
            flight = self._flights.get((loop, query, topk))
            if found is not None:
                known[query] = found
            elif flight is None:
                missing.append(query)
            elif flight not in flights:
                flights.append(flight)
        hits = sum(query in known for query in queries)
        self.statistics.hits += hits
        self.statistics.misses += len(missing)
        self.statistics.shared += len(queries) - hits - len(missing)
        if missing:
            flights.append(self._start(loop, missing, topk))
        for answered in await _all(self._join(flight) for flight in flights):
            known |= answered
        return [list(known[query]) for query in queries]

    async def aclose(self) -> None:
        """Cancel what is under way on the running loop and close the backend."""
        loop = asyncio.get_running_loop()
        for flight in [flight for key, flight in self._flights.items() if key[0] is loop]:
            self._abandon(flight)
            await asyncio.gather(flight.task, return_exceptions=True)
        await self._inner.aclose()

    def _start(self, loop: asyncio.AbstractEventLoop, queries: list[str], topk: int) -> _Flight:
        # Its own task: the caller may be cancelled while others wait for the same answer.
        flight = _Flight(task=loop.create_task(self._fetch(queries, topk)))
        flight.keys = [(loop, query, topk) for query in queries]
        for key in flight.keys:
            self._flights[key] = flight
        flight.task.add_done_callback(lambda _: self._land(flight))
        return flight

    async def _fetch(self, queries: list[str], topk: int) -> dict[str, tuple[Hit, ...]]:
        answered = await self._inner.search(queries, topk=topk)
        if len(answered) != len(queries):
            raise EnvFault(
                "a search backend must return a list of hits for each query, got "
                f"{len(answered)} lists for {len(queries)} queries",
                kind=FaultKind.PERMANENT,
            )
        found = {query: tuple(hits) for query, hits in zip(queries, answered, strict=True)}
        for query, hits in found.items():
            self._remember(query, topk, hits)
        return found

    async def _join(self, flight: _Flight) -> dict[str, tuple[Hit, ...]]:
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                self._abandon(flight)

    def _abandon(self, flight: _Flight) -> None:
        """Stop a request that nobody waits for, and let nobody join it any more."""
        self._land(flight)
        flight.task.cancel()  # does nothing to a task that is done

    def _land(self, flight: _Flight) -> None:
        for key in flight.keys:
            if self._flights.get(key) is flight:
                del self._flights[key]

    def _recall(self, query: str, topk: int) -> tuple[Hit, ...] | None:
        with self._lock:
            entry = self._known.get((query, topk))
            if entry is None:
                return None
            if self._ttl_s is not None and self._clock() - entry[0] >= self._ttl_s:
                del self._known[query, topk]
                self.statistics.expired += 1
                return None
            self._known.move_to_end((query, topk))
            return entry[1]

    def _remember(self, query: str, topk: int, hits: tuple[Hit, ...]) -> None:
        with self._lock:
            self._known[query, topk] = self._clock(), hits
            self._known.move_to_end((query, topk))
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
                self.statistics.evicted += 1


async def _all(
    joins: Iterable[Coroutine[Any, Any, dict[str, tuple[Hit, ...]]]],
) -> list[dict[str, tuple[Hit, ...]]]:
    """Wait for every join, then raise the first failure if there was one."""
    outcomes = await asyncio.gather(*joins, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, asyncio.CancelledError):
            raise EnvFault("the search backend was closed meanwhile", kind=FaultKind.TRANSIENT)
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
