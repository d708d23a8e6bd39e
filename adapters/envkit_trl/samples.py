"""Convert a group's trajectories to rows for TRL's AsyncGRPOTrainer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envkit.advantages import Baseline
from envkit.errors import ConfigurationError, LedgerFault
from envkit.images import Image
from envkit.messages import images_of, text_of
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import MergeTally, Row, Trajectory, merge_rows, step_rows
from envkit.trajectory.trajectory import role_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """How a worker writes rows."""

    end_id: int
    """Token for a trajectory without tokens."""
    media_ids: Sequence[int] = ()
    """The codec's image placeholders."""
    takes_images: bool = False
    """Whether the trainer is an `EnvAsyncGRPOTrainer`."""
    is_scaled: bool = True
    """Whether to divide advantages by the standard deviation of the group's rewards."""


class IdsWithImages(np.ndarray[Any, Any]):
    """Ids of a sequence with images.

    Each image's placeholders are one negative number, the same in every sequence. TRL runs a prefix
    that several samples share only once, and placeholders of different images would look equal.
    """

    features: dict[int, ImageFeatures]
    """Image processor outputs, by image number."""


def group_samples(
    trajectories: Sequence[Trajectory], *, group_id: int, version: int, settings: RowSettings
) -> tuple[list[Any], MergeTally]:
    """Return a group's `RolloutSample`s, and the tally of joined turns.

    A trajectory yields one row per run of turns whose prompts extend each other, all with its
    advantage. A faulted one yields none and is excluded from the baseline. With several agents, a
    role is compared with the same role in the group's other episodes.

    Args:
        trajectories: Trajectories of the group.
        group_id: TRL's id of the group.
        version: Policy version when the group began, for rows whose engine reports no version.
        settings: How to write the rows.

    Raises:
        ConfigurationError: There are images, and the trainer supports none.
        LedgerFault: Placeholders and images disagree.
    """
    if not settings.takes_images and any(images_of(entry.messages) for entry in trajectories):
        raise ConfigurationError(
            "the environment shows images, and AsyncGRPOTrainer's rows carry none; use "
            "envkit_trl.EnvAsyncGRPOTrainer with a vision-language model"
        )
    by_role: dict[str | None, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_role.setdefault(role_of(trajectory), []).append(trajectory)
    samples: list[Any] = []
    total = MergeTally()
    for members in by_role.values():
        scored = [entry for entry in members if entry.reward is not None and not entry.is_faulted]
        baseline = Baseline.of(entry.reward for entry in scored)
        for trajectory in scored:
            rows, tally = merge_rows(step_rows(trajectory, filler_id=settings.end_id))
            total += tally
            common = {
                **_common(trajectory, baseline.deviation),
                "advantage": baseline.advantage(trajectory.reward, is_scaled=settings.is_scaled),
                "group_id": group_id,
            }
            samples += [
                _sample(row, common, version=version, media_ids=settings.media_ids)
                for row in rows
                if any(row.loss_mask)
            ]
    return samples, total


def group_metrics(trajectories: Sequence[Trajectory], tally: MergeTally) -> dict[str, float]:
    """Return a group's metrics for TRL; the word "total" makes TRL sum the values."""
    return {
        "envkit/faults_total": float(sum(entry.is_faulted for entry in trajectories)),
        "envkit/episodes_total": float(len(trajectories)),
        "envkit/rows_forked_total": float(tally.forked),
        "envkit/drifted_tokens_total": float(tally.drifted_tokens),
    }


def _common(trajectory: Trajectory, spread: float) -> dict[str, Any]:
    """Return the fields shared by all rows of a trajectory."""
    plain = [{"role": entry["role"], "content": text_of(entry)} for entry in trajectory.messages]
    replies = [number for number, entry in enumerate(plain) if entry["role"] == "assistant"]
    first = replies[0] if replies else len(plain)
    metrics = {
        "reward": trajectory.reward,
        "reward_std": spread,
        "envkit/turns": float(trajectory.step_count),
        "envkit/truncated": float(trajectory.stop_reason.is_truncation),
    }
    return {"prompt": plain[:first], "completion": plain[first:], "metrics": metrics}


def _sample(row: Row, common: dict[str, Any], *, version: int, media_ids: Sequence[int]) -> Any:  # noqa: ANN401
    """Return a row as TRL's sample: flat arrays over the whole sequence."""
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    context = len(row.prompt_ids)
    known = [int(text) for text in row.weight_versions if text is not None and text.isdigit()]
    if len(known) == len(row.weight_versions) and known:
        version = min(known)  # the oldest version that sampled one of the row's tokens
    return RolloutSample(
        **{**common, "metrics": dict(common["metrics"])},
        input_ids=_ids(row, media_ids),
        completion_mask=np.asarray((0,) * context + row.loss_mask, dtype=np.int64),
        old_log_probs=np.asarray((0.0,) * context + row.logprobs, dtype=np.float32),
        model_version=version,
        enqueued_at=time.time(),
    )


def _ids(row: Row, media_ids: Sequence[int]) -> Any:  # noqa: ANN401  # an array
    ids = np.asarray(row.prompt_ids + row.response_ids, dtype=np.int64)
    if not row.images:
        return ids
    places = np.flatnonzero(np.isin(ids, media_ids))
    counts = [feature.token_count for feature in row.features]
    if len(counts) != len(row.images) or sum(counts) != len(places):
        raise LedgerFault(
            f"{len(row.images)} images have {len(counts)} features of {sum(counts)} tokens, got "
            f"{len(places)} placeholders ({list(media_ids)}); use the codec of the trainer's model"
        )
    numbers = [_number(image) for image in row.images]
    ids[places] = np.repeat(numbers, counts)
    pictured = ids.view(IdsWithImages)
    pictured.features = dict(zip(numbers, row.features, strict=True))
    return pictured


def _number(image: Image) -> int:
    """Return a negative 56-bit number that identifies the image's pixels."""
    return -1 - int(image.sha256[:14], 16)
