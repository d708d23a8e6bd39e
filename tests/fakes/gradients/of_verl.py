"""verl's advantages and policy loss for envkit's gradient suite.

Rows are the adapter's, the forward pass is the suite's policy. Everything in between is verl's
code: `compute_advantage` of V0, `compute_advantage_for_multi_trajectories` of V1, and `ppo_loss`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

import numpy as np
import torch
from fakes import gradients

from envkit.errors import ConfigurationError
from envkit.trajectory import Trajectory, step_rows
from envkit_conformance import Shape

# if verl is missing, raises an error that says what to install
from envkit_verl import EpisodeOutput
from envkit_verl.conformance import SETTINGS
from envkit_verl.groups import Group
from envkit_verl.output import outputs_of
from envkit_verl.rows import Delivery

MODES: Final[Mapping[gradients.Reduction, str]] = {
    gradients.Reduction.EPISODE_MEAN: "seq-mean-token-mean",
    gradients.Reduction.TOKEN_MEAN: "token-mean",
    gradients.Reduction.CONSTANT: "seq-mean-token-sum-norm",
}
"""`actor.loss_agg_mode` of each reduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A row with the trainer's fields."""

    output: Any
    """`EpisodeOutput`."""
    uid: str
    """Id of its group."""
    key: str
    """V1's name of the row: group, sample, number."""
    tensors: Mapping[str, Any]
    """Recorded outputs of the image processor; in a run, verl's worker makes them."""

    @property
    def rewards(self) -> torch.Tensor:
        """V1's `rm_scores`, whose sum is V0's scalar reward."""
        return torch.tensor(self.output.token_rewards, dtype=torch.float32)

    @property
    def mask(self) -> torch.Tensor:
        """Mask of the response."""
        return torch.tensor(self.output.response_mask)


def deliver(
    trajectories: Sequence[Trajectory], case: gradients.LossCase, *, is_v1: bool, filler_id: int
) -> list[TrainingRow]:
    """Return the adapter's rows, with its handling of faults and rejected settings.

    Raises:
        ConfigurationError: An episode of several rows would have another weight than one with one
            row.
    """
    settings = replace(
        SETTINGS,
        is_scaled=case.is_scaled,
        loss_agg_mode=MODES[case.reduction],
        has_scale_factor=True,
    )
    rule = settings.why_one_row(is_v1=is_v1)
    if rule is not None and any(len(one.sequences()) > 1 for one in trajectories):
        raise ConfigurationError(f"an episode becomes several rows, and {rule}")
    delivery = Delivery(settings=settings, filler_id=filler_id, is_v1=is_v1)
    groups = {one.group_id: Group() for one in trajectories}
    members = [groups[one.group_id].join() for one in trajectories]

    async def all_of_them() -> list[list[EpisodeOutput]]:
        pairs = zip(trajectories, members, strict=True)
        return await asyncio.gather(*(outputs_of([one], its, delivery) for one, its in pairs))

    lines: list[TrainingRow] = []
    for number, (one, outputs) in enumerate(
        zip(trajectories, asyncio.run(all_of_them()), strict=True)
    ):
        uid, rows = str(one.group_id), step_rows(one, filler_id=filler_id, merge=True)
        lines += [
            TrainingRow(
                output=output,
                uid=uid,
                key=f"{uid}_{number}_{place}",
                tensors=row.tensors if output.multi_modal_data else {},
            )
            for place, (output, row) in enumerate(zip(outputs, rows[-len(outputs) :], strict=False))
        ]
    return lines


def advantages_of(
    lines: Sequence[TrainingRow], case: gradients.LossCase, *, is_v1: bool
) -> list[torch.Tensor]:
    """Return each row's advantages, (R,), as verl's trainer computes them for a batch."""
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    columns = {
        "response_mask": _padded([line.mask for line in lines]),
        "token_level_rewards": _padded([line.rewards for line in lines]),
    }
    batch = DataProto(batch=TensorDict(columns, batch_size=len(lines)))
    batch.non_tensor_batch["uid"] = np.array([line.uid for line in lines], dtype=object)
    options: dict[str, Any] = {
        "adv_estimator": AdvantageEstimator.GRPO,
        "norm_adv_by_std_in_grpo": case.is_scaled,
    }
    if is_v1:
        keys = [line.key for line in lines]
        batch = compute_advantage_for_multi_trajectories(batch, batch_keys=keys, **options)
    else:
        batch = compute_advantage(batch, **options)
    return [
        row[: len(line.output.response_ids)]
        for row, line in zip(batch.batch["advantages"], lines, strict=True)
    ]


def policy_loss(
    policy: gradients.Policy,
    lines: Sequence[TrainingRow],
    advantages: Sequence[torch.Tensor],
    case: gradients.LossCase,
    *,
    episodes: int,
    tokens: int,
    ranks: int = 1,
) -> torch.Tensor:
    """Return verl's loss of one optimizer step, for one rank.

    Args:
        policy: Computes the forward pass.
        lines: Rows of the rank.
        advantages: (R,) per row.
        case: The setting of the loss.
        episodes: `ppo_mini_batch_size * rollout.n`.
        tokens: Trained tokens of all ranks.
        ranks: Number of ranks; their gradients are averaged.
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.config import FSDPActorConfig
    from verl.workers.utils.losses import ppo_loss

    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=gradients.CLIP,
        clip_ratio_low=gradients.CLIP,
        clip_ratio_high=gradients.CLIP,
        loss_agg_mode=MODES[case.reduction],
        loss_scale_factor=gradients.CONSTANT_TOKENS,
    )
    prompts = [torch.tensor(policy.small(line.output.prompt_ids)) for line in lines]
    responses = [torch.tensor(policy.small(line.output.response_ids)) for line in lines]
    scores: list[torch.Tensor] = []
    old: list[torch.Tensor] = []
    for prompt, response, line in zip(prompts, responses, lines, strict=True):
        ids = torch.cat([prompt, response]).tolist()
        new = policy.logprobs(ids, line.tensors)
        before = policy.old_logprobs(ids, line.tensors) if case.is_off_policy else new.detach()
        scores.append(torch.cat([new, new.new_zeros(1)]))  # verl has one for the last token too
        old.append(before[len(prompt) - 1 :])
    fields = {
        "prompts": _nested(prompts),
        "responses": _nested(responses),
        "response_mask": _nested([line.mask for line in lines]),
        "old_log_probs": _nested(old),
        "advantages": _nested(advantages),
    }
    data = TensorDict(fields, batch_size=len(lines))
    tensordict_utils.assign_non_tensor(
        data, dp_size=ranks, batch_num_tokens=tokens, global_batch_size=episodes
    )
    return ppo_loss(config, {"log_probs": _nested(scores)}, data)[0]


def _padded(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True)


def _nested(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(values), layout=torch.jagged)


def _path(name: str, shape: Shape, *, is_v1: bool) -> gradients.GradientPath:
    def backward(
        policy: gradients.Policy,
        trajectories: Sequence[Trajectory],
        given: Shape,
        case: gradients.LossCase,
    ) -> None:
        del given  # the only one
        lines = deliver(trajectories, case, is_v1=is_v1, filler_id=_any_id(trajectories))
        loss = policy_loss(
            policy,
            lines,
            advantages_of(lines, case, is_v1=is_v1),
            case,
            episodes=len(trajectories),
            tokens=sum(sum(line.output.response_mask) for line in lines),
        )
        torch.autograd.backward(loss)

    def explain(
        given: Shape, case: gradients.LossCase, trajectories: Sequence[Trajectory]
    ) -> gradients.Difference | None:
        del given
        return None if is_v1 or not case.is_scaled else _placeholder(trajectories)

    return gradients.GradientPath(
        name=name,
        shapes=(shape,),
        reductions=frozenset(MODES),
        takes_images=True,
        backward=backward,
        explain=explain,
    )


def _any_id(trajectories: Sequence[Trajectory]) -> int:
    return trajectories[0].segments[0].train_ids[0]


def _placeholder(trajectories: Sequence[Trajectory]) -> gradients.Difference | None:
    """Explain how V0's row for a fault, with its group's mean reward, changes the deviation."""
    ratios: set[float] = set()
    for group in {one.group_id for one in trajectories}:
        rewards = [one.reward for one in trajectories if one.group_id == group]
        known = sum(reward is not None for reward in rewards)
        ratios.add(sqrt((len(rewards) - 1) / (known - 1)))
    if ratios == {1.0}:
        return None
    return gradients.Difference(
        reason="V0 needs a row per sample, and a fault's row counts in its group's deviation",
        setting="trainer.use_v1=true or algorithm.norm_adv_by_std_in_grpo=false",
        norm_ratio=ratios.pop() if len(ratios) == 1 else None,
    )


GRADIENTS: Final = (
    _path("verl-v0", Shape.WHOLE, is_v1=False),
    _path("verl-v1", Shape.MERGED, is_v1=True),
)
"""verl's two trainers."""
