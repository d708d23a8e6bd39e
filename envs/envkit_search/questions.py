"""Questions over the facts as a task source: every index is one question with one answer.

The order is a hash's, so that any stretch of indices holds all kinds. Training and test questions
start from different pages: a hash of the first title decides the split.
"""

import functools
from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envkit.errors import ConfigurationError
from envkit.tasks import Task
from envkit_search.bridges import bridge_templates
from envkit_search.fact_pages import FACTS
from envkit_search.facts import fact_table
from envkit_search.row_templates import row_templates
from envkit_search.selection import TEST_BELOW, checked_hops, checked_split, title_hash
from envkit_search.template import MAX_HOPS, Template

_VERSION: Final = "facts-1"
"""Part of every hash: another version draws other splits."""


class _Catalog(NamedTuple):
    """All Q questions, as numbers, in their shuffled order."""

    templates: list[Template]
    template: NDArray[np.int16]  # (Q,) number of the template
    row: NDArray[np.int32]  # (Q,) row of the template's group
    hops: NDArray[np.int8]  # (Q,)
    is_test: NDArray[np.bool_]  # (Q,)


class FactQuestions:
    """The task source of real facts: about 221,000 questions of one to three hops."""

    def __init__(self, *, split: str = "train", hops: Collection[int] | None = None) -> None:
        """Choose the questions.

        Args:
            split: "train", "test" (an eighth) or "all"; the first two share no starting page.
            hops: How many relations to follow, from 1, 2 and 3; None takes all.

        Raises:
            ConfigurationError: The split or a number of hops does not exist.
        """
        self._catalog = _catalog()
        chosen = np.isin(self._catalog.hops, checked_hops(hops, MAX_HOPS))
        if checked_split(split) != "all":
            chosen &= self._catalog.is_test == (split == "test")
        self._chosen = np.flatnonzero(chosen)

    @property
    def size(self) -> int | None:
        """Number of questions."""
        return len(self._chosen)

    def task(self, index: int) -> Task:
        """Return the question of this index as JSON data.

        Raises:
            ConfigurationError: The index is not from 0 to size - 1.
        """
        if not 0 <= index < len(self._chosen):
            raise ConfigurationError(
                f"task index must be from 0 to {len(self._chosen) - 1}, got {index}"
            )
        number = int(self._chosen[index])
        template = self._catalog.templates[int(self._catalog.template[number])]
        row = int(self._catalog.row[number])
        question = template.ask(row)
        is_test = bool(self._catalog.is_test[number])
        return {
            "id": f"{FACTS}/{template.kind}/{question.titles[0]}",
            "question": question.text,
            "answers": list(question.accepted),
            "hops": template.hops,
            "kind": template.kind,
            "gold_titles": list(question.titles),
            "corpus": FACTS,
            "split": "test" if is_test else "train",
        }


@functools.cache
def _catalog() -> _Catalog:
    table = fact_table()
    templates = [*row_templates(table), *bridge_templates(table)]
    hashes = {
        group: np.array([title_hash(_VERSION, title) for title in titles], np.uint64)
        for group, titles in table.group_titles().items()
    }
    counts = [len(template.rows) for template in templates]
    number = np.repeat(np.arange(len(templates), dtype=np.int16), counts)
    row = np.concatenate([np.array(template.rows, np.int32) for template in templates])
    starts = np.concatenate([hashes[template.group][template.rows] for template in templates])
    kinds = np.array([title_hash(_VERSION, template.kind) for template in templates], np.uint64)
    order = np.argsort(_mixed(starts ^ kinds[number]), kind="stable")
    hops = np.array([template.hops for template in templates], np.int8)[number]
    is_test = starts < np.uint64(TEST_BELOW)
    return _Catalog(templates, number[order], row[order], hops[order], is_test[order])


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values scrambled by the finaliser of splitmix64 (Steele et al., 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
