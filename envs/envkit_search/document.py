"""Documents, hits, the interface of search backends, and Search-R1's form of a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

TITLE_CHARACTERS: Final = 200
"""A longer single line is a text without a title."""


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


def contents_of(document: Document) -> str:
    """Return a document in Search-R1's form: one string, whose first line is the quoted title."""
    title = " ".join(document.title.split())
    return f'"{title}"\n{document.text}'


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text; a single long line is a text without a title."""
    head, line_break, text = contents.partition("\n")
    if not line_break and len(head) > TITLE_CHARACTERS:
        return "", head
    title = head.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text
