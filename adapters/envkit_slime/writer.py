"""Writing a trajectory into slime's samples, whole and consistent, every time anew.

slime appends turn by turn while an episode runs; here a sample is written once, when its episode
has ended or was aborted, so no column can be left half-way. An aborted sample that is played on is
written again from the whole trajectory, and keeps only the zeros of its loss mask.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from envkit.trajectory import Row, StopReason, Trajectory
from envkit_slime.pieces import Piece, pieces_of
from envkit_slime.sample import STATE_KEY, SUMMARY_KEY, Sample
from envkit_slime.upstream import require

_REPLAY_COLUMNS: Final = (
    "rollout_routed_experts",
    "rollout_top_p_token_ids",  # slime alone
    "rollout_top_p_token_offsets",  # slime alone
    "rollout_indexer_topk",  # miles alone
)


class SampleForm(Protocol):
    """How one trainer's `Sample` takes a response."""

    def append(self, args: Namespace, sample: Sample, pieces: Sequence[Piece]) -> None:
        """Append the pieces to a cleared sample: tokens, columns and the server's statistics."""
        ...

    def fill(self, args: Namespace, sample: Sample) -> None:
        """Give a sample without anything sampled the optional columns of its neighbours."""
        ...

    def annotate(self, args: Namespace, sample: Sample, trajectory: Trajectory) -> None:
        """Add what only this trainer keeps in a sample's metadata."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What a sample held before it was played on."""

    tokens: tuple[int, ...]
    response_length: int
    loss_mask: tuple[int, ...] | None

    @classmethod
    def of(cls, sample: Sample) -> "Earlier":
        """Note a sample's response as it is."""
        mask = sample.loss_mask
        return cls(
            tokens=tuple(sample.tokens),
            response_length=sample.response_length,
            loss_mask=None if mask is None else tuple(mask),
        )

    def masked(self, row: Row) -> list[int]:
        """Return the row's mask with the zeros that the trainer had put on the earlier part.

        With `--mask-offpolicy-in-partial-rollout` slime zeroes the mask of what older weights
        sampled (slime/rollout/sglang_rollout.py, generate_and_rm). It stays zero, unless the
        episode was started anew and the earlier part is gone.
        """
        mask = list(row.loss_mask)
        if self.loss_mask is None or not self.response_length:
            return mask
        prompt = len(self.tokens) - self.response_length
        tokens = row.prompt_ids + row.response_ids
        if prompt != len(row.prompt_ids) or tokens[: len(self.tokens)] != self.tokens:
            return mask
        kept = [old & new for old, new in zip(self.loss_mask, mask, strict=False)]
        return kept + mask[len(kept) :]


def clear(sample: Sample) -> None:
    """Empty everything that an earlier attempt may have written; identity and prompt stay."""
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
    if sample.metadata.pop(SUMMARY_KEY, {}).get("removed"):
        sample.remove_sample = False
    sample.metadata.pop(STATE_KEY, None)


def write_row(
    form: SampleForm,
    args: Namespace,
    sample: Sample,
    row: Row,
    *,
    tokenizer: Any,  # noqa: ANN401  # a transformers tokenizer
    earlier: Earlier | None = None,
) -> None:
    """Write everything of a row but reward, metadata and status.

    Args:
        form: How the trainer's sample takes a response.
        args: The trainer's arguments.
        sample: A cleared one.
        row: A row of `whole_row` or `step_rows`.
        tokenizer: Decodes the response for people and for text graders.
        earlier: What the sample held before this part of the episode; None for a new one.
    """
    pieces = pieces_of(row)
    sample.tokens = list(row.prompt_ids)
    if pieces:
        form.append(args, sample, pieces)
        wire_ids = [identity for piece in pieces for identity in piece.wire_ids]
        sample.response = tokenizer.decode(wire_ids, skip_special_tokens=False)
    else:
        write_nothing(form, args, sample, row.response_ids[0])
    sample.loss_mask = list(row.loss_mask) if earlier is None else earlier.masked(row)
    if row.tensors:
        torch = require("torch")
        sample.multimodal_train_inputs = {
            key: torch.from_numpy(value) for key, value in row.tensors.items()
        }
    if row.images and row.reward is not None:
        # As slime's and miles' process_vision_info. One that starts anew keeps its dataset's.
        sample.multimodal_inputs = {"images": [one.pil() for one in row.images], "videos": None}


def write_nothing(form: SampleForm, args: Namespace, sample: Sample, filler_id: int) -> None:
    """Write a response of one token that nobody sampled: mask 0, but every column is there."""
    sample.tokens = [*(sample.tokens or [filler_id]), filler_id]
    sample.response_length = 1
    sample.loss_mask = [0]
    sample.rollout_log_probs = [0.0]
    form.fill(args, sample)


def status_value(trajectory: Trajectory) -> str:
    """Return the value of `Sample.Status` that says how the trajectory ended."""
    if trajectory.is_faulted:
        return "failed"
    if trajectory.stop_reason is StopReason.ABORTED:
        return "aborted"
    return "truncated" if trajectory.stop_reason.is_truncation else "completed"


def neutral_experts(args: Namespace, rows: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return experts for tokens that no server routed: the first ones, at every layer.

    slime refuses a capture that is zero everywhere (slime/observability/rollout_data_utils.py), so
    these are 0, 1, ... up to the number of experts of a token.
    """
    one = np.arange(args.moe_router_topk, dtype=np.int32)
    return np.broadcast_to(one, (rows, args.num_layers, args.moe_router_topk)).copy()
