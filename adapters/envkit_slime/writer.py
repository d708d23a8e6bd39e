"""Write a whole trajectory to slime's samples at once.

slime appends turn by turn while an episode runs; here a sample is written once, when its episode
has ended or was aborted, so no column can be left half-way. An aborted sample that is resumed is
written again from the whole trajectory, and keeps only the zeros of its loss mask.
"""

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from envkit.trajectory import Row, Segment, SegmentKind, StopReason, Trajectory
from envkit_slime.engine import META
from envkit_slime.form import Form
from envkit_slime.rewards import reward_value, sets_reward
from envkit_slime.sample import FACTS_KEY, RUNS_KEY, STATE_KEY, Sample
from envkit_slime.upstream import require

logger = logging.getLogger("envkit.slime")

_REPLAY_COLUMNS: Final = (
    "rollout_routed_experts",
    "rollout_top_p_token_ids",  # slime only
    "rollout_top_p_token_offsets",  # slime only
    "rollout_indexer_topk",  # miles only
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """State of a sample before it was resumed."""

    tokens: tuple[int, ...]
    response_length: int
    loss_mask: tuple[int, ...] | None

    @classmethod
    def of(cls, sample: Sample) -> "Earlier":
        """Record a sample's current response."""
        mask = sample.loss_mask
        return cls(
            tokens=tuple(sample.tokens),
            response_length=sample.response_length,
            loss_mask=None if mask is None else tuple(mask),
        )

    def masked(self, row: Row) -> list[int]:
        """Return the row's mask with the trainer's zeros on the earlier part.

        With `--mask-offpolicy-in-partial-rollout` slime zeroes the mask of what older weights
        sampled (slime/rollout/sglang_rollout.py, generate_and_rm). It stays zero, unless the
        episode was restarted and the earlier part is gone.
        """
        mask = list(row.loss_mask)
        if self.loss_mask is None:
            return mask
        prompt = len(self.tokens) - self.response_length
        tokens = row.prompt_ids + row.response_ids
        if prompt != len(row.prompt_ids) or tokens[: len(self.tokens)] != self.tokens:
            return mask
        kept = [old & new for old, new in zip(self.loss_mask, mask, strict=False)]
        return kept + mask[len(kept) :]


def clear(sample: Sample) -> None:
    """Clear everything from an earlier attempt, except identity and prompt."""
    sample.tokens = []
    sample.response = ""
    sample.response_length = 0
    sample.loss_mask = None
    sample.rollout_log_probs = None
    sample.weight_versions = []
    for column in _REPLAY_COLUMNS:
        if hasattr(sample, column):
            setattr(sample, column, None)
    sample.multimodal_train_inputs = None
    sample.reward = None
    sample.non_generation_time = 0.0
    sample.spec_info = type(sample.spec_info)()
    sample.prefix_cache_info = type(sample.prefix_cache_info)()
    if sample.metadata.pop(FACTS_KEY, {}).get("removed"):
        sample.remove_sample = False
    for key in (STATE_KEY, RUNS_KEY):
        sample.metadata.pop(key, None)


def write_row(
    form: Form,
    sample: Sample,
    trajectory: Trajectory,
    row: Row,
    *,
    earlier: Earlier | None = None,
) -> None:
    """Write a row; the reward, the training flag and the status are last.

    A reward function, a teacher and miles' prefill scoring see the images of the row as the
    trainer's own process_vision_info gives them. A restarted sample keeps its dataset's.

    Args:
        form: The call.
        sample: A cleared sample with the facts of its episode.
        trajectory: The row's.
        row: A row of `whole_row` or `step_rows`.
        earlier: State of the sample before this part of the episode; None for a new one.
    """
    _write_columns(form, sample, row, earlier)
    form.annotate(sample, trajectory)
    is_faulted = trajectory.is_faulted
    if is_faulted or (not any(sample.loss_mask or ()) and not trajectory.turns):
        sample.remove_sample = True
        sample.metadata[FACTS_KEY]["removed"] = True
    status = _status(trajectory)
    is_ours = sets_reward(form.args, sample, is_faulted=is_faulted, evaluation=form.evaluation)
    if status != "aborted" and is_ours:
        sample.reward = reward_value(form.args, trajectory.reward)
    is_scored = not is_ours or getattr(form.args, "recompute_logprobs_via_prefill", False)
    if row.images and row.reward is not None and is_scored:
        sample.multimodal_inputs = {"images": [one.pil() for one in row.images], "videos": None}
    if trajectory.fault is not None:
        logger.warning(
            "sample %s is excluded from training: %s in %s: %s",
            sample.index,
            trajectory.fault.kind,
            trajectory.fault.where,
            trajectory.fault.message,
        )
    sample.status = type(sample.status)(status)


def _write_columns(form: Form, sample: Sample, row: Row, earlier: Earlier | None) -> None:
    sample.tokens = list(row.prompt_ids)
    if row.is_placeholder:
        (filler_id,) = row.response_ids
        write_nothing(form, sample, filler_id)
    else:
        form.append(sample, row.segments)
        ids = [one for segment in row.segments for one in segment.wire_ids]
        sample.response = form.tokenizer.decode(ids, skip_special_tokens=False)
        sample.metadata[RUNS_KEY] = _runs(row)
    sample.loss_mask = list(row.loss_mask) if earlier is None else earlier.masked(row)
    if row.tensors:
        torch = require("torch")
        sample.multimodal_train_inputs = {
            key: torch.from_numpy(value) for key, value in row.tensors.items()
        }


def _status(trajectory: Trajectory) -> str:
    """Return the value of `Sample.Status` that says how the trajectory ended."""
    if trajectory.is_faulted:
        return "failed"
    if trajectory.stop_reason is StopReason.ABORTED:
        return "aborted"
    return "truncated" if trajectory.stop_reason.is_truncation else "completed"


def write_nothing(form: Form, sample: Sample, filler_id: int) -> None:
    """Write a response of one unsampled token: mask 0, with every column."""
    sample.tokens = [*(sample.tokens or [filler_id]), filler_id]
    sample.response_length = 1
    sample.loss_mask = [0]
    sample.rollout_log_probs = [0.0]
    form.fill(sample)


def meta_info(segment: Segment) -> Mapping[str, Any] | None:
    """Return the server's information about a reply, as slime and miles read it, or None."""
    if segment.kind is not SegmentKind.MODEL:
        return None
    meta = dict(segment.extras)
    meta |= meta.pop(META, {})
    meta["finish_reason"] = {"type": segment.finish_reason}
    if segment.weight_version is not None:
        meta["weight_version"] = segment.weight_version
    return meta


def _runs(row: Row) -> list[tuple[int, int, str | None]]:
    """Return start, end and weight version of each reply in the response."""
    runs: list[tuple[int, int, str | None]] = []
    start = 0
    for segment in row.segments:
        end = start + segment.token_count
        if segment.kind is SegmentKind.MODEL:
            runs.append((start, end, segment.weight_version))
        start = end
    return runs


def neutral_experts(args: Namespace, rows: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return experts for unrouted tokens: the first ones, at every layer.

    slime rejects a capture that is zero everywhere (slime/observability/rollout_data_utils.py), so
    these are 0, 1, ... up to the number of experts of a token.
    """
    one = np.arange(args.moe_router_topk, dtype=np.int32)
    return np.broadcast_to(one, (rows, args.num_layers, args.moe_router_topk)).copy()
