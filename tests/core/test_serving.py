"""Connections of slow, silent, broken and lost clients."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fakes.strangers import AMBIGUOUS, answers_to_ambiguous, connected
from fakes.virtual_time import run_virtually
from fakes.waiting import until

from envkit.serving import BodyError, abort_unread, listening, read_body

SIZE = 20_000_000
HOST = "Host: 127.0.0.1\r\n"
HAS_FIRST_DEADLINE = [int(part) for part in aiohttp.__version__.split(".")[:3]] >= [3, 14, 4]
"""Older versions of aiohttp wait for the first request of a connection without end."""


class Served:
    """A server of a long answer, and of a body's length, with its connections."""

    def __init__(self) -> None:
        self.address = ""
        self.transports: list[asyncio.Transport] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Answer."""
        assert request.transport is not None
        self.transports.append(request.transport)
        if request.path == "/long":
            return web.Response(body=b"x" * SIZE)
        try:
            body = await read_body(request, max_bytes=1000, seconds=0.2)
        except BodyError as error:
            return web.Response(status=error.status, text=str(error))
        return web.Response(text=f"{len(body)}")


@asynccontextmanager
async def serving(*, answer_s: float = 60.0, **settings: Any) -> AsyncGenerator[Served]:
    served = Served()
    app = web.Application(client_max_size=1000)
    app.router.add_route("*", "/{rest:.*}", served.answer)
    async with listening(
        app, host="127.0.0.1", port=0, answer_s=answer_s, stop_s=0.1, **settings
    ) as served.address:
        yield served


async def status_of(served: Served, raw: str) -> bytes:
    async with connected(served.address, raw) as (reader, _):
        return (await asyncio.wait_for(reader.readline(), 120)).split()[1]


@pytest.mark.parametrize(("fields", "count"), [("", 1), ("", 3), ("Connection: close\r\n", 1)])
async def test_unread_answer_is_dropped_with_its_connection(fields: str, count: int) -> None:
    said = f"GET /long HTTP/1.1\r\n{HOST}{fields}\r\n" * count
    async with serving(answer_s=0.2) as served, connected(served.address, said) as (reader, _):
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 120)
        (transport,) = served.transports
        await until(transport.is_closing)
        assert transport.get_write_buffer_size() == 0
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(SIZE)


async def test_unread_answer_of_a_closed_connection_is_dropped() -> None:
    """The handler closes the connection, as uvicorn does at the end of a session."""
    said = f"GET /long HTTP/1.1\r\n{HOST}\r\n"
    async with serving(answer_s=0.2) as served, connected(served.address, said):
        await until(lambda: served.transports and served.transports[0].get_write_buffer_size())
        served.transports[0].close()
        await until(lambda: not served.transports[0].get_write_buffer_size())


class Unread:
    """A connection whose unread bytes are known for each second."""

    def __init__(self, *sizes: int, closes: float = 99.0) -> None:
        self.sizes, self.closes = sizes, closes
        self.aborted: float | None = None
        self.transport: Any = self

    def now(self) -> float:
        """Return the seconds since the start."""
        return asyncio.get_running_loop().time()

    def get_write_buffer_size(self) -> int:
        """Return the size that the transport would."""
        return self.sizes[min(int(self.now()), len(self.sizes) - 1)]

    def is_closing(self) -> bool:
        """Return whether the server has closed it."""
        return self.now() >= self.closes

    def abort(self) -> None:
        """Note the moment."""
        self.aborted = self.now()


@pytest.mark.parametrize(
    ("client", "aborted"),
    [
        (Unread(0), None),
        (Unread(0, 9), 11),
        (Unread(*range(1000, 0, -1)), 11),  # a byte per second
        (Unread(*[90, 60, 30] * 9, 0), None),  # always behind, with one answer after another
        (Unread(90, 60, 30, 0, 90, 0), None),
        (Unread(0, 9, closes=5), 10),
        (Unread(0, *[9] * 7, 0, closes=5), None),
    ],
    ids=range(7),
)
def test_answer_has_one_deadline_and_a_closed_connection_another(
    client: Unread, aborted: float | None
) -> None:
    async def first_abort() -> None:
        watch = asyncio.create_task(abort_unread(lambda: [client], seconds=10))
        for _ in range(60):
            if client.aborted is None:
                await asyncio.sleep(0.5)
        watch.cancel()

    run_virtually(first_abort())
    assert client.aborted == aborted


async def test_head_of_a_request_has_a_deadline() -> None:
    async with serving(idle_s=0.2) as served:
        whole = f"GET / HTTP/1.1\r\n{HOST}\r\n"
        first = ("", "GET / HTTP/1.1\r\nX-Slow: ") if HAS_FIRST_DEADLINE else ()
        for said in (*first, whole, f"{whole}GET / HTTP/1.1\r\nX: "):
            async with connected(served.address, said) as (reader, _):
                await asyncio.wait_for(reader.read(), 120)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("Content-Length: 1000\r\n", b"408"),
        ("Content-Length: 1001\r\n", b"413"),
        ("Content-Length: 99999999999\r\n", b"413"),
        ("Content-Length: 5\r\nContent-Encoding: gzip\r\n", b"400"),
        ("Transfer-Encoding: chunked\r\n", b"408"),
    ],
)
async def test_body_that_does_not_arrive_is_refused(fields: str, status: bytes) -> None:
    async with serving() as served:
        assert await status_of(served, f"POST / HTTP/1.1\r\n{HOST}{fields}\r\n") == status


@pytest.mark.parametrize(
    ("chunks", "status"),
    [("5\r\nhello\r\n0\r\n\r\n", b"200"), (f"7d0\r\n{'x' * 2000}\r\n", b"413"), ("zz\r\n", b"400")],
)
async def test_chunked_body_is_bounded(chunks: str, status: bytes) -> None:
    async with serving() as served:
        head = f"POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n"
        assert await status_of(served, head + chunks) == status


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_request_with_an_ambiguous_end_is_the_last_of_its_connection(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as served:
        assert await answers_to_ambiguous(served.address, name) == 1
    assert not caplog.records


@pytest.mark.parametrize(
    "said", ["GET /long HTTP/1.1\r\n", "POST / HTTP/1.1\r\nContent-Length: 9\r\n"]
)
async def test_client_that_leaves_is_not_logged(
    said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as served:
        async with connected(served.address, f"{said}{HOST}\r\n"):
            await until(lambda: served.transports)
        await until(served.transports[0].is_closing)
    assert not caplog.records
