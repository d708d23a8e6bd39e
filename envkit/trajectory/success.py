"""Whether a recorded episode solved its task."""

from collections.abc import Mapping
from typing import Any

from envkit.errors import ContractError
from envkit.success import OWN_REWARD, finite, own_reward, reaches, verdict_in
from envkit.trajectory.trajectory import REWARD_THRESHOLD, UNADJUSTED, Trajectory


def threshold_of(trajectory: Trajectory) -> float | None:
    """Return the reward threshold that was in force; None if none was, or none is recorded."""
    return finite(trajectory.metadata.get(REWARD_THRESHOLD))


def with_threshold(metadata: Mapping[str, Any], threshold: float | None) -> Mapping[str, Any]:
    """Return metadata that records the threshold in force; None records none."""
    if threshold is None and REWARD_THRESHOLD not in metadata:
        return metadata
    others = {key: value for key, value in metadata.items() if key != REWARD_THRESHOLD}
    return others if threshold is None else {**others, REWARD_THRESHOLD: threshold}


def success_of(trajectory: Trajectory, *, threshold: float | None = None) -> bool | None:
    """Return whether an episode solved its task; None if that is undefined.

    The latest `info["is_success"]` decides, else whether the environment's own rewards sum to the
    threshold in force. A faulted or aborted episode is undefined, and so is one whose environment
    declared neither.

    Args:
        trajectory: An episode, or the trajectory of one role.
        threshold: A reward threshold that overrides both; None uses what was declared.
    """
    if trajectory.reward is None:
        return None
    if threshold is None:
        if (verdict := _verdict(trajectory)) is not None:
            return verdict
        threshold = threshold_of(trajectory)
    return None if threshold is None else reaches(own_return(trajectory), threshold)


def deciding_threshold(trajectory: Trajectory) -> float | None:
    """Return the threshold that success goes by; None if it goes by a verdict or is undefined."""
    is_judged = trajectory.reward is not None and _verdict(trajectory) is None
    return threshold_of(trajectory) if is_judged else None


def _verdict(trajectory: Trajectory) -> bool | None:
    """Return the latest success term of the environment; None without one."""
    for turn in reversed(trajectory.turns):
        try:
            verdict = verdict_in(turn.info)
        except ContractError:  # another program's file
            continue
        if verdict is not None:
            return verdict
    return None


def own_return(trajectory: Trajectory) -> float:
    """Return the environment's own reward of a finished episode, without wrappers' changes."""
    unadjusted = finite(trajectory.metadata.get(UNADJUSTED))
    if unadjusted is not None:
        return unadjusted
    if not any(OWN_REWARD in turn.info for turn in trajectory.turns):
        return trajectory.reward or 0.0
    turns = trajectory.turns
    return sum(own_reward(turn.info, turn.reward) for turn in turns if turn.reward is not None)
