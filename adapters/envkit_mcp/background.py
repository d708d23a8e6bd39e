"""The event loop of all connections of a process, on its own thread.

A connection of the SDK must be opened and closed by the same task, and lives as long as an episode
or longer, whichever loop plays the steps. Its failures cancel tasks around it. On a separate loop
none of this reaches a rollout, and reading megabytes of JSON does not block one.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


async def in_background(work: Coroutine[Any, Any, T], *, to_its_end: bool = False) -> T:
    """Run a coroutine on the loop of the connections.

    Args:
        work: The coroutine.
        to_its_end: Whether it goes on if the wait is cancelled; otherwise it is cancelled too.
    """
    future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop(os.getpid())))
    return await (asyncio.shield(future) if to_its_end else future)


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Start the loop of a process: a forked process does not inherit threads."""
    del process
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="envkit-mcp", daemon=True).start()
    return loop
