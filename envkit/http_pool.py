"""HTTP clients: connections of one service, and bodies of limited size.

Callers set their own time limits with `asyncio.timeout`, and send with `allow_redirects=False`,
because a redirect would take prompts and keys to another address.

A body that a server compresses unasked is decompressed here and not by aiohttp, which does so on
the event loop: a few hundred kilobytes may hold gigabytes.
"""

import asyncio
import zlib
from collections.abc import Mapping
from typing import Final

import aiohttp

_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS
_INFLATED: Final = frozenset({"gzip", "x-gzip", "deflate"})
_ENCODING: Final = "Content-Encoding"
_PACKED_SLACK: Final = 1 << 10
"""Bytes by which compression may lengthen a short body."""
_MAX_ERROR_BYTES: Final = 1 << 16


class HttpPool:
    """Connections to one service, with one pool per event loop.

    A connection belongs to the loop that opened it. There are no cookies: episodes share the pool,
    and a cookie of one would pin all of them to one server.
    """

    def __init__(
        self,
        *,
        limit: int = 0,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float | None = None,
        keep_alive_s: float = 15.0,
    ) -> None:
        """Store the settings; the first request connects.

        Args:
            limit: Connections per event loop, for which further requests wait; 0 is no limit.
            headers: Sent with every request.
            connect_timeout_s: Seconds to make a connection; None leaves it to the caller.
            keep_alive_s: Seconds after which an idle connection is closed.
        """
        self._limit = limit
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._connect_timeout_s, self._keep_alive_s = connect_timeout_s, keep_alive_s
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def session(self) -> aiohttp.ClientSession:
        """Return the running loop's session."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            self._forget_dead_loops()
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._limit, keepalive_timeout=self._keep_alive_s
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                headers=self._headers,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    async def aclose(self) -> None:
        """Close the running loop's connections; safe to call twice."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()
        self._forget_dead_loops()

    def _forget_dead_loops(self) -> None:
        for loop in list(self._sessions):  # a copy: another thread's loop may add its own
            # Closing would use the dead loop; its sockets died with it.
            if loop.is_closed() and (session := self._sessions.pop(loop, None)) is not None:
                session.detach()


async def read_capped(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Return a body, decompressed; None and a closed connection if it is longer than allowed.

    Raises:
        aiohttp.ClientPayloadError: It is damaged, or its encoding is unknown.
    """
    if is_encoded(response):
        packed = await read_start(response, max_bytes + _PACKED_SLACK)
        body = await asyncio.to_thread(_inflated, response, packed, max_bytes + 1)
    else:
        body = await read_start(response, max_bytes + 1)
    if len(body) <= max_bytes:
        return body
    response.close()
    return None


async def read_start(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return the first bytes of a body as they came, and close the connection if there are more.

    Args:
        response: The answer.
        max_bytes: How many to return at most; a longer body closes the connection.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            response.close()
            break
    return b"".join(chunks)[:max_bytes]


async def read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return the beginning of an error's body, which has its message, decompressed."""
    if is_encoded(response):
        return await read_capped(response, _MAX_ERROR_BYTES) or b"(a long compressed body)"
    return await read_start(response, _MAX_ERROR_BYTES)


def is_encoded(response: aiohttp.ClientResponse) -> bool:
    """Whether the body is compressed."""
    return response.headers.get(_ENCODING, "identity").strip().lower() not in ("identity", "")


def _inflated(response: aiohttp.ClientResponse, body: bytes, max_bytes: int) -> bytes:
    """Return at most `max_bytes` of a decompressed body."""
    encoding = response.headers[_ENCODING].strip().lower()
    if encoding not in _INFLATED:
        raise aiohttp.ClientPayloadError(
            f"the answer is compressed as {encoding[:80]!r}, although only identity was accepted"
        )
    # Some servers send deflate without its header (RFC 9110, section 8.4.1.2).
    is_bare = encoding == "deflate" and body[:1] and body[0] & 15 != zlib.DEFLATED
    inflate = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else _ZLIB_OR_GZIP)
    try:
        plain = inflate.decompress(body, max_bytes)
    except zlib.error as error:
        raise aiohttp.ClientPayloadError(f"the answer is not valid {encoding}: {error}") from error
    if not inflate.eof and len(plain) < max_bytes:
        raise aiohttp.ClientPayloadError(f"the answer's {encoding} data is cut")
    return plain
