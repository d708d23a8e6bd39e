"""Streamable HTTP servers: bounded answers, and failures of HTTP kept apart from tool errors.

The SDK turns a 503 into the same error as a tool's own, and a lost connection into a cancellation.
So the transport below notes what happened to the requests of a call.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from envkit.errors import FaultKind, describe

_LEAST_FAILURE: Final = 401
"""400 carries the errors of what the policy sent."""
_GONE: Final = 404
_BUSY: Final = frozenset({408, 425, 429})


@dataclass(slots=True)
class HttpNotes:
    """What happened to the latest requests."""

    failure: str | None = None
    """Why HTTP failed last; None if it never did."""
    kind: FaultKind = FaultKind.TRANSIENT
    failures: int = 0
    """How often it failed. A call compares the number before and after it: several episodes may
    share the connection, so a call must not clear what another one's request met."""
    too_large: int = 0
    """How many answers were above the limit."""

    def note_status(self, status: int) -> None:
        """Note the status of an answer, if it is a failure of the server."""
        if status < _LEAST_FAILURE:
            return
        self.failures += 1
        self.failure = f"it answered with HTTP status {status}"
        if status == _GONE:
            self.kind = FaultKind.CRASHED  # the session is unknown: the server was restarted
        elif status in _BUSY or status >= 500:
            self.kind = FaultKind.TRANSIENT
        else:
            self.kind = FaultKind.PERMANENT

    def note_error(self, error: Exception) -> None:
        """Note a request that got no answer."""
        self.failures += 1
        self.failure, self.kind = f"{describe(error):.200}", FaultKind.TRANSIENT


class _TooLargeError(httpx2.StreamError):
    """An answer exceeds its limit."""


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to a limit."""

    def __init__(self, body: Any, most: int, notes: HttpNotes) -> None:  # noqa: ANN401
        self._body, self._most, self._notes = body, most, notes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        try:
            async for part in self._body:
                left -= len(part)
                if left < 0:
                    self._notes.too_large += 1
                    raise _TooLargeError(f"the answer has more than {self._most} bytes")
                yield part
        except httpx2.TransportError as error:
            self._notes.note_error(error)
            raise

    async def aclose(self) -> None:
        await self._body.aclose()


class _NotingTransport(httpx2.AsyncBaseTransport):
    """Sends requests, and notes how HTTP failed."""

    def __init__(self, most: int, notes: HttpNotes) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._most, self._notes = most, notes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_call = request.method == "POST"  # the optional GET and DELETE may be refused
        try:
            answer = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if is_call:
                self._notes.note_error(error)
            raise
        if is_call:
            self._notes.note_status(answer.status_code)
        return httpx2.Response(
            answer.status_code,
            headers=answer.headers,
            stream=_Bounded(answer.stream, self._most, self._notes),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], *, most: int, timeout_s: float, notes: HttpNotes
) -> AsyncGenerator[tuple[Any, Any]]:
    """Connect the SDK's client to a server.

    Args:
        url: Its address.
        headers: Sent with every request.
        most: Maximum bytes of an answer.
        timeout_s: Seconds for a connection; calls have their own deadline.
        notes: Filled with what happens to requests.
    """
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        transport=_NotingTransport(most, notes),
        # Identity: the limit then bounds what is decoded too.
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(None, connect=timeout_s, pool=timeout_s),
    )
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams
