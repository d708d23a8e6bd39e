"""Loading of plugins by entry point and of policies by `module:name`."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any

from envkit.errors import (
    ConfigurationError,
    ContractError,
    MissingDependencyError,
    UnknownNameError,
)


def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; none is imported."""
    return {point.name: point for point in entry_points(group=group)}


def load_plugin(
    group: str, name: str, *, kind: str, extra: str | None = None
) -> Callable[..., Any]:
    """Import the function or class that a plugin provides.

    Args:
        group: Entry-point group, such as "envkit.engines".
        name: Name of the entry point.
        kind: Kind of plugin, for messages, such as "engine".
        extra: Extra of `envkit-rl` with the plugin's dependencies; None uses `name`.

    Raises:
        UnknownNameError: No plugin has this name.
        MissingDependencyError: A package that the plugin needs is not installed.
        ContractError: The entry point does not name a callable.
    """
    known = plugins(group)
    if name not in known:
        raise UnknownNameError.suggest(kind, name, known)
    try:
        found: Any = known[name].load()
    except MissingDependencyError:
        raise
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            f"{kind} {name!r}", error.name or str(error), extra or name
        ) from error
    except AttributeError as error:
        raise ContractError(f"{kind} {name!r}: {error}; reinstall its package") from error
    if not callable(found):
        raise ContractError(f"{kind} {name!r}: {known[name].value} must be a function")
    return found


def load_policy(place: str) -> Callable[..., Any]:
    """Return the policy at `module:name`.

    Raises:
        ConfigurationError: The policy does not exist or is not callable.
    """
    if not all(place.partition(":")):
        raise ConfigurationError(f"--policy takes MODULE:NAME, got {place!r}")
    try:
        found: Any = resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"no policy at {place!r}: {error}") from error
    if not callable(found):
        raise ConfigurationError(
            f"{place!r} must be a function of a PolicyContext that returns the reply, "
            f"got {type(found).__name__}"
        )
    return found
