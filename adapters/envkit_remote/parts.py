"""A request body in parts, so that the text of an image is not copied for each request."""

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

_CHUNK_BYTES: Final = 1 << 18
"""Written at once; a larger part would hold the event loop."""


class Parts(Payload):
    """A body in parts, which may be sent twice."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        """Take the parts in order."""
        super().__init__(parts, content_type="application/json")
        self._parts = parts
        self._size = sum(map(len, parts))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text."""
        return b"".join(self._parts).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the parts, and let other tasks run between large ones."""
        written = 0
        for part in self._parts:
            for start in range(0, len(part), _CHUNK_BYTES):
                chunk = memoryview(part)[start : start + _CHUNK_BYTES]
                await writer.write(chunk)
                written += len(chunk)
                if written >= _CHUNK_BYTES:
                    await asyncio.sleep(0)
                    written = 0
