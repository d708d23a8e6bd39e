"""From a task to what it is asked over: any process rebuilds the corpus from the task alone."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.errors import UnknownNameError
from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document
from envkit_search.fact_pages import FACTS, fact_index
from envkit_search.world import WORLD, WorldShape
from envkit_search.world_pages import world_index

CORPORA: Final = (FACTS, WORLD)


def task_index(task: Mapping[str, Any]) -> Bm25Index:
    """Return the index of a task's corpus; built at first, then shared in this process.

    Raises:
        UnknownNameError: The task's `corpus` is none of ours.
        ConfigurationError: The task's `world` is no shape of a world.
    """
    name = task.get("corpus")
    if name == FACTS:
        return fact_index()
    if name == WORLD:
        return world_index(WorldShape.from_json(task.get("world", {})))
    raise UnknownNameError.suggest("corpus", str(name), CORPORA)


def task_documents(task: Mapping[str, Any]) -> Sequence[Document]:
    """Return all pages of a task's corpus in the order of their ids.

    Raises:
        UnknownNameError: The task's `corpus` is none of ours.
        ConfigurationError: The task's `world` is no shape of a world.
    """
    return task_index(task).documents
