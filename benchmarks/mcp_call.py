"""Compare a tool call of `McpTools` with the same call of the MCP SDK's own client.

The server is mcp-server-time on stdio, in its own process. A round starts it on each side, one
after the other, and takes the median of the calls; each figure is the lowest of the rounds. Both
include the server's own time and the pipe. `start_ms` is from the command to the list of tools.
envkit also makes the episode's folder, and contains the server's processes where bubblewrap works.

    python benchmarks/mcp_call.py [--calls N] [--rounds N] [--json FILE]

It needs the environment of `make contract-mcp`.
"""

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

from harness import run, sized

from envkit_mcp import McpServer, McpTools

SERVER: Final = ("-m", "mcp_server_time")
ARGUMENTS: Final = {"timezone": "UTC"}
Call = Callable[[], Awaitable[object]]


async def measure(calls: int, rounds: int) -> dict[str, float]:
    """Return milliseconds of a start and of a call, on each side, and the ratio of the calls."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, figures in (("sdk", await of_sdk(calls)), ("envkit", await of_envkit(calls))):
            for what, value in figures.items():
                found.setdefault(f"{name}_{what}", []).append(value)
    lowest = {name: min(values) for name, values in found.items()}
    added = lowest["envkit_call_ms"] - lowest["sdk_call_ms"]
    ratio = lowest["envkit_call_ms"] / lowest["sdk_call_ms"]
    return {**lowest, "added_us": 1000 * added, "ratio": ratio}


async def of_sdk(calls: int) -> dict[str, float]:
    """Measure the SDK's own client."""
    mcp: Any = import_module("mcp")
    started = time.perf_counter()
    place = mcp.StdioServerParameters(command=sys.executable, args=list(SERVER))
    async with mcp.Client(place) as client:
        await client.list_tools()
        start_ms = 1000 * (time.perf_counter() - started)
        call_ms = await median_ms(lambda: client.call_tool("get_current_time", ARGUMENTS), calls)
    return {"start_ms": start_ms, "call_ms": call_ms}


async def of_envkit(calls: int) -> dict[str, float]:
    """Measure `McpTools`."""
    tools = McpTools([McpServer(name="time", command=(sys.executable, *SERVER))])
    try:
        started = time.perf_counter()
        await tools.start()
        start_ms = 1000 * (time.perf_counter() - started)
        call_ms = await median_ms(lambda: tools.call("time", "get_current_time", ARGUMENTS), calls)
    finally:
        await tools.stop()
    return {"start_ms": start_ms, "call_ms": call_ms}


async def median_ms(call: Call, calls: int) -> float:
    """Return the median time of a call in milliseconds."""
    times: list[float] = []
    for _ in range(calls):
        started = time.perf_counter()
        await call()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


if __name__ == "__main__":
    run(
        measure,
        calls=sized(300, 5, "calls of each side and round"),
        rounds=sized(3, 1, "rounds"),
    )
