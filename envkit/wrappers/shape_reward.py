"""Wrappers that change rewards: potentials, scale and bounds.

Every change is a term of `info["reward_terms"]`. The terms still sum to the reward if the
environment's own terms did.
"""

import math
from collections.abc import Callable
from typing import Any, Final, cast

from envkit.env import Env, Observation
from envkit.errors import ConfigurationError, ContractError
from envkit.wrappers.env_wrapper import AnyEnv, EnvWrapper

Potential = Callable[[Env], float]
"""Value of the environment's current state. It must depend on that state alone, so a replayed or
restored episode gets the same rewards."""

SHAPING_TERM: Final = "shaping"
RESCALED_TERM: Final = "rescaled"


class ShapeReward(EnvWrapper):
    """Adds `gamma * potential(after) - potential(before)` to every reward.

    The potential at the end of an episode is 0, even if it is truncated. With gamma 1, an episode's
    return therefore changes by minus the potential of its start, which is the same for a whole
    group. The group's best policy and episode advantages do not change, while each turn gets credit
    for its progress (Ng, Harada and Russell, 1999: policy invariance under reward transformations).
    """

    def __init__(self, env: AnyEnv, potential: Potential, *, gamma: float = 1.0) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            potential: Called before and after each step with the unwrapped environment.
            gamma: The trainer's discount, 0 to 1.

        Raises:
            ConfigurationError: The discount is out of range.
        """
        if not 0 <= gamma <= 1:
            raise ConfigurationError(f"gamma must be 0 to 1, got {gamma}")
        super().__init__(env, potential=potential, gamma=gamma)
        self.potential, self.gamma = potential, gamma

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply and add the difference in potential.

        Raises:
            ContractError: A potential is not a finite number.
        """
        before = self._measured()
        observation, reward, terminated, truncated, info = self.env.step(action)
        after = 0.0 if terminated or truncated else self._measured()
        bonus = self.gamma * after - before
        told = _with_term(info, SHAPING_TERM, bonus)
        return observation, float(reward) + bonus, terminated, truncated, told

    def _measured(self) -> float:
        value = float(self.potential(self.inner))
        if not math.isfinite(value):
            raise ContractError(f"a potential must be a finite number, got {value}")
        return value


class RescaleReward(EnvWrapper):
    """Scales and shifts every reward, then clips it to bounds."""

    def __init__(
        self,
        env: AnyEnv,
        *,
        scale: float = 1.0,
        shift: float = 0.0,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            scale: Factor of each step's reward.
            shift: Added to each step's reward after scaling, including a reward of 0.
            low: Lower bound of a step's reward; None means unbounded.
            high: Upper bound of a step's reward; None means unbounded.

        Raises:
            ConfigurationError: A number is not finite, or the bounds are out of order.
        """
        if not all(map(math.isfinite, (scale, shift, low or 0.0, high or 0.0))):
            raise ConfigurationError(
                f"scale, shift, low and high must be finite, got {(scale, shift, low, high)}"
            )
        if low is not None and high is not None and low > high:
            raise ConfigurationError(f"low must not be above high, got low={low}, high={high}")
        super().__init__(env, scale=scale, shift=shift, low=low, high=high)
        self.scale, self.shift, self.low, self.high = scale, shift, low, high

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply and change its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        plain = float(reward)
        changed = plain * self.scale + self.shift
        changed = changed if self.low is None else max(self.low, changed)
        changed = changed if self.high is None else min(self.high, changed)
        told = _with_term(info, RESCALED_TERM, changed - plain) if changed != plain else info
        return observation, changed, terminated, truncated, told


def _with_term(info: dict[str, Any], name: str, value: float) -> dict[str, Any]:
    """Return info with a term added, keeping a term of the same name from an inner wrapper."""
    terms = cast("dict[str, float]", info["reward_terms"])
    return {**info, "reward_terms": {**terms, name: terms.get(name, 0.0) + value}}
