"""What plugins bring by entry point: found by name without an import, imported on use."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from envkit.errors import ContractError, MissingDependencyError, UnknownNameError


def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; none is imported."""
    return {point.name: point for point in entry_points(group=group)}


def load_plugin(
    group: str, name: str, *, kind: str, extra: str | None = None
) -> Callable[..., Any]:
    """Import the function or class that a plugin brings.

    Args:
        group: Of entry points, such as "envkit.engines".
        name: Of the entry point.
        kind: What the group holds, for messages: "engine".
        extra: Of `envkit-rl`, with what the plugin needs; None is the name.

    Raises:
        UnknownNameError: No plugin has the name.
        MissingDependencyError: Something that the plugin needs is not installed.
        ContractError: The entry point names nothing that can be called.
    """
    known = plugins(group)
    if name not in known:
        raise UnknownNameError.suggest(kind, name, known)
    try:
        found: Any = known[name].load()
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            f"{kind} {name!r}", error.name or str(error), extra or name
        ) from error
    except AttributeError as error:
        raise ContractError(f"{kind} {name!r}: {error}; reinstall its package") from error
    if not callable(found):
        raise ContractError(f"{kind} {name!r}: {known[name].value} must be a function")
    return found
