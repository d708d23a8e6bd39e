"""A trajectory as verl's `AgentLoopOutput`: valid for both workers, whatever happened.

Neither worker checks lengths, masks, placeholders or keys (verl 0.9.1, agent_loop.py:728-1145,
agent_loop_tq.py:150-227), so every sample has the same fields and keys, and one that must not be
trained is a short valid row with mask 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from envkit.errors import ConfigurationError
from envkit.rollout import role_of
from envkit.trajectory import (
    RewardPlacement,
    Row,
    SegmentKind,
    StopReason,
    Trajectory,
    step_rows,
)
from envkit_verl.engine import pictures
from envkit_verl.settings import VerlSettings


class EpisodeOutput(AgentLoopOutput):
    """One training row, with a reward for each response token.

    The V1 worker stores `as_dict()`, so `rm_scores` reaches the trainer with the reward of each
    turn on the turn's last token. The V0 worker takes the scalar `reward_score`.
    """

    token_rewards: list[float]  # as long as response_ids

    def as_dict(self) -> dict[str, Any]:
        """Return the row's columns; from verl 0.8.0, which calls it from 0.9.0 on."""
        columns = super().as_dict()
        rewards = columns.pop("token_rewards")
        columns["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A trajectory and what verl is told about its reward."""

    trajectory: Trajectory
    rows: tuple[Row, ...]
    """At least one, each of which fits verl's lengths."""
    problem: str | None
    """Why nothing of it is trained; None for a sample that counts."""
    reward: float
    """Of a sample that does not count: the mean of its group's others, which leaves their
    advantages as they are, or 0.0 where there is none."""


def rows_for(
    trajectory: Trajectory, settings: VerlSettings, *, filler_id: int
) -> tuple[tuple[Row, ...], str | None]:
    """Return the trajectory's rows, and why it must not be trained or None.

    Args:
        trajectory: Any.
        settings: Their lengths bound a row.
        filler_id: Stands where a row would have no token.
    """
    rows = step_rows(trajectory, filler_id=filler_id, merge=True)
    problem = _problem(trajectory, rows, settings)
    if problem is None:
        return rows, None
    return (_masked(rows[-1], settings, filler_id),), problem


def _problem(trajectory: Trajectory, rows: Sequence[Row], settings: VerlSettings) -> str | None:
    if trajectory.fault is not None:
        return f"{trajectory.fault.kind} fault at {trajectory.fault.where}"
    if trajectory.reward is None:
        return f"no reward: {trajectory.stop_reason.value}"
    if rows[-1].is_placeholder:
        return f"no reply: {trajectory.stop_reason.value}"
    if not all(_fits(row, settings) for row in rows):
        return "a row is longer than prompt_length or response_length"
    return None


def _fits(row: Row, settings: VerlSettings) -> bool:
    return (
        len(row.prompt_ids) <= settings.prompt_length
        and len(row.response_ids) <= settings.response_length
    )


def _masked(row: Row, settings: VerlSettings, filler_id: int) -> Row:
    """Return a row that trains nothing: the same with mask 0, or one filler where it is no row."""
    keeps = _fits(row, settings) and not row.is_placeholder
    return Row(
        prompt_ids=row.prompt_ids if keeps else (filler_id,),
        response_ids=row.response_ids if keeps else (filler_id,),
        loss_mask=(0,) * (len(row.response_ids) if keeps else 1),
        logprobs=row.logprobs if keeps else (0.0,),
        images=row.images if keeps else (),
        features=row.features if keeps else (),
        reward=None,
        turns=row.turns,
        is_last=True,
        is_placeholder=True,
    )


def outputs_of(
    scored: Scored,
    settings: VerlSettings,
    *,
    placement: RewardPlacement,
    with_logprobs: bool,
    global_steps: int,
    routing_shape: tuple[int, ...] | None,
    mm_processor_kwargs: Mapping[str, Any],
) -> list[EpisodeOutput]:
    """Return one output for each row; the same fields are set in all of them.

    Args:
        scored: The trajectory and its rows.
        settings: Of the rollout.
        placement: Where rewards stand in `rm_scores`. A split trajectory has its whole reward on
            the last token of every row, as the V1 worker itself copies it: each row's return is
            then right, and GRPO reads the last row alone.
        with_logprobs: Whether the run keeps log-probabilities: in all samples or in none.
        global_steps: Weight version to state where no server told one.
        routing_shape: Of routed experts, (layers, experts per token); None if unknown.
        mm_processor_kwargs: `data.mm_processor_kwargs` in plain types: verl's worker would pass
            its own configuration nodes on, which transformers refuses.

    Raises:
        ConfigurationError: A row without a reply needs `routing_shape`, which is unknown.
    """
    shared: dict[str, Any] = {
        "reward_score": scored.reward,
        "num_turns": 2 * len(scored.trajectory.turns),
        "metrics": _metrics(scored.trajectory),
        **({"mm_processor_kwargs": dict(mm_processor_kwargs)} if mm_processor_kwargs else {}),
    }
    outputs: list[EpisodeOutput] = []
    for row in scored.rows:
        fields: dict[str, Any] = {
            "prompt_ids": list(row.prompt_ids),
            "response_ids": list(row.response_ids),
            "response_mask": list(row.loss_mask),
            "response_logprobs": list(row.logprobs) if with_logprobs else None,
            "multi_modal_data": {"images": pictures(row.images)} if row.images else None,
            "token_rewards": _token_rewards(scored, row, placement),
            "extra_fields": _extra_fields(scored, global_steps),
            **shared,
        }
        if settings.keeps_routing:
            fields["routed_experts"] = _experts(scored, row, routing_shape)
        outputs.append(EpisodeOutput(**fields))
    return outputs


def _token_rewards(scored: Scored, row: Row, placement: RewardPlacement) -> list[float]:
    if placement is RewardPlacement.TURNS and scored.problem is None and len(scored.rows) == 1:
        return row.token_rewards(RewardPlacement.TURNS)
    return [0.0] * (len(row.response_ids) - 1) + [scored.reward]


def _experts(scored: Scored, row: Row, shape: tuple[int, ...] | None) -> Any:  # noqa: ANN401  # an array of (tokens, layers, experts)
    """Return the routing of a row's tokens; zeros for one that has none, so that columns agree."""
    last_turn = row.turns[-1] if row.turns else None
    for segment in reversed(scored.trajectory.segments):
        if segment.kind is SegmentKind.MODEL and segment.turn == last_turn:
            found: Any = segment.extras.get("routed_experts")
            if found is not None:
                return found
    if shape is None:
        raise ConfigurationError(
            "every row needs routed experts, and one that no server replied to gets zeros in their "
            "shape, so the model's config.json must say num_hidden_layers and num_experts_per_tok, "
            "got neither these nor an earlier reply; add them, or set "
            "rollout.enable_rollout_routing_replay=false"
        )
    return np.zeros((1, *shape), dtype=np.int16)


def _metrics(trajectory: Trajectory) -> dict[str, Any]:
    """Return verl's timers, the only metrics that it keeps from an output (agent_loop.py:79)."""
    preempted = [
        int(segment.extras["num_preempted"])
        for segment in trajectory.segments
        if "num_preempted" in segment.extras
    ]
    return {
        "generate_sequences": sum(turn.generate_seconds for turn in trajectory.turns),
        "tool_calls": sum(turn.env_seconds for turn in trajectory.turns),
        "compute_score": 0.0,
        "num_preempted": sum(preempted) if preempted else -1,
    }


def _extra_fields(scored: Scored, global_steps: int) -> dict[str, Any]:
    """Return the extra columns: verl's own, and ours with a prefix that no dataset column has."""
    trajectory = scored.trajectory
    extras = [segment.extras for segment in trajectory.segments]
    first = [int(e["min_global_steps"]) for e in extras if "min_global_steps" in e]
    last = [int(e["max_global_steps"]) for e in extras if "max_global_steps" in e]
    spec: dict[str, int] = {}
    for entry in extras:
        for key, value in entry.items():
            if key.startswith("spec_"):
                spec[key] = spec.get(key, 0) + int(value)
    return {
        "turn_scores": [float(turn.reward or 0.0) for turn in trajectory.turns],
        "tool_rewards": [],
        "min_global_steps": min(first, default=global_steps),
        "max_global_steps": max(last, default=global_steps),
        "reward_extra_info": reward_extra_info(scored),
        "envkit_failed": int(scored.problem is not None),
        "envkit_problem": scored.problem or "",
        "envkit_stop_reason": trajectory.stop_reason.value,
        "envkit_env_id": trajectory.env_id,
        "envkit_episode_id": trajectory.episode_id,
        "envkit_role": role_of(trajectory) or "",
        **spec,
    }


def reward_extra_info(scored: Scored) -> dict[str, float]:
    """Return the per-sample metrics that verl logs in validation and may filter groups by.

    Always the same keys with numbers: a key that is missing in one sample is a KeyError in V0.
    """
    trajectory, turns = scored.trajectory, scored.trajectory.turns
    versions = {s.weight_version for s in trajectory.segments if s.kind is SegmentKind.MODEL}
    numbers: dict[str, float] = {
        "reward": scored.reward,
        "faults": float(trajectory.is_faulted),
        "unscored": float(scored.problem is not None),
        "terminated": float(trajectory.stop_reason is StopReason.TERMINATED),
        "truncated": float(trajectory.stop_reason.is_truncation),
        "aborted": float(trajectory.stop_reason is StopReason.ABORTED),
        "turns": float(len(turns)),
        "images": float(sum(len(segment.images) for segment in trajectory.segments)),
        "response_tokens": float(sum(turn.response_tokens for turn in turns)),
        "observation_tokens": float(sum(turn.observation_tokens for turn in turns)),
        "tool_calls": float(sum(turn.tool_call is not None for turn in turns)),
        "parse_errors": float(sum(turn.parse_error is not None for turn in turns)),
        "env_retries": float(sum(sum(turn.env_retries.values()) for turn in turns)),
        "engine_retries": float(sum(turn.engine_retries for turn in turns)),
        "env_restarts": float(trajectory.env_restarts),
        "weight_versions": float(len(versions)),
    }
    return {f"envkit/{name}": number for name, number in numbers.items()}
