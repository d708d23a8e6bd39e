"""Rewards of roles: late rewards of the environment, and a user's adjustments.

A reward is a sum over turns (in the turn records, in the ledger and in the certificate built from
them), so a change applies to one turn: the last rewarded one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, ContractError
from envkit.hints import fits
from envkit.plugins import load_named
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import UNADJUSTED, Trajectory

AdjustRewards = Callable[[Mapping[str, Trajectory]], Mapping[str, float]]
"""Takes the trajectories of one episode by role, with the environment's rewards, and returns the
new rewards. A role missing from the result keeps its reward. Never called for an episode that
faulted or was aborted. Runs on a thread."""


def credit(trajectory: Trajectory, amount: float) -> Trajectory:
    """Add to the reward of an episode; see `with_total`."""
    if trajectory.reward is None or not amount:
        return trajectory
    return with_total(trajectory, trajectory.reward + amount)


def with_total(trajectory: Trajectory, total: float) -> Trajectory:
    """Return the trajectory with another total reward in its record and ledger.

    The difference goes to the last turn, in call order, that has a reward, else to the last one
    with a reply. A trajectory without a reply has no token to reward and stays unchanged.
    """
    spoken = {s.turn for s in trajectory.segments if s.kind is SegmentKind.MODEL}
    turns = list(trajectory.turns)
    known = [
        n for n in trajectory.call_order if turns[n].turn in spoken and turns[n].purpose is None
    ]
    if not known:
        return trajectory
    rewarded = [n for n in known if turns[n].reward is not None]
    place = (rewarded or known)[-1]
    others = sum(turn.reward or 0.0 for n, turn in enumerate(turns) if n != place)
    turns[place] = replace(turns[place], reward=total - others)
    return replace(
        trajectory,
        turns=tuple(turns),
        segments=_rewarded(trajectory.segments, turns[place].turn, total - others),
        reward=float(sum(turn.reward for turn in turns if turn.reward is not None)),
    )


def adjusted(
    trajectories: Mapping[str, Trajectory], adjust: AdjustRewards
) -> dict[str, Trajectory]:
    """Return the trajectories with the rewards from a user's function.

    Raises:
        ContractError: It did not return a mapping of known roles to finite numbers.
    """
    wanted: Any = adjust(trajectories)  # a user's function may return anything
    if not isinstance(wanted, Mapping):
        raise ContractError(
            f"adjust_rewards must return a mapping of roles to rewards, got {type(wanted).__name__}"
        )
    changed = dict(trajectories)
    for role, reward in cast("Mapping[str, Any]", wanted).items():
        if role not in changed:
            raise ContractError(
                f"adjust_rewards returned a reward for {role!r}; the roles are {list(changed)}"
            )
        if not fits(reward, float):
            raise ContractError(f"the reward of {role!r} must be a finite number, got {reward!r}")
        changed[role] = _set(changed[role], float(reward))
    return changed


def team_mean(trajectories: Mapping[str, Trajectory]) -> dict[str, float]:
    """Give every role the mean of all rewards: an `AdjustRewards` for a team."""
    rewards = [one.reward or 0.0 for one in trajectories.values()]
    return dict.fromkeys(trajectories, sum(rewards) / len(rewards))


def team_last(trajectories: Mapping[str, Trajectory]) -> dict[str, float]:
    """Give every role the reward of the last role in the environment's order."""
    return dict.fromkeys(trajectories, list(trajectories.values())[-1].reward or 0.0)


TEAMS: Final[Mapping[str, AdjustRewards]] = {"team_mean": team_mean, "team_last": team_last}
"""Functions by their configuration names."""


def load_adjust(place: str) -> AdjustRewards:
    """Return a function by its name in `TEAMS` or its path `module:function`.

    Raises:
        ConfigurationError: The function does not exist.
    """
    if place in TEAMS:
        return TEAMS[place]
    found = load_named(place, "adjust_rewards") if ":" in place else None
    if not callable(found):
        raise ConfigurationError(
            f"adjust_rewards must be one of {sorted(TEAMS)} or module:function, got {place!r}"
        )
    return cast(AdjustRewards, found)


def share_one_reward(trajectories: Sequence[Trajectory], who: str) -> None:
    """Reject siblings with different rewards that would share one advantage.

    Args:
        trajectories: The roles of one episode.
        who: The trainer, for the message.

    Raises:
        ConfigurationError: Two of them have different rewards.
    """
    rewards = [one.reward for one in trajectories if one.reward is not None]
    if any(not math.isclose(reward, rewards[0], abs_tol=1e-9) for reward in rewards):
        raise ConfigurationError(
            f"{who} compares episodes, not roles: agents of {trajectories[0].env_id} must share "
            f"one reward, got {rewards}; set adjust_rewards to team_mean, team_last or your own "
            "function"
        )


def _set(trajectory: Trajectory, reward: float) -> Trajectory:
    before = trajectory.reward
    if before is None or before == reward:
        return trajectory
    metadata = {**trajectory.metadata, UNADJUSTED: before}
    return replace(with_total(trajectory, reward), metadata=metadata)


def _rewarded(segments: tuple[Segment, ...], turn: int, reward: float) -> tuple[Segment, ...]:
    last = max(n for n, s in enumerate(segments) if s.kind is SegmentKind.MODEL and s.turn == turn)
    return (*segments[:last], segments[last].with_reward(reward), *segments[last + 1 :])
