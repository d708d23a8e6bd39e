"""Two runs on the same seeds, episode by episode: which belong together, and what changed.

A pair has the same environment and seed and the same number among the episodes that are equal in
both. Which sample of a group came first in its file is chance, so role and member number decide
where the rollout recorded them, and the order of the file where it did not.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envkit.metrics.intervals import Interval, mean_interval
from envkit.viewer.rows import EpisodeRow


class Flip(StrEnum):
    """What is different in the second episode of a pair. A pair may have several."""

    NOW_SOLVED = "now solved"
    """The reward was 0 or below and is above 0."""
    NOW_FAILED = "now failed"
    """The reward was above 0 and is 0 or below."""
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
    OTHER_TASK = "other task"
    """The same seed gave another task: the environment or its data changed, so compare with
    care."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An episode of the first run and the one of the second that belongs to it."""

    first: EpisodeRow
    second: EpisodeRow

    @property
    def flips(self) -> tuple[Flip, ...]:
        """Everything that changed, in the order of `Flip`; empty for episodes alike."""
        return tuple(flip for flip in Flip if _TESTS[flip](self.first, self.second))


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Two runs side by side."""

    pairs: tuple[Pair, ...]
    """In the order of the first run."""
    only_first: tuple[EpisodeRow, ...]
    only_second: tuple[EpisodeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference:
    """A mean over seeds of second minus first."""

    mean: float
    interval: Interval | None
    """95%, from resampling seeds: samples of one task are not independent, so a seed's pairs count
    as one draw. None where the seeds do not tell: fewer than five, or all with the same
    difference."""
    pairs: int
    seeds: int


def match(first: Sequence[EpisodeRow], second: Sequence[EpisodeRow]) -> Matching:
    """Return which episodes belong together."""
    left, right = list(first), list(second)
    found: dict[int, Pair] = {}
    for key in (_exact_key, _seed_key):
        waiting = _grouped(right, key)
        for facts in left:
            group = waiting.get(key(facts))
            if group:
                found[id(facts)] = Pair(first=facts, second=group.pop(0))
        taken = {id(pair.second) for pair in found.values()}
        left = [facts for facts in left if id(facts) not in found]
        right = [facts for facts in right if id(facts) not in taken]
    pairs = (found[id(facts)] for facts in first if id(facts) in found)
    return Matching(pairs=tuple(pairs), only_first=tuple(left), only_second=tuple(right))


def mean_difference(
    pairs: Iterable[Pair], value: Callable[[EpisodeRow], float | None]
) -> MeanDifference | None:
    """Return the mean of second minus first over the seeds that have both values.

    Args:
        pairs: Of a matching.
        value: Of an episode; None leaves its pair out.

    Returns:
        None without a pair that has both.
    """
    by_seed: defaultdict[Hashable, list[float]] = defaultdict(list)
    for pair in pairs:
        before, after = value(pair.first), value(pair.second)
        if before is not None and after is not None and math.isfinite(after - before):
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


def _is_failed(facts: EpisodeRow) -> bool:
    return facts.reward is not None and not facts.is_solved


def _rewards_differ(first: EpisodeRow, second: EpisodeRow) -> bool:
    both = first.reward is not None and second.reward is not None
    return both and first.reward != second.reward


_TESTS: Final[dict[Flip, Callable[[EpisodeRow, EpisodeRow], bool]]] = {
    Flip.NOW_SOLVED: lambda first, second: _is_failed(first) and second.is_solved,
    Flip.NOW_FAILED: lambda first, second: first.is_solved and _is_failed(second),
    Flip.NEW_FAULT: lambda first, second: (
        second.stop_reason.is_fault and not first.stop_reason.is_fault
    ),
    Flip.FAULT_GONE: lambda first, second: (
        first.stop_reason.is_fault and not second.stop_reason.is_fault
    ),
    Flip.OTHER_STOP: lambda first, second: first.stop_reason is not second.stop_reason,
    Flip.OTHER_REWARD: _rewards_differ,
    Flip.OTHER_REPLIES: lambda first, second: first.replies_hash != second.replies_hash,
    Flip.OTHER_TASK: lambda first, second: first.task_hash != second.task_hash,
}


def _seed_key(facts: EpisodeRow) -> Hashable:
    """Return what a pair must share; without a seed, the task stands for it."""
    what = facts.task_hash if facts.seed is None else facts.seed
    return (facts.env_id, what, facts.role)


def _exact_key(facts: EpisodeRow) -> Hashable:
    return (_seed_key(facts), facts.member)


def _grouped(
    facts: Iterable[EpisodeRow], key: Callable[[EpisodeRow], Hashable]
) -> defaultdict[Hashable, list[EpisodeRow]]:
    groups: defaultdict[Hashable, list[EpisodeRow]] = defaultdict(list)
    for one in facts:
        groups[key(one)].append(one)
    return groups
