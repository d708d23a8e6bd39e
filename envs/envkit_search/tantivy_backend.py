"""Search an index on disk with tantivy, for corpora that do not fit in memory.

Texts are tokenised as for the in-memory index (`words.tokenise`), titles count twice, and a query
with exactly the words of a title gets the same bonus. Only rounding differs: tantivy stores a
document's length in one byte, so neighbours in a ranking may swap.

An index is built in a temporary folder and moved when complete, so its folder is always a complete
index.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from envkit import errors, ranges
from envkit_search.bm25 import EXACT_TITLE_BONUS, MAX_QUERY_CHARACTERS
from envkit_search.document import Document, Hit
from envkit_search.words import title_key, tokenise

_FORMAT: Final = "envkit-tantivy-2"
"""Version of tokeniser and schema; change it with either."""
_MANIFEST: Final = "envkit.json"
_TITLE_WEIGHT: Final = 2
_WRITER_BYTES: Final = 128_000_000
"""Memory of a build before it flushes to disk."""
_REMOVALS: Final = 50
_REMOVAL_PAUSE_S: Final = 0.02


class TantivyBackend:
    """Answers queries from an index on disk, on threads. Open it with `open_index`."""

    is_deterministic = True
    """For the same index; another build may order ties differently."""

    def __init__(self, folder: Path, tantivy: Any) -> None:  # noqa: ANN401  # the module
        self._folder, self._tantivy = folder, tantivy
        index: Any = tantivy.Index.open(str(folder))
        self._schema: Any = index.schema
        self._searcher: Any = index.searcher()
        self.size = int(self._searcher.num_docs)
        """Number of documents."""

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first, at most `topk` each.

        Raises:
            ConfigurationError: `topk` is below 1.
            EnvFault: The index cannot be read any more.
        """
        return await asyncio.to_thread(self.search_now, queries, topk)

    def search_now(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Search on this thread; see `search`.

        Raises:
            ConfigurationError: `topk` is below 1.
            EnvFault: The index cannot be read any more.
        """
        ranges.at_least(1, topk=topk)
        try:
            return [self._hits(query[:MAX_QUERY_CHARACTERS], topk) for query in queries]
        except (OSError, ValueError) as error:  # tantivy's error for a missing file
            raise errors.EnvFault(
                f"the search index {str(self._folder)!r} failed: {error}",
                kind=errors.FaultKind.PERMANENT,
            ) from error

    async def aclose(self) -> None:
        """Do nothing: files are released with the object."""

    def _hits(self, query: str, topk: int) -> list[Hit]:
        words = tokenise(query)
        if not words:
            return []
        should = self._tantivy.Occur.Should
        terms = [(should, self._term("words", word, "freq")) for word in dict.fromkeys(words)]
        ranked = self._tantivy.Query.boolean_query(terms)
        titled = self._titled(title_key(query), ranked, topk)
        places = {(place.segment_ord, place.doc) for _, place in titled}
        others = [
            found
            for found in self._searcher.search(ranked, topk, count=False).hits
            if (found[1].segment_ord, found[1].doc) not in places
        ]
        return [
            Hit(document=self._document(place), score=score)
            for score, place in (*titled, *others)[:topk]
        ]

    def _titled(self, key: str, ranked: Any, topk: int) -> list[tuple[float, Any]]:  # noqa: ANN401  # a query
        """Return score and address of documents whose title has exactly these words."""
        queries, occur = self._tantivy.Query, self._tantivy.Occur
        title = queries.const_score_query(self._term("title", key, "basic"), EXACT_TITLE_BONUS)
        both = queries.boolean_query([(occur.Must, title), (occur.Should, ranked)])
        return self._searcher.search(both, topk, count=False).hits

    def _term(self, field: str, value: str, kept: str) -> Any:  # noqa: ANN401  # a query
        return self._tantivy.Query.term_query(self._schema, field, value, index_option=kept)

    def _document(self, place: Any) -> Document:  # noqa: ANN401  # an address
        stored: bytes = self._searcher.doc(place).get_first("document")
        identity, title, text = cast("list[str]", json.loads(stored))
        return Document(id=identity, title=title, text=text)


def build_index(
    folder: str | Path, documents: Iterable[Document], *, corpus: str = ""
) -> TantivyBackend:
    """Build an index of the documents and open it; an interrupted build leaves nothing.

    Args:
        folder: Folder of the index; must not exist.
        documents: With unique ids, which is not checked.
        corpus: Identity of the corpus, such as an `opening.fingerprint`.

    Raises:
        StorageError: The folder exists or cannot be written.
        DatasetError: There is no document, or `documents` raises it.
        MissingDependencyError: tantivy is not installed.
    """
    tantivy, place = _tantivy(), Path(folder)
    if place.exists():
        raise errors.StorageError(
            f"cannot build an index at {str(place)!r}: it exists; choose another folder"
        )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=place.parent, prefix=f"{place.name}.", suffix=".part"))
    except OSError as error:
        raise errors.StorageError(f"cannot build an index at {str(place)!r}: {error}") from error
    try:
        count = _write(tantivy, part, documents)
        manifest = {"format": _FORMAT, "documents": count, "corpus": corpus}
        (part / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        part.chmod(0o755)
        part.rename(place)
    except OSError as error:
        raise errors.StorageError(f"cannot build an index at {str(place)!r}: {error}") from error
    finally:
        _remove(part)
    return open_index(place)


def open_index(folder: str | Path, *, corpus: str | None = None) -> TantivyBackend:
    """Open an index that `build_index` made.

    Args:
        folder: Folder of the index.
        corpus: Identity of the corpus it must be built from; None accepts any.

    Raises:
        StorageError: There is no index, it is damaged, or of another corpus or format.
        MissingDependencyError: tantivy is not installed.
    """
    tantivy, place = _tantivy(), Path(folder)
    try:
        manifest: Any = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        is_ours = manifest["format"] == _FORMAT
        backend = TantivyBackend(place, tantivy) if is_ours else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.StorageError(
            f"{str(place)!r} is not a search index: {error}; build one first"
        ) from error
    if backend is None or (corpus is not None and manifest["corpus"] != corpus):
        raise errors.StorageError(
            f"the search index {str(place)!r} was built from another corpus or by another version; "
            "delete it, or choose another folder"
        )
    if backend.size != manifest["documents"]:
        raise errors.StorageError(
            f"the search index {str(place)!r} is damaged: it must hold {manifest['documents']} "
            f"documents, got {backend.size}; delete it and build it again"
        )
    return backend


def _write(tantivy: Any, folder: Path, documents: Iterable[Document]) -> int:  # noqa: ANN401  # the module
    """Write the index's files; return the number of documents."""
    index: Any = tantivy.Index(_schema(tantivy), path=str(folder))
    # One thread, so that equal scores keep the documents' order; reading words is the slower part.
    writer: Any = index.writer(heap_size=_WRITER_BYTES, num_threads=1)
    count = 0
    try:
        for document in documents:
            writer.add_document(_entry(tantivy, document))
            count += 1
        if not count:
            raise errors.DatasetError("an index needs at least one document, got none")
        writer.commit()
    finally:
        writer.wait_merging_threads()  # they write files, which are about to be moved or removed
    return count


def _remove(folder: Path) -> None:
    """Remove a folder, again if tantivy's own threads create a lock file in it meanwhile."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_REMOVAL_PAUSE_S)


def _entry(tantivy: Any, document: Document) -> Any:  # noqa: ANN401  # the module and its document
    title = tokenise(document.title)
    entry: Any = tantivy.Document()
    entry.add_text("words", " ".join([*title * _TITLE_WEIGHT, *tokenise(document.text)]))
    entry.add_text("title", title_key(document.title))
    stored = json.dumps([document.id, document.title, document.text])
    entry.add_bytes("document", stored.encode())
    return entry


def _schema(tantivy: Any) -> Any:  # noqa: ANN401  # the module and its schema
    builder: Any = tantivy.SchemaBuilder()
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("title", tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field("document", stored=True)
    return builder.build()


def _tantivy() -> ModuleType:
    """Import tantivy.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import tantivy
    except ImportError as error:
        raise errors.MissingDependencyError.for_extra(
            "a search index on disk", "tantivy", "search"
        ) from error
    return tantivy
