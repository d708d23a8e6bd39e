"""Admission control: a few callers at a time, with patience for slow ones."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

_PATIENCE_S: Final = 0.01


class Admission:
    """A queue for work that may compute or wait; the caller does not know which.

    Hundreds of threads that compute at the same time starve the event loop, so only a few are
    admitted together. If these only wait, another one follows every ten milliseconds.
    """

    def __init__(self, few: int, *, patience_s: float = _PATIENCE_S) -> None:
        """Open the queue.

        Args:
            few: Number of callers admitted together.
            patience_s: Seconds after which the first caller in the queue is admitted even if none
                of the admitted ones has left.
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
