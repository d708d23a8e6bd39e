"""Rows for TRL: checks before delivery, and rows for faults.

TRL silently accepts rows that it then trains on wrongly: a short mask is padded with 1, a batch
whose placeholders and features disagree loses all its images (trl/trainer/grpo_trainer.py, 1.16).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from envkit.errors import LedgerFault
from envkit.trajectory import Row, StopReason, Trajectory, step_rows
from envkit.trajectory.projection import placeholder_row
from envkit_training.rows import check_one_row
from envkit_trl.wrapping import wrap_trainer

REWARD_COLUMN: Final = "env_reward"
"""Key of the environments' rewards in reward functions."""


def env_reward(
    env_reward: Sequence[float | None],
    *,
    env_stop: Sequence[str] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **_: object,
) -> list[float | None]:
    """Return the environments' rewards, as a TRL reward function.

    None marks a faulted rollout: advantage 0 and excluded from its group's baseline, regardless of
    other reward functions (see `leave_out_faults`).

    Args:
        env_reward: Rewards by row.
        env_stop: Why each episode ended, if the rollout reports it.
        log_metric: TRL's logger; gets the number of faults and the fraction of truncated episodes.
    """
    if log_metric is not None and env_stop:
        reasons = [StopReason(reason) for reason in env_stop]
        log_metric("envkit/faults", float(sum(reason.is_fault for reason in reasons)))
        truncated = sum(reason.is_truncation for reason in reasons)
        log_metric("envkit/truncated", truncated / len(reasons))
    return list(env_reward)


class RewardedEnvironment(ABC):
    """An environment of TRL's tool loop that may fault."""

    @abstractmethod
    def get_reward(self) -> float | None:
        """Return the episode's reward so far; None after a fault, which TRL does not score."""


def leave_out_faults() -> None:
    """Exclude faulted rollouts from TRL's scoring, regardless of its reward functions.

    TRL excludes a row only if every reward function returns None for it. A function that scores any
    completion would give a fault an advantage and shift its group's baseline. GRPOTrainer's
    `_calculate_rewards` is wrapped by `wrap_trainer`. Rows without faults keep their rewards.
    """
    wrap_trainer("_calculate_rewards", _without_faults)


def _without_faults(calculate: Any) -> Any:  # noqa: ANN401  # a method of TRL's
    def calculate_rewards(trainer: Any, inputs: list[dict[str, Any]], *columns: Any) -> Any:  # noqa: ANN401
        rewards = calculate(trainer, inputs, *columns)  # by row of all processes and function
        scores = rewards.new_tensor([math.nan if lost else 0.0 for lost in _lost(trainer, inputs)])
        return rewards + trainer.accelerator.gather(scores).unsqueeze(1)

    return calculate_rewards


def _lost(trainer: Any, inputs: Sequence[Mapping[str, Any]]) -> list[bool]:  # noqa: ANN401
    """Return a mask of this process's faulted rows."""
    if trainer.environments is None:
        return [REWARD_COLUMN in row and row[REWARD_COLUMN] is None for row in inputs]
    return [
        isinstance(environment, RewardedEnvironment) and environment.get_reward() is None
        for environment in trainer.environments
    ]


def episode_row(trajectory: Trajectory, *, end_id: int) -> Row:
    """Return the trajectory's row.

    A trajectory without a reward, after a fault or an abort, becomes a single untrained end token.

    Args:
        trajectory: A trajectory of one row.
        end_id: A token that TRL treats as the end of a completion.

    Raises:
        ConfigurationError: The history was rewritten or branched, so there is more than one row.
    """
    if trajectory.is_faulted or trajectory.reward is None:
        return placeholder_row((), None, filler_id=end_id)
    rows = step_rows(trajectory, filler_id=end_id, merge=True)
    check_one_row(
        trajectory,
        rows,
        "GRPOTrainer takes one for each completion; use envkit_trl.EnvAsyncGRPOTrainer, or set "
        "envkit.history to keep if there is no agent",
    )
    (row,) = rows
    return row


def check_rows(rows: Sequence[Row], *, image_id: int | None, max_completion: int) -> None:
    """Reject rows that TRL would silently train on wrongly.

    Args:
        rows: Rows of one batch.
        image_id: The placeholder that TRL counts; None if its processor has no images.
        max_completion: `max_completion_length` of the training's arguments.

    Raises:
        LedgerFault: Columns of unequal length, an empty or too long completion, a completion that
            ends with an unsampled token, or placeholders that do not match the features.
    """
    for number, row in enumerate(rows):
        length = len(row.response_ids)
        lengths = (length, len(row.loss_mask), len(row.logprobs))
        if len(set(lengths)) != 1 or not 1 <= length <= max_completion:
            raise LedgerFault(
                f"row {number}: completion, mask and log-probabilities must have the same "
                f"length from 1 to {max_completion} (max_completion_length), got {lengths}"
            )
        if any(row.loss_mask) and not row.loss_mask[-1]:
            raise LedgerFault(
                f"row {number}: a completion must end with a sampled token, got one from the "
                "environment"
            )
        expected = sum(feature.token_count for feature in row.features)
        ids = row.prompt_ids + row.response_ids
        found = 0 if image_id is None else ids.count(image_id)
        if found != expected or len(row.features) != len(row.images):
            raise LedgerFault(
                f"row {number}: {len(row.images)} images have {len(row.features)} features of "
                f"{expected} tokens, got {found} placeholders ({image_id}); codec and "
                "processing_class must belong to the same model"
            )
