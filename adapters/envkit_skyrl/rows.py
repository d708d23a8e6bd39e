"""Convert trajectories to SkyRL's training rows.

The projections are envkit's own; this module renames them. An unscored trajectory becomes one
masked row, because a batch must keep its shape. The row has the mean reward of its group's other
members, so the baseline is unchanged.
"""

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from envkit.advantages import Baseline
from envkit.errors import ConfigurationError
from envkit.rollout.engine import FinishReason
from envkit.trajectory import MergeTally, Trajectory, merge_rows, step_rows, whole_row
from envkit.trajectory.projection import RewardPlacement, Row
from envkit.trajectory.stop import StopReason
from envkit_skyrl.validation import GeneratorOutput, Pictures, TrajectoryId

STOP: Final = "stop"
"""Stop reasons that SkyRL's overlong filter and zero reward treat as a clean end."""
LENGTH: Final = "length"
ERROR: Final = "error"
"""Stop reason of placeholder rows only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How trajectories are converted to rows."""

    step_wise: bool
    merge: bool = False
    """Whether step-wise rows are merged."""
    placement: RewardPlacement = RewardPlacement.LAST
    scalar_rewards: bool = False
    """One number per row instead of a list, for SkyRL's zero-variance filter."""
    mask_unfinished: bool = False
    """SkyRL's `generator.apply_overlong_filtering`."""
    no_reward_unfinished: bool = False
    """SkyRL's `generator.zero_reward_on_non_stop`."""
    with_logprobs: bool = True
    filler_id: int
    """A token for placeholder rows."""
    placeholder: Row | None = None
    """Row for a trajectory without a reward; None uses one filler token.

    A vision-language model needs a row with an image: its forward fails on a micro-batch without
    one.
    """
    pictures: Pictures | None = None
    """None for a text model, whose output has no tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One sample of the input and its result."""

    group: str
    """The prompt's id."""
    trajectory_id: TrajectoryId | None
    """None if the input had none."""
    trajectory: Trajectory | None
    """None if the sample could not be played."""
    error: Exception | None = None
    """Why it could not be played, if so."""
    resumes: int = 0
    """Number of resumes after aborts by the server."""
    seconds: float = 0.0

    @property
    def score(self) -> float | None:
        """The reward to learn from; None without a reward or without a reply."""
        if self.trajectory is None or self.trajectory.is_faulted or not self.trajectory.turns:
            return None
        return self.trajectory.reward

    @property
    def failure(self) -> str | None:
        """Why the sample is not trained on, for people; None if it is."""
        if self.error is not None or self.trajectory is None:
            return f"{type(self.error).__name__}: {self.error}"
        if self.score is not None:
            return None
        fault = self.trajectory.fault
        if fault is not None:
            return f"{self.trajectory.stop_reason.value} in {fault.where}: {fault.message}"
        return f"it ended with {self.trajectory.stop_reason.value} before a reply was complete"

    @property
    def stop_reason(self) -> str:
        """SkyRL's name of the stop reason.

        The environment's own end is clean, including its turn limit, unless the last reply was
        truncated; every limit of the rollout counts as truncation.
        """
        trajectory = self.trajectory
        if trajectory is None or self.score is None:
            return ERROR
        cut = trajectory.turns[-1].finish_reason != FinishReason.STOP
        clean = trajectory.stop_reason in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED)
        return STOP if clean and not cut else LENGTH


@dataclass(slots=True)
class Rows:
    """The output under construction."""

    output: GeneratorOutput
    tally: MergeTally = field(default_factory=MergeTally)
    masked: int = 0
    """Untrained trajectories, which have no reward."""


def number_siblings(episodes: Sequence[tuple[Played, ...]]) -> tuple[Played, ...]:
    """Return all results in order, with an id for each agent of an episode.

    SkyRL identifies trajectories by their repetition, and counts its prompts by `instance_id`
    (skyrl/train/utils/trainer_utils.py, compute_prompt_mini_batch_boundaries). If an episode of the
    batch has several agents, the repetitions of a prompt are renumbered.
    """
    flat = tuple(one for episode in episodes for one in episode)
    if len(flat) == len(episodes):
        return flat
    counts: defaultdict[str, int] = defaultdict(int)
    numbered: list[Played] = []
    for one in flat:
        identity = one.trajectory_id
        if identity is not None:
            number = counts[identity.instance_id]
            counts[identity.instance_id] += 1
            identity = copy(identity)
            identity.repetition_id = number
        numbered.append(replace(one, trajectory_id=identity))
    return tuple(numbered)


def to_output(played: Sequence[Played], plan: RowPlan) -> Rows:
    """Return SkyRL's output without its metrics; rows are in the order of the input."""
    columns: defaultdict[str, list[Any]] = defaultdict(list)
    rows = Rows(output={})
    scores: defaultdict[str, list[float | None]] = defaultdict(list)
    for sample in played:
        scores[sample.group].append(sample.score)
    for sample in played:
        found, tally = _rows_of(sample, plan, Baseline.of(scores[sample.group]).mean)
        rows.tally = MergeTally(
            merged=rows.tally.merged + tally.merged,
            forked=rows.tally.forked + tally.forked,
            drifted_tokens=rows.tally.drifted_tokens + tally.drifted_tokens,
        )
        if sample.score is None:
            rows.masked += 1
        elif sample.stop_reason != STOP:
            found = _unfinished(found, plan)
        for row in found:
            _append(columns, row, sample, plan)
    rows.output.update(columns)
    if not plan.with_logprobs:
        rows.output["rollout_logprobs"] = None
    if any(sample.trajectory_id is None for sample in played):
        rows.output.pop("trajectory_ids", None)
    return rows


def _rows_of(sample: Played, plan: RowPlan, mean: float) -> tuple[tuple[Row, ...], MergeTally]:
    """Return the rows of a sample, at least one, and the tally of their joined prompts."""
    if sample.trajectory is None or sample.score is None:
        return (_placeholder(plan, mean),), MergeTally()
    if not plan.step_wise:
        if len(sample.trajectory.sequences()) > 1:
            raise ConfigurationError(
                f"the history of episode {sample.trajectory.episode_id} was rewritten, so it is "
                "several rows: set generator.step_wise_trajectories=true, or envkit.history=keep"
            )
        return (whole_row(sample.trajectory, filler_id=plan.filler_id),), MergeTally()
    found = step_rows(sample.trajectory, filler_id=plan.filler_id)
    joined, tally = merge_rows(found)
    return (joined, tally) if plan.merge else (found, replace(tally, merged=0))


def _unfinished(rows: Sequence[Row], plan: RowPlan) -> tuple[Row, ...]:
    """Apply SkyRL's options for truncated replies, as its own generator does."""
    if plan.mask_unfinished:
        rows = [replace(row, loss_mask=(0,) * len(row.loss_mask)) for row in rows]
    if plan.no_reward_unfinished:
        rows = [replace(row, reward=0.0, turn_rewards=()) for row in rows]
    return tuple(rows)


def _placeholder(plan: RowPlan, reward: float) -> Row:
    """Return a masked row with a reward that keeps its group's mean."""
    row = plan.placeholder or Row(
        prompt_ids=(plan.filler_id,),
        response_ids=(plan.filler_id,),
        loss_mask=(0,),
        logprobs=(0.0,),
        reward=None,
        turns=(),
        is_last=True,
        is_placeholder=True,
    )
    return replace(row, reward=reward, turn_rewards=((len(row.response_ids) - 1, reward),))


def _append(columns: dict[str, list[Any]], row: Row, sample: Played, plan: RowPlan) -> None:
    columns["prompt_token_ids"].append(list(row.prompt_ids))
    columns["response_ids"].append(list(row.response_ids))
    columns["loss_masks"].append(list(row.loss_mask))
    columns["rollout_logprobs"].append(list(row.logprobs))
    columns["rewards"].append(
        float(row.reward or 0.0) if plan.scalar_rewards else row.token_rewards(plan.placement)
    )
    columns["stop_reasons"].append(sample.stop_reason if row.is_last else _reason(sample, row))
    columns["trajectory_ids"].append(sample.trajectory_id)
    columns["trajectory_generation_times"].append(sample.seconds)
    if plan.step_wise:
        columns["is_last_step"].append(bool(row.is_last))
    if plan.pictures is not None:
        pixels, grids = _tensors(row, plan.pictures)
        columns["pixel_values"].append(pixels)
        columns["image_grid_thw"].append(grids)


def _reason(sample: Played, row: Row) -> str:
    """Return why the last reply of an earlier row ended."""
    turns = sample.trajectory.turns if sample.trajectory is not None else ()
    finish = next((turn.finish_reason for turn in turns if turn.turn == row.turns[-1]), None)
    return LENGTH if finish == FinishReason.LENGTH else STOP


def _tensors(row: Row, pictures: Pictures) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two tensors of Qwen-VL's kind; empty ones, never None, without images."""
    if not row.features:
        empty = torch.zeros(0, pictures.patch_size)
        return empty, torch.zeros(0, 3, dtype=torch.long)
    pixels: np.ndarray[Any, Any] = row.tensors["pixel_values"]
    grids: np.ndarray[Any, Any] = row.tensors["image_grid_thw"]
    return torch.from_numpy(pixels), torch.from_numpy(grids).long()
