"""reasoning-gym's datasets as environments: `reasoning_gym/chain_sum-v0` and a hundred others."""

from typing import TYPE_CHECKING, Any

from envkit.collection import Collection
from envkit_reasoning_gym.names import member_ids

if TYPE_CHECKING:
    from envkit_reasoning_gym.env import ReasoningGymEnv

COLLECTION = Collection(
    entry_point="envkit_reasoning_gym.env:ReasoningGymEnv",
    argument="dataset",
    members=member_ids,
    description="Procedural reasoning tasks of the package reasoning-gym.",
)

__all__ = ["COLLECTION", "ReasoningGymEnv"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a class
    """Import the environment on first access."""
    if name != "ReasoningGymEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from envkit_reasoning_gym.env import ReasoningGymEnv

    return ReasoningGymEnv
