"""HTTP to one server: control requests of their own, events, and non-blocking bodies."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from envkit import fast_json
from envkit.errors import EngineFault
from envkit.http_pool import HttpPool, is_encoded, read_capped, read_error
from envkit.retry_after import retry_after
from envkit_remote.parts import Parts

_JSON: Final = {"Content-Type": "application/json"}
_CONTROL_CONNECTIONS: Final = 16
_SERVER_ERROR: Final = 500
_KEEP_ALIVE_S: Final = 4.0
"""Shorter than uvicorn's 5 s idle timeout, which may close a connection just as a request is
sent."""
MAX_BODY_BYTES: Final = 512 << 20
"""Maximum decompressed answer. Routed experts of a long reply take tens of megabytes."""
MAX_PAGE_BYTES: Final = 1 << 20
MAX_PAGE_VALUES: Final = 1 << 16
_COUNTED_BYTES: Final = 1 << 20
"""A longer body's values are counted on another thread."""
_INLINE_BYTES: Final = 1 << 16
"""Lines of events that are longer, together, let other tasks run before the next one."""
_LINE_BYTES: Final = 256
"""What a line costs besides its bytes: an empty one takes as long as this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimit:
    """The most that an answer, or an event of one, may have.

    Bytes alone bound neither memory nor time: a megabyte may hold 300,000 lists.
    """

    max_bytes: int
    """Decompressed bytes."""
    max_values: int | None
    """Units of `fast_json.values_in`; None is no bound."""

    def check(self, where: str, body: bytes) -> None:
        """Refuse a body with more values.

        Raises:
            EngineFault: It has more.
        """
        # A value takes at least a byte.
        if self.max_values is None or len(body) <= self.max_values:
            return
        if (count := fast_json.values_in(body)) > self.max_values:
            raise EngineFault(
                f"{where} answered with {count} JSON values, which is more than the "
                f"{self.max_values} that the tokens that were asked for can take"
            )


PAGE: Final = AnswerLimit(max_bytes=MAX_PAGE_BYTES, max_values=MAX_PAGE_VALUES)
"""Limit of an answer about the server, which the event loop parses."""
UNKNOWN: Final = AnswerLimit(max_bytes=MAX_BODY_BYTES, max_values=None)
"""Limit of an answer whose size does not follow from its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    body: bytes
    joined: dict[str, Any] | None = None
    """The answer of events, whose `body` is empty; None without events."""
    retry_after_s: float | None = None
    """Wait time in seconds that the server asked for; None if it did not."""


class Events(Protocol):
    """Receives the events of one answer, in order."""

    def read(self, data: bytes) -> dict[str, Any]:
        """Return the event with this data; large ones are read on another thread."""
        ...

    def add(self, event: dict[str, Any]) -> None:
        """Take an event, on the event loop."""
        ...


class Transport:
    """Connections to one base address.

    There are two pools: an abort must not wait for the requests that it ends.
    """

    def __init__(
        self,
        base_url: str,
        *,
        title: str,
        headers: Mapping[str, str],
        max_connections: int,
        connect_timeout_s: float,
    ) -> None:
        self.base_url, self.title = base_url, title
        self.reached = False
        """True once the server has answered anything."""
        self._pool, self._control = (
            HttpPool(
                limit=limit,
                headers=headers,
                connect_timeout_s=connect_timeout_s,
                keep_alive_s=_KEEP_ALIVE_S,
            )
            for limit in (max_connections, _CONTROL_CONNECTIONS)
        )

    async def post(
        self,
        path: str,
        body: bytes | Parts,
        *,
        headers: Mapping[str, str] | None = None,
        is_control: bool = False,
        events: Events | None = None,
        limit: AnswerLimit = PAGE,
    ) -> Answer:
        """Send a JSON body. The caller sets deadlines with `asyncio.timeout`.

        Args:
            path: Path from the server's root.
            body: Encoded JSON; in parts if it may be large.
            headers: Added to those of every request.
            is_control: True uses the pool that generation never fills.
            events: Gets the server-sent events, if the answer has any; its body is then empty.
            limit: Bounds the answer, or each event.
        """
        pool = self._control if is_control else self._pool
        async with pool.session().post(
            self.base_url + path,
            data=body,
            headers={**_JSON, **(headers or {})},
            allow_redirects=False,
        ) as response:
            is_stream = response.status == 200 and response.content_type == "text/event-stream"
            if events is not None and is_stream:
                await self._read_events(response, events, limit)
                return Answer(status=200, body=b"")
            return await self._read(response, limit)

    async def get(self, path: str) -> Answer:
        """Fetch a path, over the control pool."""
        url = self.base_url + path
        async with self._control.session().get(url, allow_redirects=False) as response:
            return await self._read(response, PAGE)

    async def _read_events(
        self, response: aiohttp.ClientResponse, events: Events, limit: AnswerLimit
    ) -> None:
        """Read the events of an answer.

        Raises:
            aiohttp.ClientPayloadError: The stream has no end, or is compressed.
        """
        self.reached = True
        if is_encoded(response):
            raise aiohttp.ClientPayloadError("server-sent events must not be compressed")
        line = bytearray()
        held = 0
        async for chunk in response.content.iter_any():
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                line += part
                data = bytes(line).strip()
                line.clear()
                if data == b"data: [DONE]":
                    return
                # A chunk may have thousands of lines, and each may cost as little as it likes.
                held += len(data) + _LINE_BYTES
                if held > _INLINE_BYTES:
                    held = 0
                    await asyncio.sleep(0)
                if data.startswith(b"data:"):
                    await _take(events, data.removeprefix(b"data:"), limit, str(response.url))
            line += rest
            # A server that never ends its event must not fill the memory.
            if len(line) > limit.max_bytes:
                raise _too_long(response, limit)
        raise aiohttp.ClientPayloadError("the stream ended without [DONE]")

    async def _read(self, response: aiohttp.ClientResponse, limit: AnswerLimit) -> Answer:
        if response.status != 200:
            body = await read_error(response)
        else:
            whole = await read_capped(response, limit.max_bytes)
            if whole is None:
                raise _too_long(response, limit)
            await _checked(limit, str(response.url), whole)
            body = whole
        self.reached = True
        if response.status >= _SERVER_ERROR:
            # vLLM closes the connection after such an answer; the next request on it would fail.
            response.close()
        wait = None if response.status == 200 else retry_after(response.headers)
        return Answer(status=response.status, body=body, retry_after_s=wait)

    async def aclose(self) -> None:
        """Close the running loop's connections; safe to call twice."""
        await self._pool.aclose()
        await self._control.aclose()


async def _take(events: Events, data: bytes, limit: AnswerLimit, where: str) -> None:
    await _checked(limit, where, data)
    is_quick = fast_json.is_quick(data)
    events.add(events.read(data) if is_quick else await asyncio.to_thread(events.read, data))


async def _checked(limit: AnswerLimit, where: str, body: bytes) -> None:
    """Refuse a body with too many values; counting takes up to 3 ms per megabyte."""
    if len(body) <= _COUNTED_BYTES:
        limit.check(where, body)
    else:
        await asyncio.to_thread(limit.check, where, body)


def _too_long(response: aiohttp.ClientResponse, limit: AnswerLimit) -> EngineFault:
    return EngineFault(
        f"{response.url} answered with more than {limit.max_bytes >> 20} MiB, which is more than "
        "the tokens that were asked for can take"
    )
