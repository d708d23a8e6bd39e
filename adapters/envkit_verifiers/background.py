"""The event loop that environments of the verifiers library run on.

Their reward functions and tools are often synchronous and block the loop that calls them. One loop
on its own thread runs them all: they block each other, never a rollout.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


async def in_background(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop; cancelling the wait cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop(os.getpid())))


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Start the loop of a process: a forked process does not inherit threads."""
    del process
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="envkit-verifiers", daemon=True).start()
    return loop
