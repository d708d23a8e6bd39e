"""Advantages: an episode against its group, and a turn against the same turn of the group.

GRPO compares the episodes of one prompt (Shao et al. 2024, "DeepSeekMath", section 4.1). A faulted
episode has no reward, so it counts in neither mean nor deviation and its advantage is 0. Trainers
that cannot leave a member out get the mean of the others as a stand-in.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envkit.trajectory.projection import Row

EPSILON: Final = 1e-6
"""Added to a deviation, as slime, miles, verl and SkyRL do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the members of a group are compared with."""

    mean: float = 0.0
    """0.0 for a group without any reward."""
    deviation: float = 0.0
    """Of the sample (divided by count - 1); 0.0 with fewer than two rewards."""
    count: int = 0
    """Members with a reward."""

    @classmethod
    def of(cls, rewards: Iterable[float | None]) -> "Baseline":
        """Return the baseline of a group.

        Args:
            rewards: One for each episode; None, the reward of a faulted one, does not count.
        """
        known = [reward for reward in rewards if reward is not None]
        if not known:
            return cls()
        deviation = stdev(known) if len(known) > 1 else 0.0
        return cls(mean=fmean(known), deviation=deviation, count=len(known))

    def advantage(
        self, reward: float | None, *, is_scaled: bool, epsilon: float = EPSILON
    ) -> float:
        """Return a member's advantage; 0.0 for one without a reward.

        Args:
            reward: The member's.
            is_scaled: Whether to divide by the deviation.
            epsilon: Added to the deviation.
        """
        if reward is None:
            return 0.0
        centred = reward - self.mean
        return centred / (self.deviation + epsilon) if is_scaled else centred


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRewards:
    """The rewarded turns of one row. Axes: R response tokens."""

    length: int
    """R."""
    ends: tuple[int, ...]
    """For each turn, the index after its reply's last token; ascending, at most R."""
    rewards: tuple[float, ...]
    """One for each turn."""

    @classmethod
    def of_row(cls, row: Row) -> "TurnRewards | None":
        """Return those of a row of the core; None for a row without a reward."""
        if row.reward is None:
            return None
        return cls(
            length=len(row.response_ids),
            ends=tuple(index + 1 for index, _ in row.turn_rewards),
            rewards=tuple(reward for _, reward in row.turn_rewards),
        )

    @classmethod
    def of_columns(cls, loss_mask: Sequence[int], rewards: Sequence[float]) -> "TurnRewards":
        """Return those of a trainer's columns, (R,) each; a turn is a run of sampled tokens.

        Between two replies there is always an observation, whose tokens have mask 0.
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
        """Return where turns begin and end; what follows the last reward is its own turn."""
        ends = (
            self.ends if self.ends and self.ends[-1] == self.length else (*self.ends, self.length)
        )
        return (0, *ends)

    def returns(self, discount: float) -> list[float]:
        """Return each turn's own reward and the discounted later ones."""
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
        turns: One for each row; None for a row without a reward, which gets one 0.0.
        groups: What each row's group is known by.
        discount: What a reward counts one turn earlier; 0 leaves each turn its own reward, 1 the
            sum of all later ones.
        is_scaled: Whether to divide by the deviation of the group's returns.
        epsilon: Added to the deviation.

    Returns:
        (R,) for each row. A turn that no other member of the group reached has 0.0.
    """
    found = [np.zeros(1 if one is None else one.length, np.float32) for one in turns]
    returns = [[] if one is None else one.returns(discount) for one in turns]
    members: dict[Hashable, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    for numbers in members.values():
        for turn in range(max(len(returns[number]) for number in numbers)):
            present = [number for number in numbers if turn < len(returns[number])]
            if len(present) < 2:
                continue
            baseline = Baseline.of(returns[number][turn] for number in present)
            for number in present:
                row = turns[number]
                assert row is not None  # it has returns
                start, end = row.bounds()[turn : turn + 2]
                found[number][start:end] = baseline.advantage(
                    returns[number][turn], is_scaled=is_scaled, epsilon=epsilon
                )
    return found
