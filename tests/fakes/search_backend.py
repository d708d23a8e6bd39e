"""A search backend over twenty pages in memory, and questions about them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from envkit.errors import EnvFault
from envkit.tasks import ListSource
from envkit_search.document import Document, Hit

_RIVERS = {
    "Vessa": ("Karlo Marsh", "Tindel"),
    "Orrin": ("Lake Pell", "Marrow"),
    "Sable": ("the Grey Sea", "Quill"),
    "Thornwater": ("Lake Pell", "Brack"),
    "Ilmen": ("the Grey Sea", "Dovra"),
}
_MAYORS = {
    "Tindel": "Ada Renn",
    "Marrow": "Bo Castle",
    "Quill": "Cy Dorn",
    "Brack": "Di Ember",
    "Dovra": "Ed Fallow",
}


def _pages() -> list[tuple[str, str]]:
    pages: list[tuple[str, str]] = []
    for river, (mouth, town) in _RIVERS.items():
        mayor = _MAYORS[town]
        pages += [
            (f"River {river}", f"The river {river} flows into {mouth}. It passes {town}."),
            (town, f"{town} is a town on the {river}. Its mayor is {mayor}."),
            (mayor, f"{mayor} has been mayor of {town} since 1990. {mayor} plays the cello."),
            (f"{town} Bridge", f"A bridge in {town}, 120 metres long."),
        ]
    return pages


DOCUMENTS = tuple(
    Document(id=f"{number:03}", title=title, text=text)
    for number, (title, text) in enumerate(_pages())
)


def tasks() -> ListSource:
    """Return ten questions, half of one hop and half of two."""
    rows: list[dict[str, Any]] = []
    for river, (mouth, town) in _RIVERS.items():
        rows += [
            {
                "question": f"Where does the river {river} flow to?",
                "answers": [mouth],
                "hops": 1,
                "kind": "river.mouth",
                "gold_titles": [f"River {river}"],
                "corpus": "world",
            },
            {
                "question": f"Who is the mayor of the town on the river {river}?",
                "answers": [_MAYORS[town], _MAYORS[town].split()[1]],
                "hops": 2,
                "kind": "river.town.mayor",
                "gold_titles": [f"River {river}", town],
                "corpus": "world",
            },
        ]
    return ListSource(rows)


class MemoryBackend:
    """Ranks pages by how many words of the query they hold, a title in full first."""

    is_deterministic = True

    def __init__(self, documents: Sequence[Document] = DOCUMENTS) -> None:
        self._documents = tuple(documents)
        self.calls: list[list[str]] = []
        self.faults: list[EnvFault] = []
        """Raised by the next calls, one each."""
        self.gate: asyncio.Event | None = None
        """Calls wait for it."""
        self.closed = 0

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the pages that share a word with the query."""
        self.calls.append(list(queries))
        if self.gate is not None:
            await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        return [self._rank(query)[:topk] for query in queries]

    async def aclose(self) -> None:
        """Count the closing."""
        self.closed += 1

    def _rank(self, query: str) -> list[Hit]:
        wanted = _words(query)
        hits: list[Hit] = []
        for document in self._documents:
            held = Counter(_words(f"{document.title} {document.text}"))
            score = float(sum(word in held for word in wanted))
            score += 100.0 * (_words(document.title) == wanted)
            if score:
                hits.append(Hit(document=document, score=score))
        return sorted(hits, key=lambda hit: (-hit.score, hit.document.id))


def _words(text: str) -> list[str]:
    return text.lower().replace(".", " ").replace(",", " ").split()
