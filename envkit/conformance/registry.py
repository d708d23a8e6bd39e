"""Adapters by name, found through the entry-point group `envkit.projections`.

A value names a `Projection`, a sequence of them, or a function without arguments that returns one
or the other. The core is always there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from envkit.conformance import core
from envkit.conformance.delivered import Projection
from envkit.errors import ContractError, UnknownNameError

GROUP: Final = "envkit.projections"
CORE: Final = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One registered adapter."""

    name: str
    """Of the entry point, such as "skyrl"."""
    projections: tuple[Projection, ...]
    """Empty where the adapter cannot be imported."""
    missing: str | None = None
    """Why it cannot be imported; None where it can."""


def load_adapters(
    names: Sequence[str] = (), *, entries: Iterable[EntryPoint] | None = None
) -> tuple[Adapter, ...]:
    """Import adapters; one whose trainer is not installed is returned with what is missing.

    Args:
        names: Which ones; empty takes all.
        entries: Instead of the installed ones.

    Raises:
        UnknownNameError: No adapter has a name.
        ContractError: An entry point holds no projection.
    """
    installed = entry_points(group=GROUP) if entries is None else entries
    found = {entry.name: entry for entry in installed}
    for name in names:
        if name != CORE and name not in found:
            raise UnknownNameError.suggest("adapter", name, {CORE, *found})
    chosen = names or (CORE, *sorted(found))
    return tuple(_load(name, found) for name in chosen)


def _load(name: str, found: Mapping[str, EntryPoint]) -> Adapter:
    if name == CORE:
        return Adapter(name=CORE, projections=core.PROJECTIONS)
    try:
        value: object = found[name].load()
        if callable(value) and not isinstance(value, Projection):
            value = value()
    except ImportError as error:  # MissingDependencyError is one too
        return Adapter(name=name, projections=(), missing=str(error))
    except AttributeError as error:
        raise ContractError(f"adapter {name!r}: {error}; reinstall its package") from error
    return Adapter(name=name, projections=_projections(name, value))


def _projections(name: str, value: object) -> tuple[Projection, ...]:
    if isinstance(value, Projection):
        return (value,)
    is_row = isinstance(value, list | tuple)
    given = cast("Sequence[object]", value) if is_row else ()
    projections = tuple(one for one in given if isinstance(one, Projection))
    if not projections or len(projections) != len(given):
        raise ContractError(
            f"entry point {name!r} of group {GROUP!r} must hold Projections, "
            f"got {type(value).__name__}"
        )
    return projections
