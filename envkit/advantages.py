"""Group-relative advantages of episodes and of turns.

GRPO compares the episodes of one prompt (Shao et al. 2024, "DeepSeekMath", section 4.1). A faulted
episode has no reward, so it is excluded from mean and deviation and its advantage is 0. Trainers
that cannot exclude a member get the mean of the others instead.
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
    """The rewarded turns of one row. Axes: R response tokens."""

    length: int
    """R."""
    ends: tuple[int, ...]
    """Per turn, the index after its reply's last token; ascending, at most R."""
    rewards: tuple[float, ...]
    """One reward per turn."""

    @classmethod
    def of_row(cls, row: Row) -> "TurnRewards | None":
        """Build from a ledger row; None for a row without a reward."""
        if row.reward is None:
            return None
        return cls(
            length=len(row.response_ids),
            ends=tuple(index + 1 for index, _ in row.turn_rewards),
            rewards=tuple(reward for _, reward in row.turn_rewards),
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
        ends = (
            self.ends if self.ends and self.ends[-1] == self.length else (*self.ends, self.length)
        )
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
        turns: One per row; None for a row without a reward, which gets a single 0.0.
        groups: The group key of each row.
        discount: Discount per turn; with 0 each turn has only its own reward, with 1 the sum of its
            own and all later ones.
        is_scaled: Whether to divide by the deviation of the group's returns.
        epsilon: Added to the deviation.

    Returns:
        (R,) per row. A turn that no other member of the group reached has 0.0.
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
