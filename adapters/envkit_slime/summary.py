"""What is noted about an episode in its sample's metadata, for log and reward functions."""

from collections import Counter
from typing import Any

from envkit.rollout import role_of
from envkit.trajectory import Trajectory


def summarise(trajectory: Trajectory, *, server_aborts: int = 0) -> dict[str, Any]:
    """Return plain data about a trajectory; small, since it travels with every sample."""
    retries: Counter[str] = Counter()
    for turn in trajectory.turns:
        retries.update(turn.env_retries)
    fault = trajectory.fault
    return {
        "env_id": trajectory.env_id,
        "role": role_of(trajectory),
        "stop_reason": trajectory.stop_reason.value,
        "fault": None
        if fault is None
        else {"where": fault.where.value, "kind": fault.kind.value, "message": fault.message},
        "reward": trajectory.reward,
        "turns": len(trajectory.turns),
        "images": sum(len(segment.images) for segment in trajectory.segments),
        "tool_calls": sum(turn.tool_call is not None for turn in trajectory.turns),
        "parse_errors": sum(turn.parse_error is not None for turn in trajectory.turns),
        "env_retries": dict(retries),
        "engine_retries": sum(turn.engine_retries for turn in trajectory.turns),
        "resamples": sum(turn.resamples for turn in trajectory.turns),
        "restarts": trajectory.env_restarts,
        "server_aborts": server_aborts,
        "env_seconds": sum(turn.env_seconds for turn in trajectory.turns),
        "encode_seconds": sum(turn.encode_seconds for turn in trajectory.turns),
        "generate_seconds": sum(turn.generate_seconds for turn in trajectory.turns),
        "initial_observation_hash": trajectory.initial_observation_hash,
    }


def summarise_failure(error: Exception) -> dict[str, Any]:
    """Return the same about an episode that could not even be started or written."""
    return {
        "env_id": None,
        "role": None,
        "stop_reason": "env_fault",
        "fault": {
            "where": "setup",
            "kind": "permanent",
            "message": f"{type(error).__name__}: {error}",
        },
        "reward": None,
        "turns": 0,
        "images": 0,
        "tool_calls": 0,
        "parse_errors": 0,
        "env_retries": {},
        "engine_retries": 0,
        "resamples": 0,
        "restarts": 0,
        "server_aborts": 0,
        "env_seconds": 0.0,
        "encode_seconds": 0.0,
        "generate_seconds": 0.0,
        "initial_observation_hash": None,
    }
