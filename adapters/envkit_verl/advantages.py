"""Per-turn advantages for verl's V1 trainer: `algorithm.adv_estimator=envkit_turns`.

verl's own GRPO gives an episode's tokens one advantage (verl 0.9.1, trainer/ppo/core_algos.py:268).
verl loads this module in each of its processes, through the entry point group `verl.plugins`.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est

from envkit.advantages import TurnRewards, turn_advantages
from envkit_verl.settings import TURNS


@register_adv_est(TURNS)
def turn_estimator(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Hashable],
    config: Any,  # noqa: ANN401  # verl's AlgoConfig
    **_: Any,  # noqa: ANN401  # what other estimators read
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compare each turn's discounted return with the same turn of the group's other members.

    Args:
        token_level_rewards: Each turn's reward on its reply's last token, (B, R).
        response_mask: 1 for sampled tokens, (B, R). A row without any is excluded.
        index: Each row's group, (B,).
        config: `gamma` discounts later turns (1 sums them); `norm_adv_by_std_in_grpo` divides by
            the deviation.

    Returns:
        Advantages and returns, (B, R) each; they are the same.
    """
    rows = [
        _turns(mask, rewards)
        for mask, rewards in zip(response_mask, token_level_rewards, strict=True)
    ]
    found = turn_advantages(
        rows,
        list(index),
        discount=float(config.gamma),
        is_scaled=bool(config.norm_adv_by_std_in_grpo),
    )
    advantages = torch.zeros_like(token_level_rewards)
    for number, values in enumerate(found):
        advantages[number, : len(values)] = torch.from_numpy(values)
    advantages *= response_mask
    return advantages, advantages


def _turns(mask: torch.Tensor, rewards: torch.Tensor) -> TurnRewards | None:
    if not mask.any():
        return None
    length = int(mask.nonzero()[-1]) + 1
    return TurnRewards.of_columns(mask[:length].tolist(), rewards[:length].tolist())
