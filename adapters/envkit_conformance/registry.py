"""Adapters by name, found through entry points.

The group `envkit.projections` holds what the token suite checks (`Projection`), `envkit.gradients`
what the gradient suite checks (`GradientPath`). An entry point is one of these, a sequence of them,
or a function without arguments that returns either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar, cast

from envkit.errors import ContractError, UnknownNameError
from envkit_conformance import core
from envkit_conformance.delivered import Projection

GROUP: Final = "envkit.projections"
GRADIENT_GROUP: Final = "envkit.gradients"
CORE: Final = "core"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter(Generic[T]):
    """One registered adapter."""

    name: str
    """Name of the entry point, such as "skyrl"."""
    members: tuple[T, ...]
    """What the adapter registered; empty if it cannot be imported."""
    missing: str | None = None
    """Why it cannot be imported, if so."""


def load_adapters(
    names: Sequence[str] = (), *, entries: Iterable[EntryPoint] | None = None
) -> tuple[Adapter[Projection], ...]:
    """Import adapters. An adapter without its trainer is returned with what is missing.

    Args:
        names: Adapters to import; empty means all, including the core.
        entries: Entry points to use instead of the installed ones.

    Raises:
        UnknownNameError: No adapter has a name.
        ContractError: An entry point holds no projection.
    """
    builtin = {CORE: core.PROJECTIONS}
    return load_members(GROUP, Projection, names, entries=entries, builtin=builtin)


def load_members(
    group: str,
    kind: type[T],
    names: Sequence[str] = (),
    *,
    entries: Iterable[EntryPoint] | None = None,
    builtin: Mapping[str, tuple[T, ...]] | None = None,
) -> tuple[Adapter[T], ...]:
    """Import what adapters registered in a group; see `load_adapters`.

    Args:
        group: Group of entry points.
        kind: Type of what an entry point holds.
        names: Entry points to import; empty means all.
        entries: Entry points to use instead of the installed ones.
        builtin: Members available without an entry point.

    Raises:
        UnknownNameError: No adapter has a name.
        ContractError: An entry point holds something else.
    """
    builtin = builtin or {}
    installed = entry_points(group=group) if entries is None else entries
    found = {entry.name: entry for entry in installed}
    for name in names:
        if name not in builtin and name not in found:
            raise UnknownNameError.suggest("adapter", name, {*builtin, *found})
    return tuple(
        Adapter(name=name, members=builtin[name])
        if name in builtin
        else _load(found[name], group, kind)
        for name in names or (*builtin, *sorted(found))
    )


def _load(entry: EntryPoint, group: str, kind: type[T]) -> Adapter[T]:
    try:
        value: Any = entry.load()
        if callable(value):
            value = value()
    except ImportError as error:  # MissingDependencyError is one too
        return Adapter(name=entry.name, members=(), missing=str(error))
    except AttributeError as error:
        raise ContractError(f"adapter {entry.name!r}: {error}; reinstall its package") from error
    given: tuple[Any, ...] = (value,)
    if isinstance(value, list | tuple):
        given = tuple(cast("Sequence[Any]", value))
    members = tuple(one for one in given if isinstance(one, kind))
    if not members or len(members) != len(given):
        held = cast("object", value)
        raise ContractError(
            f"entry point {entry.name!r} of group {group!r} must hold {kind.__name__}s, "
            f"got {type(held).__name__}"
        )
    return Adapter(name=entry.name, members=members)
