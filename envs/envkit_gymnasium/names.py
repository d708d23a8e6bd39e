"""Which Gymnasium environments belong to the collection, and names for their actions."""

from collections.abc import Iterator, Mapping
from typing import Final

import gymnasium

from envkit.success import finite

_SHIMS: Final = frozenset({"GymV21Environment-v0", "GymV26Environment-v0"})
"""Bridges to the old `gym` package, which need one of its environments as an argument."""

ACTION_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "acrobot:AcrobotEnv": ("torque_minus_1", "torque_0", "torque_plus_1"),
    "blackjack:BlackjackEnv": ("stick", "hit"),
    "cartpole:CartPoleEnv": ("left", "right"),
    "cliffwalking:CliffWalkingEnv": ("up", "right", "down", "left"),
    "frozen_lake:FrozenLakeEnv": ("left", "down", "right", "up"),
    "lunar_lander:LunarLander": ("nothing", "left_engine", "main_engine", "right_engine"),
    "mountain_car:MountainCarEnv": ("left", "none", "right"),
    "taxi:TaxiEnv": ("south", "north", "east", "west", "pickup", "dropoff"),
}
"""Names of the actions 0, 1, ... by module and class, from Gymnasium 1.4's own pages."""

STATE_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "acrobot:AcrobotEnv": (
        "cosine of theta1",
        "sine of theta1",
        "cosine of theta2",
        "sine of theta2",
        "angular velocity of theta1",
        "angular velocity of theta2",
    ),
    "blackjack:BlackjackEnv": ("player's sum", "dealer's card", "usable ace"),
    "cartpole:CartPoleEnv": (
        "cart position",
        "cart velocity",
        "pole angle in radians",
        "pole angular velocity",
    ),
    "continuous_mountain_car:Continuous_MountainCarEnv": ("car position", "car velocity"),
    "mountain_car:MountainCarEnv": ("car position", "car velocity"),
    "pendulum:PendulumEnv": ("cosine of theta", "sine of theta", "angular velocity"),
}
"""Names of an observation's entries by module and class, from Gymnasium 1.4's own pages."""


def member_ids() -> Iterator[str]:
    """Yield the registered ids without a namespace, from any package.

    Only the newest version of each name, because Gymnasium keeps old ones that no longer work. Play
    other versions, and ids with a namespace such as `ALE/Pong-v5`, as `gymnasium-v0` with `env=`.
    """
    newest: dict[str, int] = {}
    for env_id, spec in gymnasium.registry.items():
        plain = spec.namespace is None and spec.version is not None
        if plain and spec.entry_point is not None and env_id not in _SHIMS:
            newest[spec.name] = max(newest.get(spec.name, 0), spec.version or 0)
    for name, version in sorted(newest.items()):
        yield f"{name}-v{version}"


def threshold_of(env_id: str) -> float | None:
    """Return the reward threshold that Gymnasium's registry has for an id; None without one."""
    return finite(gymnasium.registry[env_id].reward_threshold)


def class_key(env: gymnasium.Env[object, object]) -> str | None:
    """Return `module:Class` of an environment that Gymnasium ships, else None."""
    package, _, rest = type(env).__module__.partition(".")
    if package != "gymnasium" or not rest.startswith("envs."):
        return None
    return f"{rest.rpartition('.')[2]}:{type(env).__name__}"
