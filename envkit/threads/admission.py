"""Let callers in a few at a time, and those queued after slow ones a little later."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

_PATIENCE_S: Final = 0.01


class Admission:
    """A queue before work that may compute or may wait; nobody can tell before.

    Hundreds of threads that start and compute at once keep the event loop from its turn. So few are
    let in together; and where these only wait, one more follows every ten milliseconds.
    """

    def __init__(self, few: int, *, patience_s: float = _PATIENCE_S) -> None:
        """Open the queue.

        Args:
            few: How many are let in together.
            patience_s: Seconds that the first in the queue waits for one of these to leave, before
                it goes in all the same.
        """
        self._patience_s = patience_s
        self._free = asyncio.Semaphore(few)
        self._first = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for a turn, and hold it for the block."""
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
