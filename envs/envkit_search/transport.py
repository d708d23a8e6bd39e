"""JSON over HTTP to a search service, with limits, deadlines, retries and typed faults.

How failures are handled:

| failure | handling |
| --- | --- |
| connection refused or reset, body cut off | retried, then TRANSIENT |
| no answer in time, slow drip | retried, then TIMEOUT |
| 408, 425, 429, 5xx | retried (429 and 503 after their Retry-After), then TRANSIENT |
| 200 that is not valid JSON, such as a proxy's page | retried, then TRANSIENT |
| 400, 413, 422 | PERMANENT immediately, as `RefusedFault` |
| any other status, including redirects | PERMANENT immediately |
| a body beyond `max_bytes` | PERMANENT immediately |

One deadline covers all attempts and waits of a call. This module does not interpret requests.
"""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

import aiohttp

from envkit import fast_json, ranges
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.http_pool import HttpPool, read_capped, read_error
from envkit.retry_after import retry_after
from envkit.rollout.limits import Backoff
from envkit.seeds import checked_seed

_RETRYABLE: Final = frozenset({408, 425, 429})
_REFUSED: Final = frozenset({400, 413, 422})
_SHOWN: Final = 300


class RefusedFault(EnvFault):
    """The service rejected this request (400, 413, 422); another may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits on a service: time, connections, bytes, attempts."""

    attempt_s: float = 20.0
    """Seconds per attempt, from sending to the last byte."""
    deadline_s: float = 60.0
    """Seconds per call, including waits for a connection and retries."""
    max_attempts: int = 8
    max_concurrent: int = 32
    """Concurrent requests per event loop."""
    max_bytes: int = 16 << 20
    """Maximum bytes of an answer."""
    backoff: Backoff = field(
        default_factory=lambda: Backoff(initial_s=0.25, maximum_s=8, jitter=0.5)
    )

    def __post_init__(self) -> None:
        """Reject limits under which nothing could be sent.

        Raises:
            ConfigurationError: A time is not positive, or a count is below 1.
        """
        ranges.positive(attempt_s=self.attempt_s, deadline_s=self.deadline_s)
        ranges.at_least(
            1,
            max_attempts=self.max_attempts,
            max_concurrent=self.max_concurrent,
            max_bytes=self.max_bytes,
        )


class _Failed(Exception):
    """An attempt failed in a retryable way."""

    def __init__(self, fault: EnvFault, *, wait_s: float = 0.0) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.wait_s = wait_s
        """Minimum wait that the service asked for."""


class JsonService:
    """A service with JSON requests and answers."""

    def __init__(
        self,
        url: str,
        *,
        noun: str,
        headers: Mapping[str, str] | None = None,
        limits: HttpLimits | None = None,
        seed: int = 0,
    ) -> None:
        """Set up the service; the first call connects.

        Args:
            url: Complete URL to POST to.
            noun: Name of the service, for messages.
            headers: Headers of every request; their values never appear in messages.
            limits: None uses the defaults.
            seed: Seed of the retry jitter.

        Raises:
            ConfigurationError: The address is invalid.
        """
        if not url.startswith(("http://", "https://")) or len(url.split("/")[2]) == 0:
            raise ConfigurationError(
                f"the address of {noun} must be such as 'http://127.0.0.1:8000', got {url!r}"
            )
        self.url, self._noun = url, noun
        self.limits = limits or HttpLimits()
        self.attempts = 0
        """Requests sent so far, retries included."""
        self._pool = HttpPool(
            limit=self.limits.max_concurrent,
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        self._rng = random.Random(checked_seed(seed))
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._free = WeakKeyDictionary()

    async def post(self, payload: Mapping[str, Any]) -> Any:  # noqa: ANN401  # any JSON
        """Send a JSON object and return the JSON answer.

        Raises:
            EnvFault: The service failed; the table in the module's docstring says how.
        """
        body = json.dumps(payload).encode()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.deadline_s
        # The time of an attempt begins when there is a connection for it.
        free = self._free.setdefault(loop, asyncio.Semaphore(self.limits.max_concurrent))
        try:
            async with asyncio.timeout_at(deadline), free:
                return await self._persist(body, deadline)
        except TimeoutError as error:
            raise self._fault(
                f"gave no answer within its deadline of {self.limits.deadline_s:g} s",
                FaultKind.TIMEOUT,
            ) from error

    async def aclose(self) -> None:
        """Close the running loop's connections; safe to call twice."""
        await self._pool.aclose()
        self._free.pop(asyncio.get_running_loop(), None)

    async def _persist(self, body: bytes, deadline: float) -> Any:  # noqa: ANN401  # any JSON
        for attempt in range(self.limits.max_attempts):
            try:
                return await self._attempt(body)
            except _Failed as failed:
                wait_s = max(failed.wait_s, self.limits.backoff.delay(attempt, self._rng))
                is_late = asyncio.get_running_loop().time() + wait_s >= deadline
                if attempt + 1 == self.limits.max_attempts or is_late:
                    raise failed.fault from failed.__cause__
                await asyncio.sleep(wait_s)
        raise AssertionError("max_attempts is at least 1")

    async def _attempt(self, body: bytes) -> Any:  # noqa: ANN401  # any JSON
        self.attempts += 1
        try:
            async with asyncio.timeout(self.limits.attempt_s):
                async with self._pool.session().post(
                    self.url, data=body, allow_redirects=False
                ) as response:
                    answer = await self._read(response)
                    self._check_status(response, answer)
                    charset = response.charset
        except TimeoutError as error:
            what = f"gave no complete answer in {self.limits.attempt_s:g} s"
            raise _Failed(self._fault(what, FaultKind.TIMEOUT)) from error
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            what = f"cannot be reached, or broke off: {reason[:_SHOWN]}"
            raise _Failed(self._fault(what, FaultKind.TRANSIENT)) from error
        return await self._parse(answer, charset)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != 200:
            return await read_error(response)
        body = await read_capped(response, self.limits.max_bytes)
        if body is None:
            what = f"sent more than max_bytes={self.limits.max_bytes}"
            raise self._fault(what, FaultKind.PERMANENT)
        return body

    def _check_status(self, response: aiohttp.ClientResponse, answer: bytes) -> None:
        status = response.status
        if status == 200:
            return
        what = f"answered {status}: {answer[: 4 * _SHOWN].decode(errors='replace')[:_SHOWN]!r}"
        if status in _RETRYABLE or status >= 500:
            wait_s = retry_after(response.headers) or 0.0
            raise _Failed(self._fault(what, FaultKind.TRANSIENT), wait_s=wait_s)
        if status in _REFUSED:
            raise RefusedFault(f"{self._noun} at {self.url} {what}", kind=FaultKind.PERMANENT)
        if status in (401, 403):
            what += ". Is the key right?"
        if status == 404:
            what += ". Is the address right?"
        raise self._fault(what, FaultKind.PERMANENT)

    async def _parse(self, answer: bytes, charset: str | None) -> Any:  # noqa: ANN401  # any JSON
        try:
            if fast_json.is_quick(answer):
                return _decode(answer, charset)
            return await asyncio.to_thread(_decode, answer, charset)
        except (ValueError, RecursionError) as error:
            shown = answer[: 4 * _SHOWN].decode(errors="replace")[:80]
            what = f"answered 200 with something that is not valid JSON: {shown!r}"
            raise _Failed(self._fault(what, FaultKind.TRANSIENT)) from error

    def _fault(self, what: str, kind: FaultKind) -> EnvFault:
        return EnvFault(f"{self._noun} at {self.url} {what}", kind=kind)


def _decode(answer: bytes, charset: str | None) -> Any:  # noqa: ANN401  # any JSON
    """Return the JSON of a body.

    A byte that is invalid in the declared encoding, or else in the one detected from JSON's first
    bytes, becomes U+FFFD: web pages contain such bytes, and the rest of the answer is usable.
    """
    try:
        text = answer.decode(charset or json.detect_encoding(answer), errors="replace")
    except LookupError:  # an encoding that does not exist
        text = answer.decode(errors="replace")
    return fast_json.loads_large(text)
