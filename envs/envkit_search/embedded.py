"""Search in this process, without a server."""

import asyncio
from collections.abc import Sequence

from envkit_search.bm25 import Bm25Index
from envkit_search.document import Hit


class EmbeddedBackend:
    """Answer queries from an index in memory.

    A query takes well under a millisecond, so it runs on the event loop and yields to it between
    queries of a batch. Closing releases nothing, since others may share the index.
    """

    def __init__(self, index: Bm25Index) -> None:
        self._index = index

    @property
    def index(self) -> Bm25Index:
        """The index."""
        return self._index

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first, at most `topk` each.

        Raises:
            ConfigurationError: `topk` is below 1.
        """
        found: list[list[Hit]] = []
        for query in queries:
            if found:
                await asyncio.sleep(0)
            found.append(self._index.search(query, topk))
        return found

    async def aclose(self) -> None:
        """Do nothing: the index is in memory."""
