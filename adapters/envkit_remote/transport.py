"""HTTP to one server: control requests of their own, events, and non-blocking bodies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from envkit.errors import EngineFault
from envkit.http_pool import HttpPool, read_capped
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    body: bytes
    joined: dict[str, Any] | None = None
    """The answer of events, whose `body` is empty; None without events."""
    retry_after_s: float | None = None
    """Wait time in seconds that the server asked for; None if it did not."""


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
        take: Callable[[bytes], None] | None = None,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> Answer:
        """Send a JSON body. The caller sets deadlines with `asyncio.timeout`.

        Args:
            path: Path from the server's root.
            body: Encoded JSON; in parts if it may be large.
            headers: Added to those of every request.
            is_control: True uses the pool that generation never fills.
            take: Called with the data of each server-sent event, if the answer has events; its body
                is then empty.
            max_bytes: Bound on the decompressed answer, or on each event.
        """
        pool = self._control if is_control else self._pool
        async with pool.session().post(
            self.base_url + path,
            data=body,
            headers={**_JSON, **(headers or {})},
            allow_redirects=False,
        ) as response:
            is_stream = response.status == 200 and response.content_type == "text/event-stream"
            if take is not None and is_stream:
                await self._read_events(response, take, max_bytes)
                return Answer(status=200, body=b"")
            return await self._read(response, max_bytes)

    async def get(self, path: str) -> Answer:
        """Fetch a path, over the control pool."""
        url = self.base_url + path
        async with self._control.session().get(url, allow_redirects=False) as response:
            return await self._read(response, MAX_BODY_BYTES)

    async def _read_events(
        self, response: aiohttp.ClientResponse, take: Callable[[bytes], None], max_bytes: int
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
            # A server that never ends its event must not fill the memory.
            if len(line) > max_bytes:
                raise _too_long(response, max_bytes)
        raise aiohttp.ClientPayloadError("the stream ended without [DONE]")

    async def _read(self, response: aiohttp.ClientResponse, max_bytes: int) -> Answer:
        body = await read_capped(response, max_bytes)
        if body is None:
            raise _too_long(response, max_bytes)
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


def _too_long(response: aiohttp.ClientResponse, max_bytes: int) -> EngineFault:
    return EngineFault(
        f"{response.url} answered with more than {max_bytes >> 20} MiB, which is more than the "
        "tokens that were asked for can take"
    )
