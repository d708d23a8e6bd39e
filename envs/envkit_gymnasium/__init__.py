"""Gymnasium's environments: `gymnasium/FrozenLake-v1`, or `gymnasium-v0` with `env=`."""

from typing import TYPE_CHECKING

from envkit.collection import Collection
from envkit.lazy import lazy_names
from envkit.registration import EnvSpec
from envkit_gymnasium.names import member_ids, threshold_of

if TYPE_CHECKING:
    from envkit_gymnasium.env import GymnasiumEnv


def _explain_unknown(env_id: str) -> None:
    from envkit_gymnasium.inner import explain_unknown

    explain_unknown(env_id)


SPEC = EnvSpec(
    id="gymnasium-v0",
    entry_point="envkit_gymnasium.env:GymnasiumEnv",
    description="Any gymnasium.Env, given as env=, played by text or tool calls.",
)
PETTINGZOO_SPEC = EnvSpec(
    id="pettingzoo-v0",
    entry_point="envkit_gymnasium.zoo:PettingZooEnv",
    description="A game of PettingZoo whose agents take turns, given as env=.",
)
TEXTARENA_SPEC = EnvSpec(
    id="textarena-v0",
    entry_point="envkit_gymnasium.arena:TextArenaEnv",
    description="A game of TextArena for one or two players, given as env=.",
)
COLLECTION = Collection(
    entry_point="envkit_gymnasium.env:GymnasiumEnv",
    argument="env",
    members=member_ids,
    keeps_version=True,
    reward_threshold=threshold_of,
    explain_unknown=_explain_unknown,
    description="Gymnasium's registered environments, played by text or tool calls.",
)

__all__ = ["COLLECTION", "PETTINGZOO_SPEC", "SPEC", "TEXTARENA_SPEC", "GymnasiumEnv"]

__getattr__, __dir__ = lazy_names(__name__, {"GymnasiumEnv": ".env"})
