"""What counts as success: a reward threshold, or a success term of an environment's `info`.

An environment declares success in one of two ways. `EnvSpec.reward_threshold` is the return from
which an episode is solved, as in Gymnasium's specs. `info["is_success"]` is the environment's own
verdict, as Gymnasium-Robotics and Stable-Baselines3 write and read it; it takes precedence, and its
latest value counts. Without either, success is undefined.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final, cast

import numpy as np

from envkit.errors import ConfigurationError, ContractError, shown

IS_SUCCESS: Final = "is_success"
"""Key of info: whether the task is solved so far, a bool. 0 and 1 count as bools, and None as no
verdict."""
OWN_REWARD: Final = "own_reward"
"""Key of a step's info: the reward that the threshold is about, where a wrapper or a bonus changed
it. Absent if nothing did."""

UNDECLARED: Final = "no reward threshold is declared"
HOW_TO_DECLARE: Final = (
    "register the environment with reward_threshold=REWARD, make it with "
    "--env-kwargs reward_threshold=REWARD, or let it report info['is_success']"
)


def checked_threshold(value: object) -> float | None:
    """Return a reward threshold as a float; None if there is none.

    Raises:
        ConfigurationError: It is not a finite number.
    """
    if value is None:
        return None
    number = finite(value)
    if number is None:
        raise ConfigurationError(
            f"reward_threshold must be a finite number or None, got {shown(value)}"
        )
    return number


def finite(value: object) -> float | None:
    """Return a finite number as a float; None for anything else, a bool included."""
    if type(value) is float:  # most are; the check of an abstract type is slow
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):  # an integer beyond the range of a float
        return None
    return number if math.isfinite(number) else None


def verdict_in(info: Mapping[str, Any]) -> bool | None:
    """Return the success term of an info; None without a verdict.

    Raises:
        ContractError: It is not a bool, 0, 1 or None.
    """
    value: Any = info.get(IS_SUCCESS)
    if value is None or type(value) is bool:
        return value
    if isinstance(value, np.bool_ | Real) and value in (0, 1):
        return bool(cast(Any, value))
    raise ContractError(f"info[{IS_SUCCESS!r}] must be a bool, 0, 1 or None, got {shown(value)}")


def with_verdict(info: dict[str, Any]) -> dict[str, Any]:
    """Return an info whose success term, if it has one, is a bool or None.

    Raises:
        ContractError: As for `verdict_in`.
    """
    return {**info, IS_SUCCESS: verdict_in(info)} if IS_SUCCESS in info else info


def own_reward(info: Mapping[str, Any], reward: float) -> float:
    """Return the reward of a step before wrappers and bonuses."""
    own = finite(info.get(OWN_REWARD))
    return reward if own is None else own


def reaches(total: float, threshold: float) -> bool:
    """Return whether a return is at least the threshold, up to rounding of the sum."""
    return total >= threshold or math.isclose(total, threshold, rel_tol=1e-9, abs_tol=1e-9)


def solved_by(
    rewards: Sequence[float], infos: Sequence[Mapping[str, Any]], threshold: float | None
) -> bool | None:
    """Return whether the steps of one episode solved its task; None if success is undeclared.

    Args:
        rewards: One per step.
        infos: One per step; the latest success term decides.
        threshold: The environment's `reward_threshold`, for steps without a success term.

    Raises:
        ContractError: As for `verdict_in`.
    """
    verdicts = (verdict_in(info) for info in reversed(infos))
    if (verdict := next((v for v in verdicts if v is not None), None)) is not None:
        return verdict
    if threshold is None:
        return None
    return reaches(math.fsum(map(own_reward, infos, rewards)), threshold)


def with_own_reward(info: dict[str, Any], reward: float, own: float | None) -> dict[str, Any]:
    """Return the info of a wrapped step, with the environment's own reward if it differs.

    Args:
        info: What the outermost wrapper returned.
        reward: The reward that it returned.
        own: `Env.own_reward` after the step; None if unknown.
    """
    if own is None or own == reward or OWN_REWARD in info:
        return info
    return {**info, OWN_REWARD: own}
