"""Convert trajectories to the fields of verl's rows, valid for both workers in all cases.

Neither worker checks lengths, masks, placeholders or keys (verl 0.9.1, agent_loop.py:728-1145,
agent_loop_tq.py:150-227), so every sample has the same fields and keys, and an untrained one is a
short valid row with mask 0.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from envkit.agents import share_one_reward
from envkit.errors import ConfigurationError, FaultKind
from envkit.metrics import EpisodeFacts
from envkit.trajectory import RewardPlacement, Row, StopReason, Trajectory, step_rows
from envkit.trajectory.projection import placeholder_row
from envkit.trajectory.trajectory import role_of
from envkit_training.rows import check_one_row
from envkit_verl.engine import pil_images
from envkit_verl.groups import Member
from envkit_verl.settings import VerlSettings

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How one worker delivers rows."""

    settings: VerlSettings
    """Settings whose lengths bound a row."""
    filler_id: int
    """Token for rows that would be empty."""
    is_v1: bool
    placement: RewardPlacement = RewardPlacement.TURNS
    """Where rewards are placed in V1's `rm_scores`."""
    with_logprobs: bool = True
    """Whether the run keeps log-probabilities: in all samples or in none."""
    global_steps: int = 0
    """Weight version to report if no server reported one."""
    routing_shape: tuple[int, ...] | None = None
    """Shape of routed experts, (layers, experts per token); None if unknown."""
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`data.mm_processor_kwargs` in plain types: transformers rejects configuration nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """A trajectory and the reward reported to verl."""

    trajectory: Trajectory
    rows: tuple[Row, ...]
    """At least one row, each within verl's lengths."""
    problem: str | None
    """Why it is not trained; None for a trained sample."""
    reward: float
    """0.0 for an episode without a reward, until those of its group are known."""


async def rows_of(
    played: Sequence[Trajectory], member: Member, delivery: Delivery
) -> list[dict[str, Any]]:
    """Return the fields of an `EpisodeOutput` for each row of an episode, the same in all of them.

    An episode without a reward waits for its group. V1 then gets no row, so no group statistic
    includes it. V0 needs one row per sample, and V1 a group of at least two: these get mask 0 and
    the mean reward of the others, or 0.0.

    Args:
        played: The trajectories of the episode's roles.
        member: The episode's membership in its group.
        delivery: How to build rows.

    Raises:
        ConfigurationError: The roles have different rewards, an episode is several rows that verl
            would weight wrongly, or a row without a reply needs
            `routing_shape`, which is unknown.
    """
    scored = [_scored(one, delivery) for one in played]
    share_one_reward(played, "verl")
    _check_row_count(scored, delivery)
    counted = [one.reward for one in scored if one.problem is None]
    if counted:
        member.leave(counted[0])
        # V1 gives all rows the advantage of the last one, so the last must be a trained row.
        scored = sorted(
            (replace(one, reward=counted[0]) for one in scored), key=lambda one: not one.problem
        )
    else:
        member.leave(None)
        _warn(scored[0], delivery)
        others = await member.group.baseline()
        if delivery.is_v1 and others.count > 1:  # of one, verl takes the bare reward
            return []
        scored = [replace(scored[0], reward=others.mean)]
    # Siblings share one reward, which no turn of a single one has earned; a fork's includes that
    # of its parent's turns, which are not in its row.
    is_whole = [one.trajectory.origin for one in scored] == [None]
    by_turn = is_whole and delivery.placement is RewardPlacement.TURNS
    return [
        _fields(one, row, delivery, by_turn=by_turn and len(one.rows) == 1 and not one.problem)
        for one in scored
        for row in one.rows
    ]


def _check_row_count(scored: Sequence[_Scored], delivery: Delivery) -> None:
    """Reject an episode that its environment's own history policy made several rows."""
    rule = delivery.settings.why_one_row(is_v1=delivery.is_v1)
    if rule is not None:
        for one in scored:
            check_one_row(one.trajectory, one.rows, f"{rule}, or set envkit.history=keep")


def _warn(scored: _Scored, delivery: Delivery) -> None:
    one = scored.trajectory
    text = f"episode {one.episode_id} of {one.env_id} is not trained: {scored.problem}"
    text += "" if one.fault is None else f": {one.fault.message}"
    if not delivery.is_v1 and delivery.settings.is_scaled:
        text += (
            ". verl's V0 trainer counts its row in the deviation of its group, which inflates the "
            "others' advantages; to exclude it, set trainer.use_v1=true or "
            "algorithm.norm_adv_by_std_in_grpo=false"
        )
    _LOGGER.warning("%s", text)


def _scored(trajectory: Trajectory, delivery: Delivery) -> _Scored:
    filler_id, settings = delivery.filler_id, delivery.settings
    rows = step_rows(trajectory, filler_id=filler_id, merge=True)
    problem = _problem(trajectory, rows, settings)
    if problem is not None:
        rows = (placeholder_row((), None, filler_id=filler_id),)  # the smallest that verl accepts
    reward = float(trajectory.reward or 0.0)
    return _Scored(trajectory=trajectory, rows=rows, problem=problem, reward=reward)


def _problem(trajectory: Trajectory, rows: Sequence[Row], settings: VerlSettings) -> str | None:
    if trajectory.fault is not None:
        return f"{trajectory.fault.kind} fault at {trajectory.fault.where}"
    if trajectory.reward is None:
        return f"no reward: {trajectory.stop_reason.value}"
    if any(row.is_placeholder for row in rows):
        return f"no reply: {trajectory.stop_reason.value}"
    fits = all(_fits(row, settings) for row in rows)
    return None if fits else "a row is longer than prompt_length or response_length"


def _fits(row: Row, settings: VerlSettings) -> bool:
    return (
        len(row.prompt_ids) <= settings.prompt_length
        and len(row.response_ids) <= settings.response_length
    )


def _fields(scored: _Scored, row: Row, delivery: Delivery, *, by_turn: bool) -> dict[str, Any]:
    """Return the fields of one row."""
    # A split trajectory has its whole reward on the last token of every row, as the V1 worker
    # copies it: each row's return is then right, and GRPO reads only the last row.
    last = [0.0] * (len(row.response_ids) - 1) + [scored.reward]
    fields: dict[str, Any] = {
        "prompt_ids": list(row.prompt_ids),
        "response_ids": list(row.response_ids),
        "response_mask": list(row.loss_mask),
        "response_logprobs": list(row.logprobs) if delivery.with_logprobs else None,
        "multi_modal_data": {"images": pil_images(row.images)} if row.images else None,
        "token_rewards": row.token_rewards(RewardPlacement.TURNS) if by_turn else last,
        "reward_score": scored.reward,
        "num_turns": 2 * scored.trajectory.step_count,
        "metrics": _metrics(scored.trajectory),
        "extra_fields": _extra_fields(scored, delivery.global_steps),
    }
    if delivery.mm_processor_kwargs:
        fields["mm_processor_kwargs"] = dict(delivery.mm_processor_kwargs)
    if delivery.settings.keeps_routing:
        fields["routed_experts"] = _experts(row, delivery.routing_shape)
    return fields


def _experts(row: Row, shape: tuple[int, ...] | None) -> Any:  # noqa: ANN401  # an array of (tokens, layers, experts)
    """Return the routing of a row's tokens, as the server reported it with its last reply."""
    if row.segments:
        return row.segments[-1].extras["routed_experts"]
    if shape is None:
        raise ConfigurationError(
            "every row needs routed experts, and one that no server replied to gets zeros in their "
            "shape, so the model's config.json must say num_hidden_layers and num_experts_per_tok, "
            "got neither these nor an earlier reply; add them, or set "
            "rollout.enable_rollout_routing_replay=false"
        )
    return np.zeros((1, *shape), dtype=np.int16)


def _metrics(trajectory: Trajectory) -> dict[str, Any]:
    """Return verl's timers, the only metrics that it keeps (agent_loop.py:79)."""
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


def _extra_fields(scored: _Scored, global_steps: int) -> dict[str, Any]:
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
        "reward_extra_info": _numbers(scored),
        "envkit_failed": int(scored.problem is not None),
        "envkit_problem": scored.problem or "",
        "envkit_stop_reason": trajectory.stop_reason.value,
        "envkit_env_id": trajectory.env_id,
        "envkit_episode_id": trajectory.episode_id,
        "envkit_role": role_of(trajectory) or "",
        **spec,
    }


def _numbers(scored: _Scored) -> dict[str, float]:
    """Return the per-sample metrics that verl logs in validation and may filter groups by.

    Keys are always the same, with numbers: a key missing in one sample is a KeyError in V0.
    """
    facts = EpisodeFacts.of(scored.trajectory)
    retries = facts.retries
    numbers = {
        "reward": scored.reward,
        "faults": facts.is_faulted,
        "unscored": scored.problem is not None,
        "terminated": facts.stop_reason == StopReason.TERMINATED,
        "truncated": facts.is_truncated,
        "aborted": facts.is_aborted,
        "turns": facts.turns,
        "images": facts.images,
        "response_tokens": facts.response_tokens,
        "observation_tokens": facts.observation_tokens,
        "tool_calls": facts.tool_calls,
        "parse_errors": facts.parse_errors,
        "env_retries": sum(retries.get(kind, 0) for kind in FaultKind),
        "engine_retries": retries.get("engine", 0),
        "env_restarts": retries.get("restart", 0),
        "weight_versions": len(facts.weight_versions),
    }
    return {f"envkit/{name}": float(number) for name, number in numbers.items()}
