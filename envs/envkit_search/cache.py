"""An LRU cache in front of a backend, with an age limit and request coalescing."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envkit import ranges
from envkit.errors import EnvFault, FaultKind
from envkit_search.batching import gathered
from envkit_search.document import Hit, SearchBackend

_PendingRequestKey = tuple[asyncio.AbstractEventLoop, str, int]
"""Loop, query, topk: a pending request can only be awaited on its own loop."""


@dataclass(slots=True, kw_only=True, eq=False)
class _PendingRequest:
    """A pending request and the number of callers that wait for it."""

    task: asyncio.Task[dict[str, tuple[Hit, ...]]]
    keys: list[_PendingRequestKey] = field(default_factory=list[_PendingRequestKey])
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
        """Wrap a backend with an empty cache.

        Args:
            inner: Answers cache misses; closed with the cache.
            capacity: Maximum answers kept, one per query and `topk`.
            ttl_s: Age in seconds after which an answer expires; None never expires.
            clock: Time in seconds, for the ages.

        Raises:
            ConfigurationError: `capacity` is below 1, or `ttl_s` is not positive.
        """
        ranges.at_least(1, capacity=capacity)
        ranges.positive(ttl_s=ttl_s)
        self._inner, self._capacity = inner, capacity
        self._ttl_s, self._clock = ttl_s, clock
        self._known: OrderedDict[tuple[str, int], tuple[float, tuple[Hit, ...]]] = OrderedDict()
        self._lock = threading.Lock()  # environments may run on loops of several threads
        self._flights: dict[_PendingRequestKey, _PendingRequest] = {}

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first, from memory if cached.

        Raises:
            EnvFault: The backend failed, or was closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        known: dict[str, tuple[Hit, ...]] = {}
        flights: list[_PendingRequest] = []
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
        if missing:
            flights.append(self._start(loop, missing, topk))
        for answered in await gathered(self._join(flight) for flight in flights):
            known |= answered
        return [list(known[query]) for query in queries]

    async def aclose(self) -> None:
        """Cancel pending requests on the running loop and close the backend."""
        loop = asyncio.get_running_loop()
        for flight in [flight for key, flight in self._flights.items() if key[0] is loop]:
            self._abandon(flight)
            await asyncio.gather(flight.task, return_exceptions=True)
        await self._inner.aclose()

    def _start(
        self, loop: asyncio.AbstractEventLoop, queries: list[str], topk: int
    ) -> _PendingRequest:
        # A separate task: the caller may be cancelled while others wait for the same answer.
        flight = _PendingRequest(task=loop.create_task(self._fetch(queries, topk)))
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

    async def _join(self, flight: _PendingRequest) -> dict[str, tuple[Hit, ...]]:
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                self._abandon(flight)

    def _abandon(self, flight: _PendingRequest) -> None:
        """Cancel a request without waiters, so no caller can join it."""
        self._land(flight)
        flight.task.cancel()  # no effect on a finished task

    def _land(self, flight: _PendingRequest) -> None:
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
                return None
            self._known.move_to_end((query, topk))
            return entry[1]

    def _remember(self, query: str, topk: int, hits: tuple[Hit, ...]) -> None:
        with self._lock:
            self._known[query, topk] = self._clock(), hits
            self._known.move_to_end((query, topk))
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
