"""HTTP servers that slow, silent and lost clients cannot hold.

aiohttp and uvicorn wait forever for a client that stops reading: the answer stays in memory, and
closing the connection waits until it is read. Here a connection has a deadline for each part:

| a connection | ends after |
| --- | --- |
| without a complete head of a request | `IDLE_S`; its first request only with aiohttp >= 3.14.4 |
| whose body is late | the time that the handler gives `read_body` |
| whose answer is unread | the server's time for an answer |
| that is being closed, with an answer unread | 5 s |
"""

import asyncio
import contextlib
import ctypes
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from envkit.access import cannot_listen

IDLE_S: Final = 75.0
"""Seconds for the head of a request; clients also keep an idle connection this long."""
_FLUSH_S: Final = 5.0
_LOOK_S: Final = 1.0
_MMAP_THRESHOLD: Final = -3
"""glibc's M_MMAP_THRESHOLD."""
_LOGGER: Final = logging.getLogger("envkit.http")


class BodyError(Exception):
    """A request's body cannot be taken; the argument says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        """413 if it is too large, 408 if it is late, otherwise 400."""


class Connection(Protocol):
    """A connection of aiohttp's or uvicorn's server."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """None once it is lost."""
        ...


async def read_body(request: web.Request, *, max_bytes: int, seconds: float) -> bytes:
    """Return a request's body.

    Args:
        request: The request. Its application's `client_max_size` must be `max_bytes`.
        max_bytes: Maximum size; a larger `Content-Length` is refused before anything is read.
        seconds: Time for the body to arrive.

    Raises:
        BodyError: It is compressed, too large, malformed, cut or late.
    """
    # A small compressed body may have any size.
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise BodyError(400, "send the body uncompressed, without Content-Encoding")
    too_large = BodyError(413, f"a request may have at most {max_bytes} bytes")
    if (request.content_length or 0) > max_bytes:
        raise too_large
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError as error:
        raise BodyError(408, f"the body did not arrive within {seconds:g} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise BodyError(400, f"the body is malformed or cut: {error}") from error


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    host: str,
    port: int,
    answer_s: float,
    stop_s: float,
    idle_s: float = IDLE_S,
    cancels_lost: bool = False,
) -> AsyncGenerator[str]:
    """Serve an application until the context ends; gives its address.

    Args:
        app: The application.
        host: Address to listen on.
        port: TCP port; 0 takes a free one.
        answer_s: Seconds in which a client must read an answer.
        stop_s: Seconds that open requests have at the end.
        idle_s: Seconds for the head of a request.
        cancels_lost: Cancel the handler of a client that left.

    Raises:
        ServiceError: The address cannot be listened on.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        auto_decompress=False,  # which blocks the event loop, for a client that wants it
        handler_cancellation=cancels_lost,
        keepalive_timeout=idle_s,
        logger=_LOGGER,
        shutdown_timeout=stop_s,
    )
    await runner.setup()
    server = cast(web.Server, runner.server)
    unread = asyncio.create_task(abort_unread(lambda: server.connections, seconds=answer_s))
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        name, taken = cast("tuple[str, int]", runner.addresses[0][:2])
        yield f"http://[{name}]:{taken}" if ":" in name else f"http://{name}:{taken}"
    finally:
        unread.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await unread
        await runner.cleanup()


async def abort_unread(connections: Callable[[], Iterable[Connection]], *, seconds: float) -> None:
    """Abort connections whose clients do not read, until cancelled.

    Args:
        connections: Returns the open connections.
        seconds: Time to read an answer.
    """
    loop = asyncio.get_running_loop()
    unread: dict[asyncio.Transport, tuple[int, bool, float]] = {}
    while True:
        await asyncio.sleep(min(_LOOK_S, seconds / 4))
        now, found = loop.time(), unread
        unread = {}
        opened = {one.transport for one in connections() if one.transport is not None}
        for transport in opened | found.keys():  # a closing one is no longer a connection
            size, is_closing = transport.get_write_buffer_size(), transport.is_closing()
            had, was_closing, since = found.get(transport, (0, False, now))
            if size > had or is_closing != was_closing:  # the answer before was read
                since = now
            if size and now - since >= (min(seconds, _FLUSH_S) if is_closing else seconds):
                transport.abort()
            elif size:
                unread[transport] = size, is_closing, since


def return_freed_answers() -> None:
    """Make glibc return the memory of every freed answer to the system.

    By default, once it freed an answer of up to 32 MiB, it keeps all others of that size. The
    setting is for the whole process, so only servers with their own process make it.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # None in other C libraries
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, 1 << 20)


def ignore_errors(logger: logging.Logger, *errors: type[BaseException]) -> None:
    """Drop a logger's records of errors that only clients cause: strangers could fill the log.

    Args:
        logger: The logger of a server.
        errors: Types of the errors.
    """

    def is_ours(record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], errors)

    logger.addFilter(is_ours)


ignore_errors(_LOGGER, HttpProcessingError, web.RequestPayloadError)
