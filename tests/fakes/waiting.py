"""Waiting in the event loop for something that a test has set off."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], *, seconds: float = 120.0) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It did not hold in time.
    """
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
