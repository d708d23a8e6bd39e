"""The corpora that ship with the package, each with an index in memory and its questions.

A corpus and its index are built on first use and kept: a second environment of the same process
takes the same objects.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.tasks import TaskSource
from envkit_search.document import SearchBackend

Options = Mapping[str, Any]
"""What else makes a corpus, JSON data; of the fictional world its `seed` and `size`."""

_lock = threading.Lock()


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
    """Return the index over a corpus; the first call for it takes a second or so.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: Options that the corpus does not take.
    """
    chosen = corpus_of(corpus, options)
    with _lock:  # two threads would build the same index twice
        return _backend(chosen, json.dumps(dict(options or {}), sort_keys=True))


def default_tasks(
    corpus: str, *, split: str, hops: Sequence[int] | None, options: Options | None = None
) -> TaskSource:
    """Return the questions of a corpus.

    Args:
        corpus: A `Corpus` value.
        split: "train" or "test".
        hops: How many pages an answer may take; None mixes all.
        options: Those of the corpus.

    Raises:
        UnknownNameError: There is no such corpus.
        ConfigurationError: The corpus has no such split or hops.
    """
    if corpus_of(corpus, options) is Corpus.FACTS:
        from envkit_search.questions import FactQuestions

        return FactQuestions(split=split, hops=hops)
    from envkit_search.world import WorldQuestions

    return WorldQuestions(split=split, hops=hops, **dict(options or {}))


@lru_cache(maxsize=4)  # a fresh world every epoch must not fill the memory
def _backend(corpus: Corpus, options: str) -> SearchBackend:
    from envkit_search.bm25 import Bm25Index
    from envkit_search.embedded import EmbeddedBackend

    if corpus is Corpus.FACTS:
        from envkit_search.facts import load_facts

        return EmbeddedBackend(Bm25Index.build(load_facts().documents))
    from envkit_search.world import World

    return EmbeddedBackend(Bm25Index.build(World(**json.loads(options)).documents))
