"""Admission control: a few callers at a time, with patience for slow ones."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

_PATIENCE_S: Final = 0.01


class Admission:
    """A queue for work that may be CPU-bound or may wait; which one is unknown.

    Hundreds of threads that compute at once starve the event loop. So only a few are admitted
    together. If these only wait, one more follows every ten milliseconds.
    """

    def __init__(self, few: int, *, patience_s: float = _PATIENCE_S) -> None:
        """Open the queue.

        Args:
            few: How many are admitted together.
            patience_s: Seconds that the first in the queue waits for one of them to leave before
                it is admitted anyway.
        """
        self._patience_s = patience_s
        self._free = asyncio.Semaphore(few)
        self._first = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for admission and hold it for the block."""
        async with self._first:
            is_counted = await self._wait()
        try:
            yield
        finally:
            if is_counted:
                self._free.release()

    async def _wait(self) -> bool:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._free.acquire()
        except TimeoutError:
            return False
