"""HTTP clients: connections of one service, and bodies of limited size.

Callers set their own time limits with `asyncio.timeout`, and send with `allow_redirects=False`,
because a redirect would take prompts and keys to another address.
"""

import asyncio
from collections.abc import Mapping

import aiohttp


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
        self._limit, self._headers = limit, dict(headers or {})
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
    """Return a body, decompressed; None and a closed connection if it is longer than allowed."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            response.close()
            return None
    return b"".join(chunks)
