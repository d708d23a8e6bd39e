"""Questions over the facts as a task source: each index is one question with one answer.

The order is hashed, so any range of indices has all kinds. Training and test questions start from
different pages: a hash of the first title decides the split.

Answers are balanced: the fixed answer that is right most often for a kind of question is right for
at most `MAX_SHARE` of that kind. Without this, "Mexico" answers half of some kinds, since a quarter
of all airports are in the United States.
"""

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envkit import ranges
from envkit.tasks import Task
from envkit_search.bridges import bridge_templates
from envkit_search.corpora import SPLITS, TEST_BELOW, checked_hops, title_hash
from envkit_search.fact_pages import FACTS
from envkit_search.facts import fact_table
from envkit_search.grading import normalize
from envkit_search.row_templates import MAX_HOPS, Template, row_templates

MAX_SHARE: Final = 0.05
"""Maximum fraction of the questions of a kind, in either split, with the same answer."""
_VERSION: Final = "facts-1"
"""Part of every hash: a new version draws different splits."""


class _Catalog(NamedTuple):
    """All Q questions, as numbers, in their shuffled order."""

    templates: list[Template]
    template: NDArray[np.int16]  # (Q,) number of the template
    row: NDArray[np.int32]  # (Q,) row of the template's group
    hops: NDArray[np.int8]  # (Q,)
    is_test: NDArray[np.bool_]  # (Q,)


class FactQuestions:
    """The task source of real facts: 158,736 questions of one to three hops."""

    def __init__(self, *, split: str = "train", hops: Collection[int] | None = None) -> None:
        """Choose the questions.

        Args:
            split: "train", "test" (an eighth) or "all"; the first two share no starting page.
            hops: Numbers of relations to follow, from 1, 2 and 3; None means all.

        Raises:
            ConfigurationError: The split or a number of hops does not exist.
        """
        self._catalog = _catalog()
        chosen = np.isin(self._catalog.hops, checked_hops(hops, MAX_HOPS))
        if ranges.one_of("split", split, SPLITS) != "all":
            chosen &= self._catalog.is_test == (split == "test")
        self._chosen = np.flatnonzero(chosen)
        self.size = len(self._chosen)
        """Number of questions."""

    def task(self, index: int) -> Task:
        """Return the question at this index as JSON data.

        Raises:
            ConfigurationError: The index is not from 0 to size - 1.
        """
        ranges.within(0, len(self._chosen) - 1, index=index)
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
    rows: list[NDArray[np.int32]] = []
    keys: list[NDArray[np.uint64]] = []
    for template in templates:
        starts = hashes[template.group]
        kind = np.uint64(title_hash(_VERSION, template.kind))
        rows.append(_balanced(template, _mixed(starts ^ kind), starts < np.uint64(TEST_BELOW)))
        keys.append(_mixed(starts[rows[-1]] ^ kind))
    order = np.argsort(np.concatenate(keys), kind="stable")
    number = np.repeat(np.arange(len(templates), dtype=np.int16), [len(kept) for kept in rows])
    starts = np.concatenate(
        [hashes[t.group][kept] for t, kept in zip(templates, rows, strict=True)]
    )
    hops = np.array([template.hops for template in templates], np.int8)[number]
    is_test = starts < np.uint64(TEST_BELOW)
    row = np.concatenate(rows)
    return _Catalog(templates, number[order], row[order], hops[order], is_test[order])


def _balanced(
    template: Template, keys: NDArray[np.uint64], is_test: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Return the rows of a template that leave no answer above `MAX_SHARE` in either split.

    A kind with fewer than 20 different answers in a split has no questions in it.

    Args:
        template: The kind of question.
        keys: Random number of each row of the group; rows with small ones are kept first.
        is_test: For each row of the group, whether its questions are test questions.
    """
    spelled: dict[tuple[str, ...], frozenset[str]] = {}
    splits: tuple[list[int], list[int]] = [], []
    right: dict[int, frozenset[str]] = {}
    for row in sorted(template.rows, key=keys.__getitem__):
        accepted = template.ask(row).accepted
        if accepted not in spelled:
            spelled[accepted] = frozenset(map(normalize, accepted))
        right[row] = spelled[accepted]
        splits[bool(is_test[row])].append(row)
    train, test = splits
    return np.array([*_capped(train, right), *_capped(test, right)], np.int32)


def _capped(rows: Sequence[int], right: Mapping[int, frozenset[str]]) -> list[int]:
    """Return the rows without those whose answer is too frequent among the ones returned.

    Args:
        rows: In order of preference.
        right: Right answers of each row.
    """
    counts = Counter(right[row] for row in rows).values()
    most = max(counts, default=0)
    while (share := int(MAX_SHARE * sum(min(count, most) for count in counts))) < most:
        most = share
    while True:  # answers that share a spelling may leave fewer rows than counted
        kept = _bounded(rows, right, most)
        if most <= MAX_SHARE * len(kept):
            return kept
        most -= 1


def _bounded(rows: Sequence[int], right: Mapping[int, frozenset[str]], most: int) -> list[int]:
    """Return the first rows such that no answer is right more than `most` times."""
    counts: Counter[str] = Counter()
    kept: list[int] = []
    for row in rows:
        answers = right[row]
        if all(counts[answer] < most for answer in answers):
            for answer in answers:
                counts[answer] += 1
            kept.append(row)
    return kept


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values scrambled by the finaliser of splitmix64 (Steele et al., 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
