"""Adapters by name, found through entry points.

An entry point of the group `envkit.projections` is a `Projection`, a sequence of them, or a
function without arguments that returns either.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from envkit.errors import ContractError, UnknownNameError
from envkit.plugins import foreign
from envkit_conformance import core
from envkit_conformance.delivered import Projection

GROUP: Final = "envkit.projections"
CORE: Final = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One registered adapter."""

    name: str
    """Name of the entry point, such as "skyrl"."""
    members: tuple[Projection, ...]
    """What the adapter registered; empty if it cannot be imported."""
    missing: str | None = None
    """Why it cannot be imported, if so."""


def load_adapters(
    names: Sequence[str] = (), *, entries: Iterable[EntryPoint] | None = None
) -> tuple[Adapter, ...]:
    """Import adapters. An adapter without its trainer is returned with what is missing.

    Args:
        names: Adapters to import; empty means all, including the core.
        entries: Entry points to use instead of the installed ones.

    Raises:
        UnknownNameError: No adapter has a name.
        ContractError: The entry point of a named adapter holds no projection, or fails.
    """
    installed = entry_points(group=GROUP) if entries is None else entries
    found = {entry.name: entry for entry in installed}
    for name in names:
        if name != CORE and name not in found:
            raise UnknownNameError.suggest("adapter", name, {CORE, *found})
    return tuple(
        Adapter(name=CORE, members=core.PROJECTIONS)
        if name == CORE
        else _load(found[name], is_asked=bool(names))
        for name in names or (CORE, *sorted(found))
    )


def _load(entry: EntryPoint, *, is_asked: bool) -> Adapter:
    try:
        with foreign(f"adapter {entry.name!r} ({entry.value}) fails to import"):
            try:
                return _adapter(entry)
            except ImportError as error:  # MissingDependencyError is one too
                return Adapter(name=entry.name, members=(), missing=str(error))
    except ContractError as error:
        if is_asked:
            raise
        return Adapter(name=entry.name, members=(), missing=str(error))


def _adapter(entry: EntryPoint) -> Adapter:
    value: Any = entry.load()
    if callable(value):
        value = value()
    given: tuple[Any, ...] = (value,)
    if isinstance(value, list | tuple):
        given = tuple(cast("Sequence[Any]", value))
    members = tuple(one for one in given if isinstance(one, Projection))
    if not members or len(members) != len(given):
        held = cast("object", value)
        raise ContractError(
            f"entry point {entry.name!r} of group {GROUP!r} must hold Projections, "
            f"got {type(held).__name__}"
        )
    return Adapter(name=entry.name, members=members)
