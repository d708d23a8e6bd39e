"""Advantages by turn, for trainers whose loss takes one for each token.

GRPO compares whole episodes (Shao et al. 2024, "DeepSeekMath", section 4.1). Where an environment
rewards turns, a turn is compared with the same turn of its group's other members instead, by what
came after it. TRL's loss takes advantages (B, T) from subclasses (trl/trainer/grpo_trainer.py).
"""

from collections.abc import Sequence

import torch

from envkit.trajectory.projection import Row

_EPSILON = 1e-4
"""Added to a standard deviation, as TRL does."""


def turn_advantages(
    rows: Sequence[Row], *, group_size: int, discount: float, is_scaled: bool, width: int
) -> torch.Tensor:
    """Return each token's advantage: its turn's discounted return against the group's, (B, width).

    Rows without a reward are left out of their group and get 0.0, as do padding and turns that no
    other member of the group reached.

    Args:
        rows: Groups of `group_size` neighbours.
        group_size: Members of a group.
        discount: What a reward counts one turn earlier; 0 leaves each turn its own reward.
        is_scaled: Whether to divide by the standard deviation of the group's returns.
        width: Tokens of the longest response, padding included.
    """
    advantages = torch.zeros(len(rows), width)
    for first in range(0, len(rows), group_size):
        group = range(first, min(first + group_size, len(rows)))
        members = [n for n in group if rows[n].reward is not None]
        returns = {n: _returns(rows[n], discount) for n in members}
        for turn in range(max(map(len, returns.values()), default=0)):
            present = [n for n in members if turn < len(returns[n])]
            if len(present) < 2:
                continue
            values = torch.tensor([returns[n][turn] for n in present])
            centred = values - values.mean()
            if is_scaled:
                centred = centred / (values.std() + _EPSILON)
            for number, value in zip(present, centred, strict=True):
                start, end = _span(rows[number], turn)
                advantages[number, start:end] = value
    return advantages


def _returns(row: Row, discount: float) -> list[float]:
    """Return the discounted return of each turn, 0.0 for tokens behind all rewards."""
    ends = _ends(row)
    found, later = [0.0] * (len(ends) - len(row.turn_rewards)), 0.0
    for _, reward in reversed(row.turn_rewards):
        later = reward + discount * later
        found.append(later)
    found.reverse()
    return found


def _ends(row: Row) -> list[int]:
    """Return where each turn's tokens, which begin with the observation before it, end."""
    ends = [index + 1 for index, _ in row.turn_rewards]
    length = len(row.response_ids)
    return ends if ends and ends[-1] == length else [*ends, length]


def _span(row: Row, turn: int) -> tuple[int, int]:
    bounds = [0, *_ends(row)]
    return bounds[turn], bounds[turn + 1]
