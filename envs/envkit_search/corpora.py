"""Bundled corpora, each with an in-memory index and questions."""

import hashlib
import threading
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.tasks import TaskSource
from envkit_search.document import SearchBackend

SPLITS: Final = ("train", "test", "all")
TEST_SHARE: Final = 1 / 8
TEST_BELOW: Final = int(TEST_SHARE * 2**64)
"""A question whose first page has a smaller `title_hash` is a test question."""


def title_hash(version: str, title: str) -> int:
    """Return a hash of both below 2^64.

    Args:
        version: Version of the source, which determines the splits.
        title: Title of the page that a question starts from.
    """
    digest = hashlib.sha256(f"{version}\x1f{title}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def checked_hops(hops: Collection[int] | None, largest: int) -> list[int]:
    """Return the wanted numbers of hops in order.

    Args:
        hops: None means all from 1 to `largest`.
        largest: Maximum hops of the source.

    Raises:
        ConfigurationError: The list is empty, or a number is out of range.
    """
    wanted = sorted(range(1, largest + 1) if hops is None else set(hops))
    if not wanted or wanted[0] < 1 or wanted[-1] > largest:
        raise ConfigurationError(f"hops must be some of 1 to {largest}, got {hops!r}")
    return wanted


Options = Mapping[str, Any]
"""Options of a corpus, JSON data: for the fictional world, the fields of a `WorldShape`."""

_building: Final = threading.Lock()


class Corpus(StrEnum):
    """A bundled corpus."""

    FACTS = "facts"
    """Real countries, cities, airports and elements: a model may have memorised answers."""
    WORLD = "world"
    """A generated, fictional world: nothing in it can be memorised."""


def corpus_of(name: str, options: Options | None = None) -> Corpus:
    """Return the corpus with a name.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: The corpus "facts" has no options.
    """
    known = [member.value for member in Corpus]
    if name not in known:
        raise UnknownNameError.suggest("search corpus", name, known)
    if options and name == Corpus.FACTS:
        raise ConfigurationError(
            f"the corpus 'facts' takes no options, got corpus_options={dict(options)!r}; "
            "omit them, or use corpus='world'"
        )
    return Corpus(name)


def default_backend(corpus: str, options: Options | None = None) -> SearchBackend:
    """Return a backend for a corpus; its index is built once, in about a second.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: The corpus does not accept the options.
    """
    from envkit_search.bm25 import EmbeddedBackend

    chosen = corpus_of(corpus, options)
    with _building:  # two threads would build the same index twice
        if chosen is Corpus.FACTS:
            from envkit_search.fact_pages import fact_index

            return EmbeddedBackend(fact_index())
        from envkit_search.world import WorldShape, world_index

        return EmbeddedBackend(world_index(WorldShape.from_json(options or {})))


def default_tasks(
    corpus: str, *, split: str, hops: Collection[int] | None, options: Options | None = None
) -> TaskSource:
    """Return the questions of a corpus.

    Args:
        corpus: A `Corpus` value.
        split: "train", "test" or "all".
        hops: Pages that an answer needs; None mixes all.
        options: Options of the corpus.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: The corpus has no such split, hops or options.
    """
    if corpus_of(corpus, options) is Corpus.FACTS:
        from envkit_search.questions import FactQuestions

        return FactQuestions(split=split, hops=hops)
    from envkit_search.world import WorldShape
    from envkit_search.world_questions import WorldQuestions

    return WorldQuestions(shape=WorldShape.from_json(options or {}), split=split, hops=hops)
