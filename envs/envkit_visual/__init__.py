"""Certified worlds to see: `visual/maze-v0` and dozens of others, drawn from a seed."""

from typing import TYPE_CHECKING, Final

from envkit.collection import Collection
from envkit.lazy import lazy_names

if TYPE_CHECKING:
    from envkit_visual.env import VisualEnv
    from envkit_visual.world import Domain, World


def _members() -> dict[str, str]:
    from envkit_visual.catalogue import WORLDS  # lazy: it imports every world

    return {f"{name}-v0": world.describe() for name, world in WORLDS.items()}


def _explain_unknown(env_id: str) -> None:
    """Say what a domain is to someone who takes it for an environment."""
    from envkit.errors import UnknownNameError, nearest
    from envkit_visual.catalogue import WORLDS
    from envkit_visual.world import Domain

    name = env_id.partition("-v")[0]
    domain = nearest(name, [*Domain, *WORLDS])
    if domain in set(Domain):
        raise UnknownNameError(
            f"no environment 'visual/{name}' is registered. {domain!r} is a domain, whose worlds "
            f"`envkit list visual/{domain}` shows. Domains: {', '.join(Domain)}"
        )


COLLECTION: Final = Collection(
    entry_point="envkit_visual:VisualEnv",
    argument="name",
    members=_members,
    description="A procedural visual environment with an exact oracle.",
    reward_threshold=1.0,
    explain_unknown=_explain_unknown,
)

__all__ = ["COLLECTION", "Domain", "VisualEnv", "World"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"Domain": ".world", "VisualEnv": ".env", "World": ".world"},
)
