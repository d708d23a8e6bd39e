"""Open a corpus for search: a bundled one, your own file, or an index."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from envkit.errors import ConfigurationError, DatasetError, UnknownNameError
from envkit_search.corpora import Corpus, Options, corpus_of, default_backend
from envkit_search.corpus_file import Progress, fingerprint, read_documents
from envkit_search.document import Document, SearchBackend

_NAMES: Final = frozenset(Corpus)


def open_corpus(
    corpus: str,
    options: Options | None = None,
    *,
    index: str | Path | None = None,
    progress: Progress | None = None,
) -> SearchBackend:
    """Return a search over a corpus.

    Args:
        corpus: "facts" or "world"; a file of documents, see `corpus_file`; or the folder of an
            index on disk.
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
    from envkit_search.bm25 import Bm25Index
    from envkit_search.embedded import EmbeddedBackend

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
    from envkit_search.world import World, WorldShape
    from envkit_search.world_pages import world_documents

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
