"""Play episodes over MCP servers while servers are killed; nothing may stay behind.

Each episode has its own server, a private process that also starts a child in its own session.
Of ten episodes, two lose their server between calls, two during a call, one ends it by a call
of the policy, one hangs and is cancelled, and four end as they should.

    python scripts/campaigns/mcp_kills.py --episodes 500 --at-once 8

It needs the environment of `make contract-mcp`, and names its interpreter's missing package
otherwise. `--uncontained` plays without bubblewrap. It prints JSON, and fails if an outcome is not
the expected one, or if a process, a descriptor or a temporary folder is left.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in (".", "envs", "adapters", "tests")]

from envkit.errors import EnvFault  # noqa: E402
from envkit_mcp import McpLimits, McpServer, McpTools, process  # noqa: E402
from envkit_mcp.results import LethalCallError  # noqa: E402

SERVER = McpServer(
    name="odd", command=(sys.executable, str(ROOT / "tests" / "fakes" / "mcp_odd_server.py"))
)
Play = Callable[[McpTools], Awaitable[str]]


def group_of(tools: McpTools) -> int:
    """Return the process group of an episode's server."""
    found: Any = tools._open["odd"].process
    return found.pid


async def plays_on(tools: McpTools) -> str:
    """Call tools as a policy does."""
    await tools.call("odd", "note", {"text": "x"})
    await tools.call("odd", "count", {})
    return "ended"


async def loses_its_server(tools: McpTools) -> str:
    """Kill the server between two calls."""
    os.killpg(group_of(tools), signal.SIGKILL)
    return await outcome(tools.call("odd", "count", {}))


async def loses_its_server_in_a_call(tools: McpTools) -> str:
    """Kill the server while it works on a call; `slow` answers no fresh server either."""
    calling = asyncio.create_task(outcome(tools.call("odd", "slow", {})))
    await asyncio.sleep(0.1)
    os.killpg(group_of(tools), signal.SIGKILL)
    return await calling


async def ends_its_server(tools: McpTools) -> str:
    """Make a call that ends every server, and go on."""
    found = await outcome(tools.call("odd", "exit", {}))
    await tools.call("odd", "count", {})
    return found


async def is_cancelled(tools: McpTools) -> str:
    """Cancel a call that hangs."""
    try:
        async with asyncio.timeout(0.2):
            await tools.call("odd", "hang", {})
    except TimeoutError:
        return "cancelled"
    return "answered"


async def outcome(call: Awaitable[Any]) -> str:
    """Return how a call ended."""
    try:
        await call
    except EnvFault:
        return "fault"
    except LethalCallError:
        return "policy"
    return "answered"


KINDS: dict[str, tuple[Play, str, int]] = {
    "plays on": (plays_on, "ended", 4),
    "loses its server": (loses_its_server, "fault", 2),
    "loses its server in a call": (loses_its_server_in_a_call, "fault", 2),
    "ends its server": (ends_its_server, "policy", 1),
    "is cancelled": (is_cancelled, "cancelled", 1),
}
"""What an episode does, its expected outcome, and its share of ten."""


async def play(number: int, places: asyncio.Semaphore, counts: Counter[str]) -> None:
    """Play one episode and count its outcome."""
    names = [name for name, (_, _, share) in KINDS.items() for _ in range(share)]
    name = names[number % len(names)]
    does, expected, _ = KINDS[name]
    async with places:
        tools = McpTools([SERVER], McpLimits(connect_timeout_s=120, call_timeout_s=2))
        try:
            await tools.start({"a.txt": "a"})
            await tools.call("odd", "child", {})
            found = await does(tools)
        finally:
            await tools.stop()
    counts[f"{name}: {found}" + ("" if found == expected else " UNEXPECTED")] += 1


def left() -> dict[str, Any]:
    """Return what of the episodes is on this machine."""
    mark = f"ENVKIT_MCP_EPISODE={tempfile.gettempdir()}/".encode()
    marked = [pid for pid in process._processes() if mark in process._environment(pid)]
    return {
        "processes": len(marked),
        "folders": len(list(Path(tempfile.gettempdir()).glob("envkit-mcp-*"))),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


async def main() -> int:
    """Play the episodes, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--uncontained", action="store_true")
    options = parser.parse_args()
    if options.uncontained:
        process.can_contain = lambda: False
    # Apart from the episodes of other processes on this machine.
    tempfile.tempdir = tempfile.mkdtemp(prefix="mcp-campaign-")
    counts: Counter[str] = Counter()
    warm, places = Counter[str](), asyncio.Semaphore(options.at_once)
    await play(0, places, warm)  # the loop's own descriptors stay
    before, started = left(), time.monotonic()
    await asyncio.gather(*(play(n, places, counts) for n in range(options.episodes)))
    await asyncio.sleep(0.5)
    after = left()
    shown = {
        "episodes": options.episodes,
        "seconds": round(time.monotonic() - started, 1),
        "outcomes": dict(sorted(counts.items())),
        "before": before,
        "after": after,
    }
    print(json.dumps(shown, indent=1))  # noqa: T201  # its output
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    return int(before != after or any("UNEXPECTED" in name for name in counts))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
