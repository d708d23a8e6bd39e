"""HTTP to one server: a connection pool per event loop, deadlines, and non-blocking bodies."""

import asyncio
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from envkit.errors import EngineFault
from envkit.retry_after import retry_after

_JSON: Final = {"Content-Type": "application/json"}
_CONTROL_CONNECTIONS: Final = 16
_SERVER_ERROR: Final = 500
_KEEP_ALIVE_S: Final = 4.0
"""Shorter than uvicorn's 5 s idle timeout, which may close a connection just as a request is
sent."""
_MAX_BODY_BYTES: Final = 512 << 20
"""Maximum decompressed answer. Routed experts of a long reply take tens of megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    """Wait time in seconds that the server asked for; None if it did not."""


class Transport:
    """Connections to one base address.

    There are two pools: an abort must not wait for the requests that it ends. A pool belongs to the
    event loop that created it, so an engine used by several loops has one per loop; `aclose` closes
    those of the running loop and forgets those of dead ones.
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
        self._connections = {False: max_connections, True: _CONTROL_CONNECTIONS}
        self._connect_timeout_s = connect_timeout_s
        self._sessions: dict[tuple[asyncio.AbstractEventLoop, bool], aiohttp.ClientSession] = {}

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        is_control: bool = False,
        take: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """Send a JSON body. The caller sets deadlines with `asyncio.timeout`.

        Args:
            path: Path from the server's root.
            body: Encoded JSON.
            headers: Added to those of every request.
            is_control: True uses the pool that generation never fills.
            take: Called with the data of each server-sent event, if the answer has events; its body
                is then empty.
        """
        # A reader instead of bytes: aiohttp then writes in chunks and yields between them.
        async with self._session(is_control=is_control).post(
            self.base_url + path,
            data=io.BytesIO(body),
            headers={**_JSON, **(headers or {})},
            allow_redirects=False,  # never send prompts and keys to another address
        ) as response:
            is_stream = response.status == 200 and response.content_type == "text/event-stream"
            if take is not None and is_stream:
                await self._read_events(response, take)
                return Answer(status=200, body=b"")
            return await self._read(response)

    async def get(self, path: str) -> Answer:
        """Fetch a path, over the control pool."""
        async with self._session(is_control=True).get(
            self.base_url + path, allow_redirects=False
        ) as response:
            return await self._read(response)

    async def _read_events(
        self, response: aiohttp.ClientResponse, take: Callable[[bytes], None]
    ) -> None:
        """Read the events of an answer.

        Raises:
            aiohttp.ClientPayloadError: The stream has no end.
        """
        self.reached = True
        line = bytearray()
        async for chunk in response.content.iter_any():
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                line += part
                data = bytes(line).strip()
                line.clear()
                if data == b"data: [DONE]":
                    return
                if data.startswith(b"data:"):
                    take(data.removeprefix(b"data:"))
            line += rest
            if len(line) > _MAX_BODY_BYTES:
                raise EngineFault(
                    f"{response.url} sent an event of more than {_MAX_BODY_BYTES >> 20} MiB"
                )
        raise aiohttp.ClientPayloadError("the stream ended without [DONE]")

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > _MAX_BODY_BYTES:
                raise EngineFault(
                    f"{response.url} answered with more than {_MAX_BODY_BYTES >> 20} MiB"
                )
        self.reached = True
        if response.status >= _SERVER_ERROR:
            # vLLM closes the connection after such an answer; the next request on it would fail.
            response.close()
        body = b"".join(chunks)
        wait = None if response.status == 200 else retry_after(response.headers)
        return Answer(status=response.status, body=body, retry_after_s=wait)

    def _session(self, *, is_control: bool) -> aiohttp.ClientSession:
        key = (asyncio.get_running_loop(), is_control)
        session = self._sessions.get(key)
        if session is None or session.closed:
            self._forget_dead_loops()
            session = self._sessions[key] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._connections[is_control], keepalive_timeout=_KEEP_ALIVE_S
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                headers=self._headers,
                # Routing keys distinguish episodes; a cookie of one would pin all of them.
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session

    def _forget_dead_loops(self) -> None:
        for key in [key for key in self._sessions if key[0].is_closed()]:
            # Closing would use the dead loop; its sockets died with it.
            self._sessions.pop(key).detach()

    async def aclose(self) -> None:
        """Close the running loop's connections; safe to call twice."""
        loop = asyncio.get_running_loop()
        for key in [key for key in self._sessions if key[0] is loop]:
            await self._sessions.pop(key).close()
        self._forget_dead_loops()
