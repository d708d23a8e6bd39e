"""The corpora that ship with the package, each with an index in memory and its questions."""

import threading
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.tasks import TaskSource
from envkit_search.document import SearchBackend

Options = Mapping[str, Any]
"""What else makes a corpus, JSON data: of the fictional world the fields of a `WorldShape`."""

_building: Final = threading.Lock()


class Corpus(StrEnum):
    """A corpus that ships with the package."""

    FACTS = "facts"
    """Real countries, cities, airports and elements: a model may know answers by heart."""
    WORLD = "world"
    """A fictional world, generated: nothing in it can be known beforehand."""


def corpus_of(name: str, options: Options | None = None) -> Corpus:
    """Return the corpus of a name.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: Options for the facts, which have none.
    """
    known = [member.value for member in Corpus]
    if name not in known:
        raise UnknownNameError.suggest("search corpus", name, known)
    if options and name == Corpus.FACTS:
        raise ConfigurationError(
            f"the corpus 'facts' takes no options, got corpus_options={dict(options)!r}; "
            "leave them out, or take corpus='world'"
        )
    return Corpus(name)


def default_backend(corpus: str, options: Options | None = None) -> SearchBackend:
    """Return a search over a corpus; its index is built once, which takes a second or so.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: Options that the corpus does not take.
    """
    from envkit_search.embedded import EmbeddedBackend

    chosen = corpus_of(corpus, options)
    with _building:  # two threads would build the same index twice
        if chosen is Corpus.FACTS:
            from envkit_search.fact_pages import fact_index

            return EmbeddedBackend(fact_index())
        from envkit_search.world import WorldShape
        from envkit_search.world_pages import world_index

        return EmbeddedBackend(world_index(WorldShape.from_json(options or {})))


def default_tasks(
    corpus: str, *, split: str, hops: Collection[int] | None, options: Options | None = None
) -> TaskSource:
    """Return the questions of a corpus.

    Args:
        corpus: A `Corpus` value.
        split: "train", "test" or "all".
        hops: How many pages an answer may take; None mixes all.
        options: Those of the corpus.

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
