"""Convert trajectories to SkyRL's training rows.

The projections are envkit's own; this module renames them. An unscored trajectory becomes one
masked row, because a batch must keep its shape. The row has the mean reward of its group's other
members, so the baseline is unchanged.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from envkit.advantages import Baseline
from envkit.rollout.engine import FinishReason
from envkit.trajectory import MergeTally, Trajectory, call_rows, merge_rows, step_rows
from envkit.trajectory.projection import RewardPlacement, Row, placeholder_row
from envkit.trajectory.stop import StopReason
from envkit_skyrl.validation import GeneratorOutput, ImageSettings, TrajectoryId
from envkit_training.rows import check_one_row

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
    image_settings: ImageSettings | None = None
    """None for a text model, whose output has no tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One sample of the input and its result."""

    group: str
    """The prompt's id."""
    trajectory_id: TrajectoryId | None
    """None if the input had none."""
    trajectories: tuple[Trajectory, ...] = ()
    """One, or one for each agent of the episode; empty if the sample could not be played."""
    error: Exception | None = None
    """Why it could not be played, if so."""
    resumes: int = 0
    """Number of resumes after aborts by the server."""
    seconds: float = 0.0

    @property
    def score(self) -> float | None:
        """The reward to learn from; None without a reward or without a reply."""
        rewards = {None if one.is_faulted else one.reward for one in self.trajectories}
        if None in rewards or not any(one.turns for one in self.trajectories):
            return None
        return self.trajectories[-1].reward  # agents share one

    @property
    def failure(self) -> str | None:
        """Why the sample is not trained on, for people; None if it is."""
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        if self.score is not None:
            return None
        one = next((one for one in self.trajectories if one.fault), self.trajectories[-1])
        if one.fault is not None:
            return f"{one.stop_reason.value} in {one.fault.where}: {one.fault.message}"
        return f"it ended with {one.stop_reason.value} before a reply was complete"

    @property
    def stop_reason(self) -> str:
        """SkyRL's name of the stop reason.

        The environment's own end is clean, including its turn limit, unless the last reply was
        truncated; every limit of the rollout counts as truncation. With several agents, each must
        have ended cleanly.
        """
        if self.score is None:
            return ERROR
        return STOP if all(map(_is_clean, self.trajectories)) else LENGTH


def _is_clean(trajectory: Trajectory) -> bool:
    turns = [trajectory.turns[n] for n in trajectory.call_order]
    last = next((turn for turn in reversed(turns) if turn.purpose is None), None)
    cut = last is not None and last.finish_reason != FinishReason.STOP
    ends = (StopReason.TERMINATED, StopReason.ENV_TRUNCATED)
    return trajectory.stop_reason in ends and not cut


@dataclass(slots=True)
class Rows:
    """The output under construction."""

    output: GeneratorOutput
    tally: MergeTally = field(default_factory=MergeTally)
    masked: int = 0
    """Untrained episodes, which have no reward."""


def to_output(played: Sequence[Played], plan: RowPlan) -> Rows:
    """Return SkyRL's output without its metrics; rows are in the order of the input."""
    columns: defaultdict[str, list[Any]] = defaultdict(list)
    rows = Rows(output={})
    scores: defaultdict[str, list[float | None]] = defaultdict(list)
    for sample in played:
        scores[sample.group].append(sample.score)
    for sample in played:
        found = _rows_of(sample, plan, Baseline.of(scores[sample.group]).mean, rows)
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
        del rows.output["trajectory_ids"]
    return rows


def _rows_of(sample: Played, plan: RowPlan, mean: float, rows: Rows) -> tuple[Row, ...]:
    """Return the rows of a sample, at least one, and count joined prompts."""
    if sample.score is None:
        return (_placeholder(plan, mean),)
    if not plan.step_wise:
        (trajectory,) = sample.trajectories
        merged = step_rows(trajectory, filler_id=plan.filler_id, merge=True)
        remedy = "set generator.step_wise_trajectories=true, or envkit.history=keep"
        check_one_row(trajectory, merged, remedy)
        return merged
    # Agents of one episode share its reward, so their rows are steps of one trajectory: SkyRL then
    # counts the episode once in its group's baseline.
    found: list[Row] = []
    by_turn = plan.placement is RewardPlacement.TURNS  # the turns of joined rows must be in order
    for trajectory in sample.trajectories:
        single = (call_rows if by_turn else step_rows)(trajectory, filler_id=plan.filler_id)
        joined, tally = merge_rows(single)
        rows.tally += tally if plan.merge else replace(tally, merged=0)
        found += joined if plan.merge else single
    return (*(replace(row, reward=0.0, is_last=False) for row in found[:-1]), found[-1])


def _unfinished(rows: Sequence[Row], plan: RowPlan) -> tuple[Row, ...]:
    """Apply SkyRL's options for truncated replies, as its own generator does."""
    if plan.mask_unfinished:
        rows = [replace(row, loss_mask=(0,) * len(row.loss_mask)) for row in rows]
    if plan.no_reward_unfinished:
        rows = [replace(row, reward=0.0, turn_rewards=()) for row in rows]
    return tuple(rows)


def _placeholder(plan: RowPlan, reward: float) -> Row:
    """Return a masked row with a reward that keeps its group's mean."""
    row = plan.placeholder or placeholder_row((), reward, filler_id=plan.filler_id)
    return replace(row, reward=reward, turn_rewards=((len(row.response_ids) - 1, reward),))


def _append(columns: dict[str, list[Any]], row: Row, sample: Played, plan: RowPlan) -> None:
    columns["prompt_token_ids"].append(list(row.prompt_ids))
    columns["response_ids"].append(list(row.response_ids))
    columns["loss_masks"].append(list(row.loss_mask))
    columns["rollout_logprobs"].append(list(row.logprobs))
    columns["rewards"].append(
        row.reward if plan.scalar_rewards else row.token_rewards(plan.placement)
    )
    columns["stop_reasons"].append(sample.stop_reason)
    columns["trajectory_ids"].append(sample.trajectory_id)
    columns["trajectory_generation_times"].append(sample.seconds)
    if plan.step_wise:
        columns["is_last_step"].append(row.is_last)
    if plan.image_settings is not None:
        pixels, grids = _tensors(row, plan.image_settings)
        columns["pixel_values"].append(pixels)
        columns["image_grid_thw"].append(grids)


def _tensors(row: Row, images: ImageSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two tensors of Qwen-VL's kind; empty ones, never None, without images."""
    if not row.features:
        empty = torch.zeros(0, images.patch_size)
        return empty, torch.zeros(0, 3, dtype=torch.long)
    pixels: np.ndarray[Any, Any] = row.tensors["pixel_values"]
    grids: np.ndarray[Any, Any] = row.tensors["image_grid_thw"]
    return torch.from_numpy(pixels), torch.from_numpy(grids).long()
