"""Which episodes were forked from which: the leaves of `play_tree`, as a list of indented lines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envkit.viewer.rows import EpisodeRow

Place = tuple[tuple[int, int], ...]
"""Where an episode was forked, from its trunk on: the turn, from 1, and the number among the forks
there, from 0. Empty for an episode that is not a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An episode and its place in its tree."""

    row: EpisodeRow
    trunk: EpisodeRow
    """The episode that all others of the tree were forked from; of a single episode, itself."""
    place: Place
    guide: str = ""
    """Lines that lead to it, as wide as its depth; empty for a trunk."""

    @property
    def is_lost(self) -> bool:
        """Whether it is a fork whose parent is not in the list."""
        return self.row.parent is not None and not self.place

    @property
    def lost_at(self) -> int | None:
        """How many turns are those of a parent that is not in the list; None for others."""
        return self.row.shared if self.is_lost else None


def leaves(rows: Sequence[EpisodeRow]) -> list[Leaf]:
    """Return the episodes, each trunk with its forks after it, by the turn of the fork.

    Args:
        rows: Episodes of one run, in any order. Forks whose parent is missing, or comes from them
            in turn, count as trunks.
    """
    forks: dict[str, list[EpisodeRow]] = {}
    known = {row.episode_id for row in rows}
    for row in rows:
        if row.parent in known:
            forks.setdefault(row.parent, []).append(row)
    found: dict[int, Leaf] = {}
    rooted = [row for row in rows if row.parent not in known]
    for trunk in (*rooted, *rows):  # after the trees, what is in a cycle
        waiting = [Leaf(row=trunk, trunk=trunk, place=())]
        while waiting:
            leaf = waiting.pop()
            if id(leaf.row) in found:
                continue
            found[id(leaf.row)] = leaf
            waiting += reversed(_forks(leaf, forks.pop(leaf.row.episode_id, ())))
    return _guided(found.values())


def _forks(leaf: Leaf, rows: Iterable[EpisodeRow]) -> list[Leaf]:
    counts: dict[int, int] = {}
    found: list[Leaf] = []
    for row in sorted(rows, key=lambda one: one.shared):
        number = counts.get(row.shared, 0)
        counts[row.shared] = number + 1
        place = (*leaf.place, (row.shared + 1, number))
        found.append(Leaf(row=row, trunk=leaf.trunk, place=place))
    return found


def _guided(found: Iterable[Leaf]) -> list[Leaf]:
    """Draw the lines from the last leaf to the first: a line goes on where a sibling follows."""
    drawn: list[Leaf] = []
    follows: set[int] = set()
    for leaf in reversed(list(found)):
        depth = len(leaf.place)
        lines = ["│  " if level in follows else "   " for level in range(1, depth)]
        lines += ["├─ " if depth in follows else "└─ "] if depth else []
        follows = {level for level in follows if level < depth} | ({depth} if depth else set())
        drawn.append(Leaf(row=leaf.row, trunk=leaf.trunk, place=leaf.place, guide="".join(lines)))
    return drawn[::-1]
