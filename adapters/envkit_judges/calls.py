"""Get a reply within a deadline, with retries, back-off, and rate and concurrency limits.

A server that asks to wait (429 with Retry-After) delays every call of the judge, not only the
rejected one.
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from envkit import ranges
from envkit.errors import EngineFault, FaultKind
from envkit.messages import Message
from envkit.rollout.engine import Sampling
from envkit.rollout.limits import Backoff


class JudgeModel(Protocol):
    """A language model behind an engine or an endpoint. One call is one attempt."""

    @property
    def identity(self) -> str:
        """Name and location of the model, for cache keys and errors."""
        ...

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, schema: Mapping[str, Any]
    ) -> str:
        """Return the model's reply.

        Args:
            messages: The conversation, with images if any.
            sampling: Temperature, length and seed.
            schema: JSON Schema of the reply, for models that can enforce one.

        Raises:
            EngineFault: There is no reply. The caller handles deadlines and retries.
        """
        ...

    async def aclose(self) -> None:
        """Release connections; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits on calls to a judge."""

    timeout_s: float = 30.0
    """Seconds per attempt."""
    deadline_s: float = 100.0
    """Seconds per verdict, including all attempts, waits and repeated questions. Below the
    rollout's `step_timeout_s`, so that a slow judge is reported as such."""
    max_retries: int = 6
    """Attempts after the first, for each question."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.5, maximum_s=20.0))
    """Seconds between attempts, if the server does not say how long to wait."""
    requests_per_minute: float | None = None
    """Evenly spaced; None is unlimited."""
    max_concurrency: int = 64
    """Concurrent attempts per event loop."""

    def __post_init__(self) -> None:
        """Reject invalid limits.

        Raises:
            ConfigurationError: A limit is out of range.
        """
        ranges.positive(
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            requests_per_minute=self.requests_per_minute,
            max_concurrency=self.max_concurrency,
        )
        ranges.at_least(0, max_retries=self.max_retries)


class RateLimiter:
    """Spaces out calls, and pauses them all when a server asks to. Thread-safe."""

    def __init__(self, requests_per_minute: float | None) -> None:
        self._interval_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def reserve(self) -> float:
        """Reserve the next slot; return the seconds until it."""
        with self._lock:
            now = time.monotonic()
            place = max(now, self._next)
            if self._interval_s or self._next > now:
                self._next = place + self._interval_s
            return place - now

    def pause(self, seconds: float) -> None:
        """Pause all calls for a while."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


class Calls:
    """Gets replies from one model."""

    def __init__(self, model: JudgeModel, limits: CallLimits) -> None:
        self._model, self._limits = model, limits
        self._turnstile = RateLimiter(limits.requests_per_minute)
        self._rng = random.Random(model.identity)
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._places = WeakKeyDictionary()

    async def reply(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        schema: Mapping[str, Any],
        *,
        deadline: float,
    ) -> str:
        """Return a reply, after as many attempts as the limits allow.

        Args:
            messages: The conversation.
            sampling: As for the model.
            schema: As for the model.
            deadline: Deadline on the running event loop's clock.

        Raises:
            EngineFault: The last attempt's failure, with the number of attempts.
        """
        loop = asyncio.get_running_loop()
        for attempt in itertools.count():
            try:
                return await self._attempt(messages, sampling, schema, deadline)
            except EngineFault as fault:
                delay = fault.retry_after_s
                if delay is None:
                    delay = self._limits.backoff.delay(attempt, self._rng)
                elif fault.retryable:
                    self._turnstile.pause(min(delay, self._limits.deadline_s))
                is_last = attempt >= self._limits.max_retries
                if not fault.retryable or is_last or loop.time() + delay >= deadline:
                    raise fault.reworded(f"{fault} (attempt {attempt + 1})") from fault
            await asyncio.sleep(delay)
        raise AssertionError("count() never ends")

    async def _attempt(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        schema: Mapping[str, Any],
        deadline: float,
    ) -> str:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline), self._semaphore():
                if wait := self._turnstile.reserve():
                    await asyncio.sleep(wait)
                async with asyncio.timeout(self._limits.timeout_s):
                    return await self._model.complete(messages, sampling, schema)
        except TimeoutError as error:
            if loop.time() >= deadline:
                what = f"no reply before the deadline of {self._limits.deadline_s:g} s"
            else:
                what = f"no reply within {self._limits.timeout_s:g} s"
            raise EngineFault(what, kind=FaultKind.TIMEOUT) from error

    def _semaphore(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._places:
            self._places[loop] = asyncio.Semaphore(self._limits.max_concurrency)
        return self._places[loop]
