"""Open a corpus for search: a bundled one, your own file, or an index."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, DatasetError, UnknownNameError
from envkit_search.corpora import Corpus, Options, corpus_of, default_backend
from envkit_search.document import Document, SearchBackend, split_contents

_NAMES: Final = frozenset(Corpus)
SUFFIX: Final = ".jsonl"
Progress = Callable[[int, int], object]
"""Called with the number of documents read and an estimate of the total."""

_MEBIBYTE: Final = 1 << 20
_TOLD_EVERY: Final = 1000
"""Documents between calls of the progress function."""


def open_corpus(
    corpus: str,
    options: Options | None = None,
    *,
    index: str | Path | None = None,
    progress: Progress | None = None,
) -> SearchBackend:
    """Return a search over a corpus.

    Args:
        corpus: "facts" or "world"; a file of documents, see `read_documents`; or the folder
            of an index on disk.
        options: Options of the world, such as `{"seed": 1}`.
        index: Folder of a tantivy index, built if it does not exist. None searches in memory.
        progress: Called while a file is read.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: The corpus does not support options or an index.
        DatasetError: There is no such file or folder, or the file cannot be read.
        StorageError: The index cannot be read or written, or is of another corpus.
        MissingDependencyError: The index needs tantivy, which is not installed.
    """
    if corpus in _NAMES:
        corpus_of(corpus, options)
        if index is None:
            return default_backend(corpus, options)
        return _indexed(index, _identity(corpus, options), lambda: _shipped(corpus, options))
    if options:
        raise ConfigurationError(f"only the corpus 'world' takes options, got corpus {corpus!r}")
    place = Path(corpus)
    if place.is_dir():
        return _opened(place, index)
    if not place.is_file():
        if place.suffix or len(place.parts) > 1:
            raise DatasetError(f"there is no file of documents or index folder {corpus!r}")
        raise UnknownNameError.suggest("search corpus", corpus, map(str, _NAMES))
    if index is not None:
        return _indexed(index, fingerprint(place), lambda: read_documents(place, progress))
    from envkit_search.bm25 import Bm25Index, EmbeddedBackend

    return EmbeddedBackend(Bm25Index.build(read_documents(place, progress)))


def _identity(corpus: str, options: Options | None) -> str:
    if corpus == Corpus.FACTS:
        return corpus
    from envkit_search.world import WorldShape

    return f"{corpus}-{WorldShape.from_json(options or {}).label}"


def _shipped(corpus: str, options: Options | None) -> Iterable[Document]:
    if corpus == Corpus.FACTS:
        from envkit_search.fact_pages import fact_documents

        return fact_documents()
    from envkit_search.world import World, WorldShape, world_documents

    return world_documents(World(WorldShape.from_json(options or {})))


def _indexed(
    index: str | Path, identity: str, documents: Callable[[], Iterable[Document]]
) -> SearchBackend:
    from envkit_search.tantivy_backend import build_index, open_index

    if Path(index).exists():
        return open_index(index, corpus=identity)
    return build_index(index, documents(), corpus=identity)


def _opened(folder: Path, index: str | Path | None) -> SearchBackend:
    from envkit_search.tantivy_backend import open_index

    if index is not None:
        raise ConfigurationError(
            f"{str(folder)!r} is a folder and therefore already an index: omit the other "
            f"index, got {str(index)!r}"
        )
    return open_index(folder)


def read_documents(
    path: str | os.PathLike[str], progress: Progress | None = None
) -> Iterator[Document]:
    """Yield the documents of a file, in order.

    A line is `{"id", "title", "text"}`, or `{"id", "contents"}` as in the corpora of Search-R1
    (search_r1/search/retrieval_server.py), where the first line of `contents` is the title in
    quotes. An `id` may be a number; empty lines are skipped.

    Raises:
        DatasetError: The file cannot be read, or a line is not a document; the message names the
            line.
    """
    place, done, number = Path(path), 0, 0
    try:
        with place.open("rb") as lines:
            size = os.fstat(lines.fileno()).st_size
            for number, line in enumerate(lines, start=1):
                done += len(line)
                if line.strip():
                    yield _read_line(line, f"line {number} of {str(place)!r}")
                if progress is not None and number % _TOLD_EVERY == 0:
                    progress(number, max(number, number * size // done))
        if progress is not None:
            progress(number, number)
    except OSError as error:
        raise DatasetError(f"cannot read the corpus {str(place)!r}: {error}") from error


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Return a fingerprint of a corpus file: its size and a hash of its two ends.

    Hashing the whole file would take minutes for corpora that need an index on disk.

    Raises:
        DatasetError: The file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(file.read(_MEBIBYTE))
            file.seek(max(0, size - _MEBIBYTE))
            digest.update(file.read(_MEBIBYTE))
    except OSError as error:
        raise DatasetError(f"cannot read the corpus {str(path)!r}: {error}") from error
    return f"{size}-{digest.hexdigest()}"


def _read_line(line: bytes, place: str) -> Document:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{place} must be a JSON object, got {line[:80]!r}: {error}") from error
    if not isinstance(row, dict):
        raise DatasetError(f"{place} must be a JSON object, got {line[:80]!r}")
    fields = cast("dict[str, Any]", row)
    identity: Any = fields.get("id")
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise DatasetError(
            f"{place} needs an 'id', a string or a whole number, got {identity!r:.80}"
        )
    title, text = _texts(fields, place)
    return Document(id=str(identity), title=title, text=text)


def _texts(fields: dict[str, Any], place: str) -> tuple[str, str]:
    title, text, contents = (fields.get(name) for name in ("title", "text", "contents"))
    if isinstance(text, str):
        if title is not None and not isinstance(title, str):
            raise DatasetError(f"{place} needs a string as 'title', got {title!r:.80}")
        return title or "", text
    if isinstance(contents, str):
        return split_contents(contents)
    raise DatasetError(
        f"{place} needs the string 'text' (and 'title') or 'contents', got the keys "
        f"{sorted(fields)[:8]}"
    )
