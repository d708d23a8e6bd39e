"""A group's trajectories as the rows of TRL's AsyncGRPOTrainer."""

import statistics
import time
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from envkit.errors import ConfigurationError
from envkit.messages import Message, images_of, text_of
from envkit.rollout import role_of
from envkit.trajectory import MergeTally, Row, Trajectory, merge_rows, step_rows

_TINY = 1e-8


def group_samples(
    trajectories: Sequence[Trajectory], *, group_id: int, version: int, end_id: int
) -> tuple[list[Any], MergeTally]:
    """Return a group's `RolloutSample`s, and what joining their turns found.

    A trajectory gives one row for each run of turns whose prompts extend each other, all with its
    advantage. One that faulted gives none and is left out of the baseline. With several agents a
    role is compared with the same role of the group's other episodes.

    Args:
        trajectories: The group's.
        group_id: TRL's.
        version: Of the policy when the group began; the age of rows whose engine tells no version.
        end_id: Stands where a trajectory has no token.

    Raises:
        ConfigurationError: There are pictures, which TRL's rows have no place for.
    """
    if any(images_of(entry.messages) for entry in trajectories):
        raise ConfigurationError(
            "the environment shows images, and AsyncGRPOTrainer's rows have no place for any; use "
            "envkit_trl.EnvGRPOTrainer"
        )
    by_role: dict[str | None, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_role.setdefault(role_of(trajectory), []).append(trajectory)
    samples: list[Any] = []
    tallies: list[MergeTally] = []
    for members in by_role.values():
        found, tally = _compared(members, group_id=group_id, version=version, end_id=end_id)
        samples += found
        tallies.append(tally)
    return samples, reduce(_added, tallies, MergeTally())


def _compared(
    trajectories: Sequence[Trajectory], *, group_id: int, version: int, end_id: int
) -> tuple[list[Any], MergeTally]:
    """Return the rows of trajectories whose rewards are compared: those of one role."""
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    scored = [entry for entry in trajectories if entry.reward is not None and not entry.is_faulted]
    rewards = [float(entry.reward or 0.0) for entry in scored]
    mean = statistics.fmean(rewards) if rewards else 0.0
    spread = statistics.pstdev(rewards) if rewards else 0.0
    samples: list[Any] = []
    tallies: list[MergeTally] = []
    for trajectory, reward in zip(scored, rewards, strict=True):
        rows, tally = merge_rows(step_rows(trajectory, filler_id=end_id))
        tallies.append(tally)
        metrics = {
            "reward": reward,
            "reward_std": spread,
            "envkit/turns": float(len(trajectory.turns)),
            "envkit/truncated": float(trajectory.stop_reason.is_truncation),
        }
        prompt, completion = _conversation(trajectory.messages)
        samples += [
            RolloutSample(
                prompt=prompt,
                completion=completion,
                **_arrays(row),
                advantage=(reward - mean) / (spread + _TINY),
                model_version=_version(row, version),
                group_id=group_id,
                metrics=dict(metrics),
                enqueued_at=time.time(),
            )
            for row in rows
            if any(row.loss_mask)
        ]
    return samples, reduce(_added, tallies, MergeTally())


def group_metrics(trajectories: Sequence[Trajectory], tally: MergeTally) -> dict[str, float]:
    """Return what TRL logs of a group; the word "total" makes it add the values up."""
    return {
        "envkit/faults_total": float(sum(entry.is_faulted for entry in trajectories)),
        "envkit/episodes_total": float(len(trajectories)),
        "envkit/rows_forked_total": float(tally.forked),
        "envkit/drifted_tokens_total": float(tally.drifted_tokens),
    }


def _arrays(row: Row) -> dict[str, Any]:
    """Return the columns over the whole sequence, as one-dimensional arrays."""
    context = len(row.prompt_ids)
    return {
        "input_ids": np.asarray(row.prompt_ids + row.response_ids, dtype=np.int64),
        "completion_mask": np.asarray((0,) * context + row.loss_mask, dtype=np.int64),
        "old_log_probs": np.asarray((0.0,) * context + row.logprobs, dtype=np.float32),
    }


def _version(row: Row, otherwise: int) -> int:
    """Return the oldest version that sampled a token of the row."""
    known = [int(text) for text in row.weight_versions if text is not None and text.isdigit()]
    return min(known) if len(known) == len(row.weight_versions) and known else otherwise


def _conversation(messages: Sequence[Message]) -> tuple[list[Any], list[Any]]:
    plain = [{"role": entry["role"], "content": text_of(entry)} for entry in messages]
    first = next(
        (number for number, entry in enumerate(plain) if entry["role"] == "assistant"), len(plain)
    )
    return plain[:first], plain[first:]


def _added(left: MergeTally, right: MergeTally) -> MergeTally:
    return MergeTally(
        merged=left.merged + right.merged,
        forked=left.forked + right.forked,
        drifted_tokens=left.drifted_tokens + right.drifted_tokens,
    )
