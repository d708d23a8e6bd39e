"""What an environment answered: validated once, and hashed for comparison."""

import hashlib
import math
from numbers import Real
from typing import Any, cast

import numpy as np

from envkit.env import Observation, Reset, Step
from envkit.errors import ContractError


def observation_hash(observation: Observation) -> str:
    """Return a hash of what the model reads."""
    return _digest(observation, "")


def step_hash(step: Step) -> str:
    """Return a hash of a step: observation, reward and both flags."""
    return _digest(step.observation, f"{step.reward!r}{step.terminated}{step.truncated}")


def _digest(observation: Observation, outcome: str) -> str:
    text = observation["text"]
    images = "".join(image.sha256 for image in observation["images"])
    head = f"{len(text)}:{text}{observation['role']}:{images}:{outcome}"
    return hashlib.sha256(head.encode("utf-8", "surrogatepass")).hexdigest()


def _checked_observation(value: Any, source: str) -> Observation:  # noqa: ANN401  # foreign data
    if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != {
        "text",
        "images",
        "role",
    }:
        raise ContractError(
            f"{source} must return an observation with exactly the keys text, images and role, "
            f"got {value!r:.200}"
        )
    return cast(Observation, value)


def checked_reset(value: Any, name: str) -> Reset:  # noqa: ANN401  # foreign data
    """Return what `reset` returned, or raise ContractError.

    Raises:
        ContractError: It is no (observation, info).
    """
    if not isinstance(value, tuple) or len(cast("tuple[Any, ...]", value)) != 2:
        raise ContractError(f"{name}.reset must return (observation, info), got {value!r:.200}")
    observation, info = cast("tuple[Any, Any]", value)
    return Reset(_checked_observation(observation, f"{name}.reset"), dict(info))


def checked_step(value: Any, name: str) -> Step:  # noqa: ANN401  # foreign data
    """Return what `step` returned with plain Python numbers, or raise ContractError.

    Raises:
        ContractError: It is no five-tuple, the reward is no finite number (it would poison a
            whole group's advantages), or a flag is no bool.
    """
    if not isinstance(value, tuple) or len(cast("tuple[Any, ...]", value)) != 5:
        raise ContractError(
            f"{name}.step must return (observation, reward, terminated, truncated, info), "
            f"got {value!r:.200}"
        )
    observation, reward, terminated, truncated, info = cast("tuple[Any, ...]", value)
    if isinstance(reward, bool) or not isinstance(reward, Real) or not math.isfinite(reward):
        raise ContractError(f"{name}.step must return a finite number as reward, got {reward!r}")
    if not all(isinstance(flag, (bool, np.bool_)) for flag in (terminated, truncated)):
        raise ContractError(
            f"{name}.step must return terminated and truncated as bool, "
            f"got {terminated!r} and {truncated!r}"
        )
    return Step(
        _checked_observation(observation, f"{name}.step"),
        float(reward),
        bool(terminated),
        bool(truncated),
        dict(info),
    )
