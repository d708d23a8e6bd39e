"""HTTP to one server: a connection pool per event loop, deadlines, and bodies that do not block.

Nothing here knows what a request means.
"""

import asyncio
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    body: bytes


class Transport:
    """Connections to one base address.

    A pool belongs to the event loop that made it, so an engine that is used by several loops has
    one pool for each; `aclose` closes that of the running loop and forgets those of dead ones.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str],
        max_connections: int,
        connect_timeout_s: float,
    ) -> None:
        self.base_url = base_url
        self.reached = False
        """True once the server has answered anything."""
        self._headers = dict(headers)
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    async def post(
        self, path: str, body: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a JSON body. Deadlines are the caller's: wrap the call in `asyncio.timeout`."""
        # A reader instead of the bytes: aiohttp then writes in pieces and yields between them.
        async with self._session().post(
            self.base_url + path, data=io.BytesIO(body), headers={**_JSON, **(headers or {})}
        ) as response:
            return await self._read(response)

    async def get(self, path: str) -> Answer:
        """Fetch a path."""
        async with self._session().get(self.base_url + path) as response:
            return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        body = await response.read()
        self.reached = True
        return Answer(status=response.status, body=body)

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            self._forget_dead_loops()
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                headers=self._headers,
                # Routing keys tell episodes apart; a cookie of one would pin all of them.
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    def _forget_dead_loops(self) -> None:
        for loop in [loop for loop in self._sessions if loop.is_closed()]:
            # Closing would touch the loop that is gone; its sockets go with it.
            self._sessions.pop(loop).detach()

    async def aclose(self) -> None:
        """Close the running loop's connections; closing twice is fine."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()
        self._forget_dead_loops()
