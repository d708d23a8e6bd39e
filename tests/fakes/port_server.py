"""A server on a free loopback port, in the running event loop: what the fakes have in common."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from fakes.sglang_failures import Failure

STATUS_FAILURES = {
    Failure.BAD_GATEWAY: 502,
    Failure.UNAVAILABLE: 503,
    Failure.GATEWAY_TIMEOUT: 504,
}
"""Failures that are nothing but a status."""


class PortServer(ABC):
    """Listens while it is entered; after `stop` it can start again on the same port."""

    port: int = 0
    _runner: web.AppRunner | None = None

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """Return what it answers."""

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after `stop` on the same port as before."""
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(self.routes())
        # A client that disconnects cancels its handler; a real server notices within 4 s.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and every connection; new ones are refused."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()


async def stream_events(
    request: web.Request, events: Sequence[Mapping[str, Any]], *, breaks_at: int | None = None
) -> web.StreamResponse:
    """Answer with server-sent events.

    Args:
        request: The request.
        events: What the events hold.
        breaks_at: How many events are sent before the connection breaks; None sends all.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events[:breaks_at]:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    if breaks_at is None:
        await response.write(b"data: [DONE]\n\n")
    elif request.transport is not None:
        request.transport.close()
    return response
