"""Group-relative advantages of episodes and of turns, and credit in a tree of episodes.

GRPO compares the episodes of one prompt (Shao et al. 2024, "DeepSeekMath", section 4.1). A faulted
episode has no reward, so it is excluded from mean and deviation and its advantage is 0. Trainers
that cannot exclude a member get the mean of the others instead.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, stdev
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envkit.errors import ConfigurationError
from envkit.trajectory.projection import Row
from envkit.trajectory.trajectory import Trajectory

EPSILON: Final = 1e-6
"""Added to a deviation, as slime, miles, verl and SkyRL do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The baseline of a group: mean and deviation of its rewards."""

    mean: float = 0.0
    """0.0 for a group without any reward."""
    deviation: float = 0.0
    """Sample standard deviation (divided by count - 1); 0.0 with fewer than two rewards."""
    count: int = 0
    """Number of members with a reward."""

    @classmethod
    def of(cls, rewards: Iterable[float | None]) -> "Baseline":
        """Return the baseline of a group.

        Args:
            rewards: One per episode; None for a faulted episode, which is excluded.
        """
        known = [reward for reward in rewards if reward is not None]
        if not known:
            return cls()
        deviation = stdev(known) if len(known) > 1 else 0.0
        return cls(mean=fmean(known), deviation=deviation, count=len(known))

    def advantage(
        self, reward: float | None, *, is_scaled: bool, epsilon: float = EPSILON
    ) -> float:
        """Return a member's advantage; 0.0 without a reward.

        Args:
            reward: The member's reward.
            is_scaled: Whether to divide by the deviation.
            epsilon: Added to the deviation.
        """
        if reward is None:
            return 0.0
        centred = reward - self.mean
        return centred / (self.deviation + epsilon) if is_scaled else centred


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRewards:
    """The rewarded turns of one episode. Axes: R response tokens of its rows, joined."""

    length: int
    """R."""
    ends: tuple[int, ...]
    """Per turn, the index after its reply's last token; ascending, at most R."""
    rewards: tuple[float, ...]
    """One reward per turn."""

    @classmethod
    def of_rows(cls, rows: Sequence[Row]) -> "TurnRewards | None":
        """Build from the rows of an episode; None without a reward.

        Args:
            rows: At least one, with their turns in the order in which the model was asked. For an
                episode of several rows these are `envkit.trajectory.call_rows`.
        """
        if rows[-1].reward is None:
            return None
        starts = [0, *accumulate(len(row.response_ids) for row in rows)]
        found = [
            (start + index + 1, reward)
            for start, row in zip(starts, rows, strict=False)
            for index, reward in row.turn_rewards
        ]
        return cls(
            length=starts[-1],
            ends=tuple(end for end, _ in found),
            rewards=tuple(reward for _, reward in found),
        )

    @classmethod
    def of_columns(cls, loss_mask: Sequence[int], rewards: Sequence[float]) -> "TurnRewards":
        """Build from a trainer's columns, (R,) each; a turn is a run of sampled tokens.

        Two replies are always separated by an observation, whose tokens have mask 0.
        """
        ends: list[int] = []
        totals: list[float] = []
        total = 0.0
        for index, (is_sampled, reward) in enumerate(zip(loss_mask, rewards, strict=True)):
            total += reward
            following = loss_mask[index + 1] if index + 1 < len(loss_mask) else 0
            if is_sampled and not following:
                ends.append(index + 1)
                totals.append(total)
                total = 0.0
        if totals:
            totals[-1] += total  # a reward after the last reply
        return cls(length=len(loss_mask), ends=tuple(ends), rewards=tuple(totals))

    def bounds(self) -> tuple[int, ...]:
        """Return the bounds of turns; tokens after the last reward are a separate turn."""
        ends = self.ends if self.length in self.ends else (*self.ends, self.length)
        return (0, *ends)

    def returns(self, discount: float) -> list[float]:
        """Return each turn's reward plus the discounted later ones."""
        found = [0.0] * (len(self.bounds()) - 1 - len(self.rewards))
        later = 0.0
        for reward in reversed(self.rewards):
            later = reward + discount * later
            found.append(later)
        return found[::-1]


def turn_advantages(
    turns: Sequence[TurnRewards | None],
    groups: Sequence[Hashable],
    *,
    discount: float,
    is_scaled: bool,
    epsilon: float = EPSILON,
) -> list[NDArray[np.float32]]:
    """Return each token's advantage: its turn's discounted return against its group's.

    A turn is compared with the same turn of the group's other members. Tokens of an observation
    belong to the turn that they precede.

    Args:
        turns: One per episode; None for one without a reward, which gets a single 0.0.
        groups: The group key of each episode.
        discount: Discount per turn; with 0 each turn has only its own reward, with 1 the sum of its
            own and all later ones.
        is_scaled: Whether to divide by the deviation of the group's returns.
        epsilon: Added to the deviation.

    Returns:
        (R,) per episode. A turn that no other member of the group reached has 0.0.
    """
    found = [np.zeros(1 if one is None else one.length, np.float32) for one in turns]
    returns = [[] if one is None else one.returns(discount) for one in turns]
    members: dict[Hashable, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    for numbers in members.values():
        for turn in range(max(len(returns[number]) for number in numbers)):
            present = [number for number in numbers if turn < len(returns[number])]
            baseline = Baseline.of(returns[number][turn] for number in present)
            for number in present:
                row = turns[number]
                assert row is not None  # it has returns
                start, end = row.bounds()[turn : turn + 2]
                found[number][start:end] = baseline.advantage(
                    returns[number][turn], is_scaled=is_scaled, epsilon=epsilon
                )
    return found


def tree_advantages(
    leaves: Iterable[Trajectory], *, local_share: float = 0.5
) -> dict[str, tuple[float, ...]]:
    """Return the credit of each turn in a tree of forked episodes.

    Forks cut an episode's own turns into spans. The value of a span is the mean reward of the
    leaves that contain it, and the value of the root is the mean over all leaves. A turn is
    credited with `(1 - local_share) * (V(span) - V(root)) + local_share * (V(span) - V(parent))`,
    where the parent is the span before the latest fork. Episodes that are not forks, such as the
    members of a GRPO group, are children of one root, so several trees of a task are compared
    with each other. Without forks, and with forks before turn 0, this is the reward minus the
    group's mean.

    The values and the global and local differences are those of TreeRL (Hou et al. 2025, "TreeRL:
    LLM Reinforcement Learning with On-Policy Tree Search"). TreeRL adds the two differences; here
    they are averaged, so trees and groups have the same scale. TreeRL also divides by the square
    root of the number of leaves below a span, because it trains a shared span once per leaf. envkit
    trains it once and does not divide.

    Args:
        leaves: Every leaf of one or more trees of one task, in any order. Leaves without a reward
            (faulted or aborted) are excluded, and their own turns get 0.0.
        local_share: Weight of the local difference, from 0 to 1.

    Returns:
        One number for each of the K turns, (K,), by episode id. Turns that belong to the parent
        get 0.0; the parent's entry has their credit.

    Raises:
        ConfigurationError: `local_share` is out of range, two leaves have the same id, a reward is
            not finite, or an origin is missing, circular or outside its episode.
    """
    if not 0.0 <= local_share <= 1.0:
        raise ConfigurationError(f"local_share must be from 0 to 1, got {local_share}")
    leaves = tuple(leaves)
    by_id = {leaf.episode_id: leaf for leaf in leaves}
    if len(by_id) != len(leaves):
        raise ConfigurationError("leaves must have different episode ids, got the same id twice")
    for leaf in leaves:
        if leaf.reward is not None and not math.isfinite(leaf.reward):
            raise ConfigurationError(
                f"rewards must be finite, got {leaf.reward} of leaf {leaf.episode_id!r}"
            )
    rewarded = [leaf for leaf in leaves if leaf.reward is not None]
    spans = _spans_of(rewarded, by_id)
    values = _values_of(rewarded, spans)
    credit = {leaf.episode_id: [0.0] * len(leaf.turns) for leaf in leaves}
    for leaf in rewarded:
        whole = spans[leaf.episode_id]
        for parent, span in zip((None, *whole), whole, strict=False):
            if span[0] == leaf.episode_id:
                against = (1 - local_share) * values[None] + local_share * values[parent]
                found = values[span] - against
                credit[leaf.episode_id][span[1] : span[2]] = [found] * (span[2] - span[1])
    return {name: tuple(one) for name, one in credit.items()}


_Span = tuple[str, int, int]
"""The episode that owns it, its first turn, and the turn after its last one."""


def _path(leaf: Trajectory, by_id: Mapping[str, Trajectory]) -> Iterator[tuple[str, int]]:
    """Yield the episodes that a leaf consists of, itself first, and the turn where each ends."""
    end, here = len(leaf.turns), leaf
    seen = {leaf.episode_id}
    yield leaf.episode_id, end
    while here.origin is not None:
        parent = by_id.get(here.origin.episode_id)
        if parent is None or parent.episode_id in seen:
            raise ConfigurationError(
                f"the origin {here.origin.episode_id!r} of leaf {here.episode_id!r} "
                + ("is not among the leaves" if parent is None else "is also its descendant")
                + "; pass all leaves of the tree, as play_tree returned them"
            )
        most = min(len(here.turns), len(parent.turns))
        if not 0 <= here.origin.turns <= most:
            raise ConfigurationError(
                f"leaf {here.episode_id!r} can share 0 to {most} turns with its origin "
                f"{parent.episode_id!r}, got {here.origin.turns}"
            )
        seen.add(parent.episode_id)
        end, here = min(end, here.origin.turns), parent
        # A fork before the parent's own turns shares none of them.
        yield parent.episode_id, max(end, _first_turn(parent))


def _spans_of(
    leaves: Sequence[Trajectory], by_id: Mapping[str, Trajectory]
) -> dict[str, list[_Span]]:
    """Return the non-empty spans of each leaf, from its first turn on."""
    paths = {leaf.episode_id: list(_path(leaf, by_id)) for leaf in leaves}
    forks: dict[str, set[int]] = {}
    for path in paths.values():
        for name, end in path:
            forks.setdefault(name, set()).add(end)
    found: dict[str, list[_Span]] = {}
    for leaf, path in paths.items():
        found[leaf] = []
        for name, end in reversed(path):
            first = _first_turn(by_id[name])
            cuts = sorted({min(cut, end) for cut in (first, *forks[name])})
            found[leaf] += [(name, *pair) for pair in pairwise(cuts)]
    return found


def _values_of(
    leaves: Sequence[Trajectory], spans: Mapping[str, Sequence[_Span]]
) -> dict[_Span | None, float]:
    """Return the mean reward of the leaves below each span; None is the root."""
    rewards: dict[_Span | None, list[float]] = {}
    for leaf in leaves:
        assert leaf.reward is not None
        for span in (None, *spans[leaf.episode_id]):
            rewards.setdefault(span, []).append(leaf.reward)
    return {span: fmean(known) for span, known in rewards.items()}


def _first_turn(leaf: Trajectory) -> int:
    """Return the first turn that a leaf owns."""
    return 0 if leaf.origin is None else leaf.origin.turns
