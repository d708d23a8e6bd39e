"""Refuse settings of verl that envkit's loop would leave without an effect.

The loop returns the environment's reward, so verl never calls a reward function (verl 0.9.1,
experimental/agent_loop/agent_loop.py, `_compute_score`); and the environment brings its tools.
"""

from typing import Any, Final

from envkit.errors import ConfigurationError

_REWARD: Final = (
    "the environment's reward is the one that counts; drop it, or compute the reward in the "
    "environment"
)
_TOOLS: Final = "the environment has its own tools and observations; drop it"
_MULTI_TURN: Final = "actor_rollout_ref.rollout.multi_turn"
_IGNORED: Final[tuple[tuple[str, object, str], ...]] = (
    *(
        (f"{section}{key}", unset, _REWARD)
        for section, key, unset in (
            ("reward.", "custom_reward_function.path", None),
            ("", "custom_reward_function.path", None),
            ("reward.", "reward_manager.name", "naive"),
            ("reward_model.", "reward_manager", "naive"),
            ("reward.", "reward_kwargs.overlong_buffer_cfg.enable", False),
            ("reward_model.", "reward_kwargs.overlong_buffer_cfg.enable", False),
            ("reward_model.", "overlong_buffer.enable", False),
            ("reward.", "reward_model.enable", False),
            ("reward_model.", "enable", False),
            ("reward.", "sandbox_fusion.url", None),
        )
    ),
    (f"{_MULTI_TURN}.tool_config_path", None, _TOOLS),
    (f"{_MULTI_TURN}.function_tool_path", None, _TOOLS),
    (f"{_MULTI_TURN}.interaction_config_path", None, _TOOLS),
)
"""Place in the configuration of some release, the value that says nothing, and what to do."""


def check_ignored(config: Any) -> None:  # noqa: ANN401  # OmegaConf's node
    """Refuse settings without an effect beside envkit's loop.

    Args:
        config: verl's whole configuration; only the places of its release exist.

    Raises:
        ConfigurationError: One of them is set.
    """
    for place, unset, why in _IGNORED:
        value = _at(config, place)
        if value is not None and value != unset and value != "":
            raise ConfigurationError(f"{place}={value} has no effect in envkit's loop: {why}")


def _at(config: Any, place: str) -> object:  # noqa: ANN401  # OmegaConf's node
    found = config
    for name in place.split("."):
        get: Any = getattr(found, "get", None)
        found = None if get is None else get(name)
    return found
