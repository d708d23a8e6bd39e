"""The forks of a run's episodes as indented lines, as for the leaves of `play_tree`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envkit.viewer.rows import EpisodeRow

Place = tuple[tuple[int, int], ...]
"""The path of forks from the trunk to an episode. Each fork is its turn, from 1, and its index
among the forks at that turn, from 0. Empty for an episode that is not a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An episode and its place in its tree."""

    row: EpisodeRow
    trunk: EpisodeRow
    """The episode that all others of the tree were forked from; a single episode is its own."""
    place: Place
    guide: str = ""
    """Tree lines before its title, as wide as its depth; empty for a trunk."""

    @property
    def is_lost(self) -> bool:
        """Whether it is a fork whose parent is not in the list."""
        return self.row.parent is not None and not self.place

    @property
    def lost_at(self) -> int | None:
        """Number of turns from a parent that is not in the list; None for other episodes."""
        return self.row.shared if self.is_lost else None


def leaves(rows: Sequence[EpisodeRow]) -> list[Leaf]:
    """Return the episodes, each trunk followed by its forks in order of their turn.

    Args:
        rows: Episodes of one run, in any order. Forks whose parent is missing, or is also their
            descendant, count as trunks.
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
    """Draw the lines from the last leaf to the first: a line continues if a sibling follows."""
    drawn: list[Leaf] = []
    follows: set[int] = set()
    for leaf in reversed(list(found)):
        depth = len(leaf.place)
        lines = ["│  " if level in follows else "   " for level in range(1, depth)]
        lines += ["├─ " if depth in follows else "└─ "] if depth else []
        follows = {level for level in follows if level < depth} | ({depth} if depth else set())
        drawn.append(Leaf(row=leaf.row, trunk=leaf.trunk, place=leaf.place, guide="".join(lines)))
    return drawn[::-1]
