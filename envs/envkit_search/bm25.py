"""Rank documents by BM25 over postings in NumPy arrays, with a bonus for an exact title.

Okapi BM25 with the idf of Lucene, ln(1 + (N - n + 0.5) / (n + 0.5)). The score of each (word,
document) pair is computed once and rounded to 1/65536, so scores are sums of integers: rankings are
the same on every machine, in any order of addition. Ties go to the smaller document id.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envkit import ranges
from envkit.errors import DatasetError
from envkit_search.document import Document, Hit
from envkit_search.words import raw_words, terms_of, title_key, tokenise

MAX_QUERY_CHARACTERS: Final = 512
"""Maximum query length; the rest is ignored."""
EXACT_TITLE_BONUS: Final = 1000.0
"""Bonus if a query has exactly the words of the title."""

_FORMAT: Final = "envkit-bm25-2"
"""Part of every corpus hash: change it with the tokeniser or formula."""
_SATURATION: Final = 1.2
_LENGTH_WEIGHT: Final = 0.75
_TITLE_WEIGHT: Final = 2
"""Weight of a word in the title."""
_SCALE: Final = 65536


class _Postings(NamedTuple):
    """The index data: V words, N documents, P pairs of both."""

    vocabulary: dict[str, int]  # V words, numbered from 0
    starts: NDArray[np.int64]  # (V + 1,) start of each word's pairs
    rows: NDArray[np.int32]  # (P,) document of each pair, ascending inside a word
    shares: NDArray[np.int32]  # (P,) score in units of 1 / 65536


class _Numbering(dict[str, tuple[int, ...]]):
    """Maps raw words to the numbers of their terms, filled while texts are read."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {}

    def __missing__(self, word: str) -> tuple[int, ...]:
        known = self.vocabulary
        numbers = tuple(known.setdefault(term, len(known)) for term in terms_of(word))
        self[word] = numbers
        return numbers


class Bm25Index:
    """An immutable index over documents in memory; safe to search from several threads."""

    def __init__(self, documents: Sequence[Document], postings: _Postings, digest: str) -> None:
        self.documents = documents
        """All documents in the order of their ids."""
        self._postings = postings
        self.corpus_hash = digest
        """SHA-256 in hex over ids, titles and texts; the same corpus ranks the same everywhere."""
        self._titles: dict[str, list[int]] = {}
        for row, document in enumerate(documents):
            self._titles.setdefault(title_key(document.title), []).append(row)

    @classmethod
    def build(cls, documents: Iterable[Document]) -> "Bm25Index":
        """Return the index of the documents; their order does not matter.

        Raises:
            DatasetError: There is no document, or two have the same id.
        """
        ordered = _ordered(documents)
        return cls(ordered, _postings(ordered), _corpus_hash(ordered))

    def search(self, query: str, topk: int) -> list[Hit]:
        """Return at most `topk` documents that share a word with the query, best first.

        Only the first 512 characters count; repeated words count once. An empty query, or one of
        stop words or control characters, finds nothing.

        Raises:
            ConfigurationError: `topk` is below 1.
        """
        ranges.at_least(1, topk=topk)
        words = tokenise(query[:MAX_QUERY_CHARACTERS])
        vocabulary = self._postings.vocabulary
        known = [vocabulary[word] for word in dict.fromkeys(words) if word in vocabulary]
        if not known:
            return []
        scores = self._scores(known)
        for row in self._titles.get(title_key(query[:MAX_QUERY_CHARACTERS]), ()):
            scores[row] += int(EXACT_TITLE_BONUS * _SCALE)
        return [
            Hit(document=self.documents[row], score=int(scores[row]) / _SCALE)
            for row in map(int, _best(scores, topk))
        ]

    def _scores(self, known: list[int]) -> NDArray[np.int32]:
        """Return the score of every document for these word numbers."""
        _, starts, rows, shares = self._postings
        scores = np.zeros(len(self.documents), np.int32)
        for number in known:
            begin, end = starts[number], starts[number + 1]
            scores[rows[begin:end]] += shares[begin:end]
        return scores


class EmbeddedBackend:
    """Answer queries from an index in memory.

    A query takes well under a millisecond, so it runs on the event loop and yields to it between
    queries of a batch. Closing releases nothing, since others may share the index.
    """

    def __init__(self, index: Bm25Index) -> None:
        self.index = index

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first, at most `topk` each.

        Raises:
            ConfigurationError: `topk` is below 1.
        """
        found: list[list[Hit]] = []
        for query in queries:
            if found:
                await asyncio.sleep(0)
            found.append(self.index.search(query, topk))
        return found

    async def aclose(self) -> None:
        """Do nothing: the index is in memory."""


def _best(scores: NDArray[np.int32], topk: int) -> NDArray[np.intp]:
    """Return the rows of the largest positive scores; the smaller row first among equals."""
    floor = 1
    if topk < len(scores):
        floor = max(1, int(np.partition(scores, len(scores) - topk)[-topk]))
    above = np.flatnonzero(scores > floor)
    level = np.flatnonzero(scores == floor)[: topk - len(above)]
    order = np.argsort(-scores[above], kind="stable")
    return np.concatenate([above[order], level])


def _ordered(documents: Iterable[Document]) -> list[Document]:
    ordered = sorted(documents, key=lambda document: document.id)
    if not ordered:
        raise DatasetError("an index needs at least one document, got none")
    for left, right in itertools.pairwise(ordered):
        if left.id == right.id:
            raise DatasetError(f"every document needs its own id, got {left.id!r} twice")
    return ordered


def _corpus_hash(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256(_FORMAT.encode())
    for document in documents:
        fields = (document.id, document.title, document.text)
        encoded = [field.encode("utf-8", "surrogatepass") for field in fields]
        digest.update(b"%d %d %d\n" % tuple(map(len, encoded)))
        digest.update(b"".join(encoded))
    return digest.hexdigest()


def _postings(documents: Sequence[Document]) -> _Postings:
    numbering = _Numbering()
    numbers: list[int] = []
    lengths = np.zeros(len(documents), np.int64)
    for row, document in enumerate(documents):
        words = raw_words(document.title) * _TITLE_WEIGHT + raw_words(document.text)
        searched = [number for word in words for number in numbering[word]]
        lengths[row] = len(searched)
        numbers.extend(searched)
    row_of_token = np.repeat(np.arange(len(documents), dtype=np.int64), lengths)
    pairs, counts = np.unique(
        np.asarray(numbers, np.int64) * len(documents) + row_of_token, return_counts=True
    )
    word_of_pair, rows = np.divmod(pairs, len(documents))
    starts = np.searchsorted(word_of_pair, np.arange(len(numbering.vocabulary) + 1))
    found_in = np.diff(starts)
    idf = np.log1p((len(documents) - found_in + 0.5) / (found_in + 0.5))
    relative = lengths[rows] / max(float(lengths.mean()), 1.0)
    damping = _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * relative)
    shares = idf[word_of_pair] * counts * (_SATURATION + 1) / (counts + damping)
    return _Postings(
        vocabulary=numbering.vocabulary,
        starts=starts.astype(np.int64),
        rows=rows.astype(np.int32),
        shares=np.maximum(np.rint(shares * _SCALE), 1).astype(np.int32),
    )
