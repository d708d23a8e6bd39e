"""Collections: many environments of one plugin under a namespace.

An id looks like `reasoning_gym/jugs-v0`. A distribution declares a collection with one entry point
in the group `envkit.collections`: its name is the namespace and its value points to a `Collection`.
It is imported only when one of its environments is made or listed, so an unused collection costs
nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from envkit.errors import ContractError
from envkit.plugins import installed, load_only, owners

ENTRY_POINT_GROUP: Final = "envkit.collections"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Environments of one class that differ by one constructor argument."""

    entry_point: str
    """`module:Class` of every member."""
    argument: str
    """The constructor argument that selects the member."""
    members: Callable[[], Iterable[str]]
    """Returns the ids, `name-vN` without the namespace; the argument's value is the name. A mapping
    gives each id its own description."""
    keeps_version: bool = False
    """Whether the argument's value is the whole `name-vN`: the ids are another registry's."""
    description: str = ""
    """One-line description for members without their own."""
    reward_threshold: float | Callable[[str], float | None] | None = None
    """`EnvSpec.reward_threshold` of every member, or a function of the member's id, `name-vN`."""

    explain_unknown: Callable[[str], None] | None = None
    """Called with an id that is not listed, without the namespace. It may raise an `EnvkitError`
    that says more than that the id is unknown, such as which package has it."""

    def threshold_of(self, name: str) -> float | None:
        """Return the reward threshold of a member; None without one."""
        declared = self.reward_threshold
        return declared(name) if callable(declared) else declared


def collections() -> Mapping[str, str]:
    """Return the distributions that provide each installed namespace; imports nothing."""
    found = installed(ENTRY_POINT_GROUP)
    return MappingProxyType({name: owners(points) for name, points in found.items()})


def load_collection(namespace: str) -> Collection | None:
    """Import a collection; None if no distribution provides that namespace.

    Raises:
        ContractError: It fails to import, is not a `Collection`, or two distributions provide it.
        MissingDependencyError: The package it wraps is not installed.
    """
    points = installed(ENTRY_POINT_GROUP).get(namespace)
    if points is None:
        return None
    place = f"the collection {namespace!r} of the distribution {owners(points)!r}"
    loaded = load_only(points, place)
    if not isinstance(loaded, Collection):
        raise ContractError(f"{place} must be a Collection, got {type(loaded).__name__}")
    return loaded
