"""Crafter, which follows the interface of the old package gym, as a `gymnasium.Env`.

Importing this module registers `CrafterReward-v1` and `CrafterNoReward-v1`, the ids of its README
(danijar/crafter).
"""

from typing import Any, ClassVar, Final

import crafter
import gymnasium
import numpy as np
from gymnasium import spaces

_SIDE: Final = 448
_crafter: Any = crafter  # untyped


class CrafterEnv(gymnasium.Env[Any, int]):
    """Survive in a world of blocks seen from above: eat, drink, sleep, collect and craft.

    Collect wood from trees, place a table on grass to make a pickaxe and a sword, mine stone, coal,
    iron and at last diamonds, and fight zombies and skeletons. The numbers below the map are your
    health, food, drink and energy, and what you carry. The first time of each of 22 achievements
    earns a reward of 1; losing a point of health costs 0.1.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}  # type: ignore[misc]  # Gymnasium declares an instance attribute

    def __init__(
        self,
        *,
        render_mode: str | None = None,
        reward: bool = True,
        length: int = 10_000,
        size: int = _SIDE,
    ) -> None:
        """Create the environment.

        Args:
            render_mode: "rgb_array" or None.
            reward: Whether achievements and health give reward.
            length: Steps before truncation.
            size: Width and height of the pictures in pixels.
        """
        self.render_mode = render_mode
        self._options = {"size": (size, size), "reward": reward, "length": length}
        self._world: Any = _crafter.Env(**self._options)
        self.action_space: Any = spaces.Discrete(len(self._world.action_names))
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    @property
    def action_names(self) -> list[str]:
        """Names of the actions."""
        return self._world.action_names

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new world, which depends on the seed only."""
        super().reset(seed=seed)
        # One world per episode: Crafter derives an episode's seed from its own and a counter.
        self._world = _crafter.Env(**self._options, seed=int(self.np_random.integers(2**31)))
        return self._world.reset(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one action; the episode is truncated where the world ends without a death."""
        picture, reward, done, info = self._world.step(action)
        is_dead = done and info["discount"] == 0
        achievements = {name: int(count) for name, count in info["achievements"].items()}
        return picture, float(reward), is_dead, done and not is_dead, {"achievements": achievements}

    def render(self) -> Any:  # noqa: ANN401  # Gymnasium's type variable
        """Return the picture."""
        return self._world.render()


for _name, _rewards in (("CrafterReward-v1", True), ("CrafterNoReward-v1", False)):
    if _name not in gymnasium.registry:
        gymnasium.register(
            _name,
            entry_point="envkit_gymnasium.crafter:CrafterEnv",
            kwargs={"reward": _rewards},
        )
