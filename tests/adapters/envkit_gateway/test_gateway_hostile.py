"""Clients that send anything over plain sockets: answered, never a hang or the episode's fault."""

import asyncio
import gzip
import json
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

import aiohttp
import pytest
from fakes.agent_clients import ChatClient
from fakes.gateway_run import Run, serving
from fakes.strangers import AMBIGUOUS, answers_to_ambiguous, connected

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "one"}]}).encode()


def head(run: Run, *headers: str, length: int | None) -> bytes:
    """Return the start of a request."""
    lines = [f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {run.session.key}"]
    lines += [*headers] if length is None else [*headers, f"Content-Length: {length}"]
    return ("\r\n".join([*lines, "", ""])).encode()


async def send(run: Run, *chunks: bytes, until: bytes | None = None) -> bytes:
    """Return what the server says until it closes the connection, to these bytes or for 10 s.

    It reads while it sends: a server that refuses early resets the connection, and asyncio then
    drops what was not read yet.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", int(run.gateway.url[17:]))
    said = bytearray()

    async def listen() -> None:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(10.0):
                while (until is None or until not in said) and (part := await reader.read(1 << 16)):
                    said.extend(part)

    listening = asyncio.create_task(listen())
    with suppress(ConnectionError):
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.05)
    await listening
    writer.transport.abort()
    return bytes(said)


async def check_alive(run: Run) -> None:
    """Check that the episode continues."""
    assert (await run.client(ChatClient).ask("hello")).text == "yes"
    assert run.session.fault is None


CHUNKED = "Transfer-Encoding: chunked"
BROKEN: list[tuple[Sequence[str], int | None, Sequence[bytes], int]] = [
    (["Content-Encoding: gzip"], 9, [b"not gzip!"], 400),
    (["Content-Encoding: gzip"], None, [gzip.compress(b" " * 1000)], 400),
    ([CHUNKED], None, [b"5\r\nabcde\r\n", b"zz\r\n"], 400),
    ([CHUNKED], None, [b"2\r\n{}\r\n0\r\n\r\n"], 400),
    ([CHUNKED], None, [b"5\r\nabcde\r\n"], 400),
    ([], 500, [b"{"], 400),
    ([], 200 << 20, [b"{"], 413),
    ([f"X-{n}: a" for n in range(1000)], 2, [b"{}"], 400),
    (["X-A: " + "a" * 70_000], 2, [b"{}"], 400),
    (["Content-Length: 7"], 2, [b"{}"], 400),
    (["Content-Type: text/plain; charset=nope"], 2, [b"\xff\xfe"], 400),
]


@pytest.mark.parametrize(
    ("headers", "length", "chunks", "status"), BROKEN, ids=[str(n) for n in range(len(BROKEN))]
)
async def test_broken_request_is_the_clients_fault_and_costs_the_episode_nothing(
    headers: Sequence[str],
    length: int | None,
    chunks: Sequence[bytes],
    status: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envkit_gateway.server._BODY_S", 0.5)
    async with serving(lambda _: "yes") as run:
        size = sum(map(len, chunks)) if length is None and CHUNKED not in headers else length
        said = await send(run, head(run, *headers, length=size), *chunks, until=b"\r\n\r\n")
        assert said.split()[1] == str(status).encode(), said
        await check_alive(run)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(lambda context: context.rsplit("user\n", 1)[1][:3]) as run:
        two = BODY.replace(b"one", b"two")
        request = head(run, length=len(BODY))
        closing = head(run, "Connection: close", length=len(two))
        said = await send(run, request + BODY + closing + two)
    assert said.index(b'"content": "one"') < said.index(b'"content": "two"')


async def test_clients_that_never_finish_do_not_hold_up_the_end() -> None:
    # A request that is not finished may take a minute.
    async with asyncio.timeout(30), serving(lambda _: "yes") as run:
        port = int(run.gateway.url[17:])
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        starts = (
            head(run, length=500) + b"{",
            b"POST /v1",
            head(run, CHUNKED, length=None) + b"5\r\nabcde\r\n",
        )
        for (_, writer), start in zip(opened, starts, strict=True):
            writer.write(start)
            await writer.drain()
        await check_alive(run)
    for _, writer in opened:
        writer.transport.abort()


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_request_with_an_ambiguous_end_is_the_last_of_its_connection(name: str) -> None:
    async with serving(lambda _: "yes") as run:
        assert await answers_to_ambiguous(run.gateway.url, name) == 1
        await check_alive(run)


async def test_slow_clients_do_not_hold_up_the_episode() -> None:
    async with serving(lambda _: "yes") as run, AsyncExitStack() as stack:
        for said in (b"", b"POST /v1", head(run, length=500) + b"{", b"GET / HTTP/1.1\r\nX: "):
            for _ in range(10):
                await stack.enter_async_context(connected(run.gateway.url, said))
        await check_alive(run)


@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
async def test_page_in_a_browser_reaches_nothing_of_an_episode(method: str) -> None:
    """Of another site, or of one whose name was rebound to the gateway's address."""
    async with serving(lambda _: "yes") as run, aiohttp.ClientSession(run.gateway.url) as client:
        for host in ("127.0.0.1", "rebound.example"):
            page = {"Origin": "http://rebound.example", "Host": host, "Content-Type": "text/plain"}
            async with client.request(method, CHAT, data=BODY, headers=page) as response:
                assert response.status == (401 if method == "POST" else 404)
                assert not [name for name in response.headers if name.startswith("Access-Control")]
        await check_alive(run)


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_that_leave_at_any_moment_cost_nothing(stream: bool) -> None:
    async with serving(lambda _: "yes") as run:
        for number in range(20):
            body = json.dumps({**json.loads(BODY), "stream": stream, "user": f"{number}"}).encode()
            _, writer = await asyncio.open_connection("127.0.0.1", int(run.gateway.url[17:]))
            writer.write(head(run, length=len(body)) + body)
            await asyncio.sleep(number * 0.001)
            writer.transport.abort()
        await check_alive(run)
    run.trajectory()
