"""Which Gymnasium environments belong to the collection, and names for their actions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from importlib import import_module
from typing import Any, Final, cast

import gymnasium

from envkit.success import finite

_SHIMS: Final = frozenset({"GymV21Environment-v0", "GymV26Environment-v0"})
"""Bridges to the old `gym` package, which need one of its environments as an argument."""

PACKAGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ale_py": ("ale-py", ("ALE/",)),
    "envkit_gymnasium.crafter": ("crafter", ("Crafter",)),
    "highway_env": (
        "highway-env",
        (
            *("exit-", "highway-", "intersection-", "lane-keeping-", "merge-", "parking-"),
            *("racetrack-", "roundabout-", "two-way-", "u-turn-"),
        ),
    ),
    "minigrid": ("minigrid", ("MiniGrid-", "BabyAI-")),
    "miniworld": ("miniworld", ("MiniWorld-",)),
    "vizdoom.gymnasium_wrapper": ("vizdoom", ("Vizdoom",)),
}
"""Module that registers environments -> its package on the index, and how its ids begin."""

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


def module_of(env_id: str) -> str | None:
    """Return the module in `PACKAGES` that registers an id; None if it is not known."""
    starts = ((start, name) for name, (_, prefixes) in PACKAGES.items() for start in prefixes)
    return next((name for start, name in starts if env_id.startswith(start)), None)


def member_ids() -> Iterator[str]:
    """Yield the registered ids without a namespace, from any package.

    Only the newest version of each name, because Gymnasium keeps old ones that no longer work. Play
    other versions, and ids with a namespace such as `ALE/Pong-v5`, as `gymnasium-v0` with `env=`.
    """
    for module in PACKAGES:
        with suppress(Exception):  # one that is missing or broken must not hide the others
            import_module(module)
    newest: dict[str, int] = {}
    for env_id, spec in gymnasium.registry.items():
        plain = spec.namespace is None and spec.version is not None
        is_legacy = str(spec.entry_point).startswith("ale_py.")  # of ids that begin with ALE/
        if plain and spec.entry_point is not None and env_id not in _SHIMS and not is_legacy:
            newest[spec.name] = max(newest.get(spec.name, 0), spec.version or 0)
    for name, version in sorted(newest.items()):
        yield f"{name}-v{version}"


def threshold_of(env_id: str) -> float | None:
    """Return the reward threshold that Gymnasium's registry has for an id; None without one."""
    return finite(gymnasium.registry[env_id].reward_threshold)


def action_names_of(env: Any) -> Sequence[str]:  # noqa: ANN401  # any unwrapped environment
    """Return names for the actions 0, 1, ... of an environment; empty if none are known.

    From the table above, or from what the environment's package says itself: `get_action_meanings`
    (ale-py), the enum `actions` (MiniGrid, MiniWorld), `action_type.actions` (highway-env),
    `action_names` (Crafter), `button_map` with `available_buttons` (ViZDoom).
    """
    found: Any = ACTION_NAMES.get(class_key(env) or "")
    if found is None and callable(meanings := getattr(env, "get_action_meanings", None)):
        found = meanings()
    enum = getattr(env, "actions", None)
    if found is None and isinstance(enum, type) and issubclass(enum, Enum):
        count = getattr(env.action_space, "n", len(enum))  # the first ones, in a smaller world
        found = [member.name for member in enum if member.value in range(count)]
    labels = getattr(getattr(env, "action_type", None), "actions", None)
    if found is None and isinstance(labels, Mapping):
        found = [*cast("Mapping[Any, Any]", labels).values()]
    if found is None and hasattr(env, "action_names"):
        found = env.action_names
    if found is None and hasattr(env, "button_map"):
        found = _button_names(env)
    names = [str(name).lower() for name in found or ()]
    return names if len({*names}) == len(names) else ()


def _button_names(env: Any) -> list[str]:  # noqa: ANN401  # a ViZDoom environment
    buttons = [button.name for button in env.game.get_available_buttons()]
    pressed = (
        [name for name, is_down in zip(buttons, row, strict=False) if is_down]
        for row in env.button_map
    )
    return ["+".join(names) or "nothing" for names in pressed]


def class_key(env: gymnasium.Env[object, object]) -> str | None:
    """Return `module:Class` of an environment that Gymnasium ships, else None."""
    package, _, rest = type(env).__module__.partition(".")
    if package != "gymnasium" or not rest.startswith("envs."):
        return None
    return f"{rest.rpartition('.')[2]}:{type(env).__name__}"
