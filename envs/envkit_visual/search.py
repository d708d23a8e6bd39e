"""Search over the states of a world."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from random import Random
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

Steps = Callable[[T], Iterable[tuple[str, T]]]
"""Returns the names and nodes of the steps from a node. Their order breaks ties."""


def shared(one: Iterable[object], other: Iterable[object]) -> int:
    """Return how many items two sequences share, from the first on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def distances(starts: Iterable[T], steps: Steps[T], *, most: int | None = None) -> dict[T, int]:
    """Return the steps from the nearest start to all that can be reached.

    Args:
        starts: Where to begin.
        steps: The steps from a node.
        most: Stop after this many; None finds all.
    """
    found = dict.fromkeys(starts, 0)
    waiting = deque(found)
    while waiting and (most is None or len(found) <= most):
        here = waiting.popleft()
        for _, following in steps(here):
            if following not in found:
                found[following] = found[here] + 1
                waiting.append(following)
    return found


def descent(start: T, far: Mapping[T, int], steps: Steps[T]) -> list[str]:
    """Return the names of the fewest steps to a goal, by the distances to it that `far` holds."""
    names: list[str] = []
    while far[start]:
        less = far[start] - 1
        name, start = next(step for step in steps(start) if far.get(step[1]) == less)
        names.append(name)
    return names


def shortest(start: T, is_goal: Callable[[T], bool], steps: Steps[T]) -> list[str] | None:
    """Return the names of the fewest steps to a goal by breadth-first search; None without a way.

    Args:
        start: First node.
        is_goal: Whether a node is a goal.
        steps: The steps from a node.
    """
    ways: dict[T, tuple[str, ...]] = {start: ()}
    waiting = [start]
    for node in waiting:
        if is_goal(node):
            return list(ways[node])
        for name, following in steps(node):
            if following not in ways:
                ways[following] = (*ways[node], name)
                waiting.append(following)
    return None


def fillings(
    board: Sequence[str], kinds: Sequence[str], peers: list[list[int]], rng: Random | None = None
) -> Iterator[tuple[str, ...]]:
    """Yield the ways to fill the gaps of a board so that no place equals one of its peers.

    Args:
        board: What is in each place; an empty text is a gap.
        kinds: What may fill a gap. The gap with the fewest of them is filled first.
        peers: The places that each place has to differ from.
        rng: Draws the order of the kinds; None keeps it.
    """
    used = {at: {board[peer] for peer in peers[at]} for at, kind in enumerate(board) if not kind}
    if not used:
        yield tuple(board)
        return
    gap = max(used, key=lambda at: len(used[at] - {""}))
    free = [kind for kind in kinds if kind not in used[gap]]
    if rng is not None:
        rng.shuffle(free)
    for kind in free:
        yield from fillings((*board[:gap], kind, *board[gap + 1 :]), kinds, peers, rng)
