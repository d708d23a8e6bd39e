"""The reference formula that every trainer is compared with.

    loss = - sum_e w_e sum_{t in e} min(r_t A_e, clip(r_t, 1 - c, 1 + c) A_e)

r_t is the ratio to the old policy, A_e the episode's reward minus its group's mean (Shao et
al. 2024, "DeepSeekMath", section 4.1), w_e the weight of the reduction. An episode has one weight
and one advantage, regardless of its number of rows. A faulted episode counts only in N.
"""

from collections.abc import Sequence

import torch
from fakes.gradients.cases import CLIP, CONSTANT_TOKENS, LossCase, Reduction
from fakes.gradients.policy import Policy

from envkit.advantages import Baseline
from envkit.trajectory import Row, Trajectory


def plain_backward(policy: Policy, trajectories: Sequence[Trajectory], case: LossCase) -> None:
    """Accumulate the formula's gradient in the policy's parameters."""
    rows = [trajectory.steps(merge=True) for trajectory in trajectories]
    tokens = [sum(sum(row.loss_mask) for row in of_one) for of_one in rows]
    advantages = plain_advantages(trajectories, is_scaled=case.is_scaled)
    for of_one, count, advantage in zip(rows, tokens, advantages, strict=True):
        if not count:
            continue
        weight = _weight(case.reduction, count, sum(tokens), len(trajectories))
        for row in of_one:
            torch.autograd.backward(weight * _loss(policy, row, advantage, case))


def plain_advantages(trajectories: Sequence[Trajectory], *, is_scaled: bool) -> list[float]:
    """Return each episode's advantage over the rewarded members of its group; 0.0 after a fault."""
    groups: dict[str | None, list[float | None]] = {}
    for one in trajectories:
        groups.setdefault(one.group_id, []).append(one.reward)
    baselines = {group: Baseline.of(rewards) for group, rewards in groups.items()}
    return [
        baselines[one.group_id].advantage(one.reward, is_scaled=is_scaled) for one in trajectories
    ]


def _weight(reduction: Reduction, tokens: int, all_tokens: int, episodes: int) -> float:
    if reduction is Reduction.TOKEN_MEAN:
        return 1 / all_tokens
    own = CONSTANT_TOKENS if reduction is Reduction.CONSTANT else tokens
    return 1 / (episodes * own)


def _loss(policy: Policy, row: Row, advantage: float, case: LossCase) -> torch.Tensor:
    ids = policy.small((*row.prompt_ids, *row.response_ids))
    start = len(row.prompt_ids) - 1
    new = policy.logprobs(ids, row.tensors)[start:]
    old = policy.old_logprobs(ids, row.tensors)[start:] if case.is_off_policy else new.detach()
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    return -(gain * torch.tensor(row.loss_mask)).sum()
