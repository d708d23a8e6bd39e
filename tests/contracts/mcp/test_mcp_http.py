"""Servers over streamable HTTP, with the SDK's own server in a process that can be killed."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from aiohttp import web
from fakes.port_server import PortServer

from envkit.errors import EnvFault, FaultKind
from envkit.threads.workers import DeadlineError
from envkit_mcp.results import ToolCallError

SERVER = """
import os, sys, time
from mcp.server.mcpserver import MCPServer
server = MCPServer("real")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

@server.tool()
def exit() -> str:
    os._exit(3)

@server.tool()
async def slow() -> str:
    import asyncio
    await asyncio.sleep(60)
    return "late"

@server.tool()
def huge() -> str:
    return "x" * (3 << 20)

server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def serving() -> Generator[tuple[str, "subprocess.Popen[bytes]"]]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_http_server_answers_errs_and_is_late_in_both_eras(started: Any, era: str) -> None:
    with serving() as (url, _):
        limits = {"call_timeout_s": 2.0, "answer_bytes": 1 << 20}
        tools = await started({"real": {"url": url, "era": era}}, **limits)
        assert await tools.call("real", "add", {"a": 2, "b": 3}) == ["5"]
        with pytest.raises(ToolCallError):
            await tools.call("real", "add", {"a": "two"})
        with pytest.raises(ToolCallError, match="more than 1048576 bytes"):
            await tools.call("real", "huge", {})
        with pytest.raises(DeadlineError):
            await tools.call("real", "slow", {})
        assert await tools.call("real", "add", {"a": 2, "b": 4}) == ["6"]


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_loss_of_an_http_server_is_a_fault_during_and_after_a_call(
    started: Any, era: str
) -> None:
    with serving() as (url, process):
        tools = await started({"real": {"url": url, "era": era}}, call_timeout_s=120.0)
        waiting = asyncio.create_task(tools.call("real", "slow", {}))
        await asyncio.sleep(0.3)
        process.kill()
        process.wait()
        for doomed in (waiting, tools.call("real", "add", {"a": 1, "b": 1})):
            with pytest.raises(EnvFault) as caught:
                await doomed
            assert caught.value.kind.is_retryable


async def test_http_server_that_is_not_there_is_a_fault(started: Any) -> None:
    with pytest.raises(EnvFault) as caught:
        await started({"real": {"url": f"http://127.0.0.1:{free_port()}/mcp"}})
    assert caught.value.kind is FaultKind.TRANSIENT


class FailingServer(PortServer):
    """Speaks the handshake, and answers every call with an HTTP status."""

    def __init__(self, status: int) -> None:
        self.status = status

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/mcp", self._post)]

    async def _post(self, request: web.Request) -> web.Response:
        message = await request.json()
        method, number = message["method"], message.get("id")
        if number is None:
            return web.Response(status=202)
        tool = {"name": "add", "inputSchema": {"type": "object", "properties": {}}}
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "failing", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
        }
        if method == "tools/call":
            return web.Response(status=self.status, text="no")
        if method not in results:
            error = {"code": -32601, "message": "Method not found"}
            return web.json_response({"jsonrpc": "2.0", "id": number, "error": error})
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": results[method]})


@asynccontextmanager
async def failing(status: int) -> AsyncGenerator[str]:
    async with FailingServer(status) as server:
        yield f"{server.url}/mcp"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, FaultKind.PERMANENT),
        (403, FaultKind.PERMANENT),
        (404, FaultKind.CRASHED),
        (429, FaultKind.TRANSIENT),
        (500, FaultKind.TRANSIENT),
        (503, FaultKind.TRANSIENT),
        (504, FaultKind.TRANSIENT),
    ],
)
async def test_http_status_is_a_fault_and_never_a_tool_error(
    started: Any, status: int, kind: FaultKind
) -> None:
    async with failing(status) as url:
        tools = await started({"real": {"url": url}})
        with pytest.raises(EnvFault, match=f"HTTP status {status}") as caught:
            await tools.call("real", "add", {})
    assert caught.value.kind is kind
