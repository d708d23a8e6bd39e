"""Documents, hits, and the interface of search backends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A page of a corpus."""

    id: str
    """Unique in its corpus; ties are ordered by it."""
    title: str
    text: str
    """Without the title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A document that was found."""

    document: Document
    score: float
    """The backend's own: a similarity, or a distance. The order of the hits is the ranking."""


@runtime_checkable
class SearchBackend(Protocol):
    """Answers queries: an index in this process, or a server."""

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first, at most `topk` each.

        Raises:
            EnvFault: The backend failed; an empty list always means that nothing was found.
        """
        ...

    async def aclose(self) -> None:
        """Release its resources."""
        ...
