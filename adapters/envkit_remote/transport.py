"""HTTP to one server: control requests of their own, events, and non-blocking bodies."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from envkit.errors import EngineFault
from envkit.http_pool import HttpPool, read_capped
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
        pool = self._control if is_control else self._pool
        async with pool.session().post(
            self.base_url + path,
            data=io.BytesIO(body),
            headers={**_JSON, **(headers or {})},
            allow_redirects=False,
        ) as response:
            is_stream = response.status == 200 and response.content_type == "text/event-stream"
            if take is not None and is_stream:
                await self._read_events(response, take)
                return Answer(status=200, body=b"")
            return await self._read(response)

    async def get(self, path: str) -> Answer:
        """Fetch a path, over the control pool."""
        url = self.base_url + path
        async with self._control.session().get(url, allow_redirects=False) as response:
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
            # A server that never ends its event must not fill the memory.
            if len(line) > _MAX_BODY_BYTES:
                raise EngineFault(
                    f"{response.url} sent an event of more than {_MAX_BODY_BYTES >> 20} MiB"
                )
        raise aiohttp.ClientPayloadError("the stream ended without [DONE]")

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        body = await read_capped(response, _MAX_BODY_BYTES)
        if body is None:
            raise EngineFault(f"{response.url} answered with more than {_MAX_BODY_BYTES >> 20} MiB")
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
