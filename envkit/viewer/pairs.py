"""Pair the episodes of two runs on the same seeds, and find what changed.

The episodes of a pair have the same environment and seed. If several do, role and member number
decide, because the order of a group's samples in the file is random. If the rollout did not record
these, the order in the file decides. A fork is paired with the fork at the same place of the paired
tree.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envkit.metrics.intervals import Interval, mean_interval
from envkit.viewer.figures import is_summable
from envkit.viewer.rows import EpisodeRow
from envkit.viewer.trees import Leaf, leaves


class PairChange(StrEnum):
    """A change from the first to the second episode of a pair, which may have several."""

    NOW_SOLVED = "now solved"
    """Only the second solved the task."""
    NOW_FAILED = "now failed"
    """Only the first solved the task."""
    NEW_FAULT = "new fault"
    """Infrastructure ended only the second."""
    FAULT_GONE = "fault gone"
    """Infrastructure ended only the first."""
    OTHER_STOP = "other ending"
    """The stop reasons differ."""
    OTHER_REWARD = "other reward"
    """Both have a reward, and they differ."""
    OTHER_REPLIES = "other replies"
    """The model said something else."""
    OTHER_HISTORY = "other history"
    """Its history was rewritten at another turn or in another way."""
    OTHER_TASK = "other task"
    """The same seed gave another task: the environment or its data changed, so compare with
    care."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An episode of the first run and its counterpart in the second."""

    first: EpisodeRow
    second: EpisodeRow

    @property
    def flips(self) -> tuple[PairChange, ...]:
        """Everything that changed, in the order of `PairChange`; empty if nothing did."""
        return tuple(flip for flip in PairChange if _TESTS[flip](self.first, self.second))


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Two runs side by side."""

    pairs: tuple[Pair, ...]
    """In the order of the first run."""
    only_first: tuple[EpisodeRow, ...]
    only_second: tuple[EpisodeRow, ...]
    """Excludes forks of episodes that both runs have, as does `only_first`."""
    forks_first: tuple[EpisodeRow, ...] = ()
    """Forks of paired episodes at places where the other run has none."""
    forks_second: tuple[EpisodeRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference:
    """The mean over seeds of the second value minus the first."""

    mean: float
    interval: Interval | None
    """95%, from resampling seeds: samples of one task are not independent, so a seed's pairs count
    as one draw. None if it cannot be estimated: fewer than five seeds, or all with the same
    difference."""
    pairs: int
    seeds: int


def match(first: Sequence[EpisodeRow], second: Sequence[EpisodeRow]) -> Matching:
    """Return which episodes belong together."""
    left, right = leaves(first), leaves(second)
    trunks: dict[int, Hashable] = {}
    found: dict[int, Pair] = {}
    for key in (_exact_key, _seed_key):
        _pair_up(
            left, right, found, lambda leaf, key=key: (leaf.lost_at, key(leaf.row)), is_fork=False
        )
    for number, pair in enumerate(found.values()):
        trunks[id(pair.first)] = trunks[id(pair.second)] = number

    def fork_key(leaf: Leaf) -> Hashable:  # without a pair of trunks, no two are equal
        return (leaf.place, trunks.get(id(leaf.trunk), object()))

    _pair_up(left, right, found, fork_key, is_fork=True)
    pairs = [found[id(row)] for row in first if id(row) in found]
    taken = {id(row) for pair in pairs for row in (pair.first, pair.second)}
    alone = [[leaf for leaf in side if id(leaf.row) not in taken] for side in (left, right)]
    forks = [[one for one in side if one.place and id(one.trunk) in trunks] for side in alone]
    return Matching(
        pairs=tuple(pairs),
        only_first=_in_order(first, alone[0], forks[0]),
        only_second=_in_order(second, alone[1], forks[1]),
        forks_first=_in_order(first, forks[0], ()),
        forks_second=_in_order(second, forks[1], ()),
    )


def _pair_up(
    first: Sequence[Leaf],
    second: Sequence[Leaf],
    found: dict[int, Pair],
    key: Callable[[Leaf], Hashable],
    *,
    is_fork: bool,
) -> None:
    """Pair trunks, or forks, that have equal keys and no partner yet."""
    taken = {id(pair.second) for pair in found.values()}
    waiting: defaultdict[Hashable, list[Leaf]] = defaultdict(list)
    for leaf in second:
        if bool(leaf.place) is is_fork and id(leaf.row) not in taken:
            waiting[key(leaf)].append(leaf)
    for leaf in first:
        if bool(leaf.place) is is_fork and id(leaf.row) not in found:
            group = waiting.get(key(leaf))
            if group:
                found[id(leaf.row)] = Pair(first=leaf.row, second=group.pop(0).row)


def _in_order(
    rows: Sequence[EpisodeRow], kept: Iterable[Leaf], without: Iterable[Leaf]
) -> tuple[EpisodeRow, ...]:
    """Return the rows of some leaves in the order of their run."""
    names = {id(leaf.row) for leaf in kept} - {id(leaf.row) for leaf in without}
    return tuple(row for row in rows if id(row) in names)


def mean_difference(
    pairs: Iterable[Pair], value: Callable[[EpisodeRow], float | None]
) -> MeanDifference | None:
    """Return the mean of second minus first over the seeds that have both values.

    Args:
        pairs: Pairs of a matching.
        value: Returns the value of an episode; None excludes its pair.

    Returns:
        None without a pair that has both.
    """
    by_seed: defaultdict[Hashable, list[float]] = defaultdict(list)
    for pair in pairs:
        before, after = value(pair.first), value(pair.second)
        if is_summable(before) and is_summable(after):
            by_seed[_seed_key(pair.first)].append(after - before)
    if not by_seed:
        return None
    means = [sum(values) / len(values) for values in by_seed.values()]
    return MeanDifference(
        mean=sum(means) / len(means),
        interval=mean_interval(means),
        pairs=sum(map(len, by_seed.values())),
        seeds=len(means),
    )


def _rewards_differ(first: EpisodeRow, second: EpisodeRow) -> bool:
    both = first.reward is not None and second.reward is not None
    return both and first.reward != second.reward


_TESTS: Final[dict[PairChange, Callable[[EpisodeRow, EpisodeRow], bool]]] = {
    PairChange.NOW_SOLVED: lambda first, second: (
        first.is_solved is False and second.is_solved is True
    ),
    PairChange.NOW_FAILED: lambda first, second: (
        first.is_solved is True and second.is_solved is False
    ),
    PairChange.NEW_FAULT: lambda first, second: (
        second.stop_reason.is_fault and not first.stop_reason.is_fault
    ),
    PairChange.FAULT_GONE: lambda first, second: (
        first.stop_reason.is_fault and not second.stop_reason.is_fault
    ),
    PairChange.OTHER_STOP: lambda first, second: first.stop_reason is not second.stop_reason,
    PairChange.OTHER_REWARD: _rewards_differ,
    PairChange.OTHER_REPLIES: lambda first, second: first.replies_hash != second.replies_hash,
    PairChange.OTHER_HISTORY: lambda first, second: first.history_hash != second.history_hash,
    PairChange.OTHER_TASK: lambda first, second: first.task_hash != second.task_hash,
}


def _seed_key(facts: EpisodeRow) -> Hashable:
    """Return what a pair must share; without a seed, the task stands for it."""
    what = facts.task_hash if facts.seed is None else facts.seed
    return (facts.env_id, what, facts.role)


def _exact_key(facts: EpisodeRow) -> Hashable:
    return (_seed_key(facts), facts.member)
