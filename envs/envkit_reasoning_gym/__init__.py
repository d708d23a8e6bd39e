"""reasoning-gym's datasets as environments: `reasoning_gym/chain_sum-v0` and a hundred others."""

from typing import TYPE_CHECKING

from envkit.collection import Collection
from envkit.lazy import lazy_names
from envkit_reasoning_gym.names import member_ids, threshold_of

if TYPE_CHECKING:
    from envkit_reasoning_gym.env import ReasoningGymEnv

COLLECTION = Collection(
    entry_point="envkit_reasoning_gym.env:ReasoningGymEnv",
    argument="dataset",
    members=member_ids,
    description="Procedural reasoning tasks of the package reasoning-gym.",
    reward_threshold=threshold_of,
)

__all__ = ["COLLECTION", "ReasoningGymEnv"]

__getattr__, __dir__ = lazy_names(__name__, {"ReasoningGymEnv": ".env"})
