"""Loading of plugins by entry point, and of a user's functions by `module:name`."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any

from envkit import errors


def installed(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; none is imported. Several are a conflict."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, []).append(point)
    return found


def plugins(group: str) -> dict[str, EntryPoint]:
    """Return one entry point per name of a group; none is imported."""
    return {name: points[-1] for name, points in installed(group).items()}


def owners(points: Sequence[EntryPoint]) -> str:
    """Return the names of the distributions that provide entry points."""
    return ", ".join(sorted({point.dist.name if point.dist else "unknown" for point in points}))


@contextmanager
def foreign(
    failure: str,
    error: type[errors.ConfigurationError | errors.ContractError] = errors.ContractError,
) -> Generator[None]:
    """Run a plugin's or a user's code: a failure of any kind is an error that names it.

    Args:
        failure: Start of the message, such as "the policy 'mine:play' fails to import".
        error: Type of that error.

    Raises:
        MissingDependencyError: The code raised it.
        ContractError: The code raised anything else, even `SystemExit`. Only Ctrl-C passes.
    """
    try:
        yield
    except errors.MissingDependencyError:
        raise
    except BaseException as cause:
        # A plugin that calls `sys.exit` while it is imported must not end the command silently.
        if type(cause) is KeyboardInterrupt:
            raise
        raise error(f"{failure}: {errors.describe(cause)}") from cause


def load_only(points: Sequence[EntryPoint], place: str) -> Any:  # noqa: ANN401  # any object
    """Import what the only entry point of a name provides; a failure is as in `foreign`.

    Args:
        points: All entry points of the name.
        place: What they provide, for the message.

    Raises:
        ContractError: Several distributions provide it.
    """
    if len(points) > 1:
        raise errors.ContractError(
            f"{place} must come from one distribution, got more than one distribution: "
            f"{owners(points)}; uninstall all but one"
        )
    with foreign(f"{place} ({points[0].value}) fails to import"):
        return points[0].load()


def load_plugin(group: str, name: str | None, *, kind: str) -> Callable[..., Any]:
    """Import the function or class that a plugin provides.

    Args:
        group: Entry-point group, such as "envkit.engines".
        name: Name of the entry point; None for the only one installed.
        kind: Kind of plugin, for messages, such as "engine".

    Raises:
        UnknownNameError: No plugin has this name.
        ConfigurationError: No name is given, and there is not exactly one.
        MissingDependencyError: A package that the plugin needs is not installed. Its extra is the
            one in the entry point, as in "module:name [extra]", else that of the plugin's name.
        ContractError: It fails to import in another way, or is not a callable.
    """
    known = plugins(group)
    if name is None and len(known) != 1:
        names = ", ".join(sorted(known)) or "none"
        raise errors.ConfigurationError(
            f"exactly one {kind} must be installed, or named, got {names}"
        )
    name = next(iter(known)) if name is None else name
    if name not in known:
        raise errors.UnknownNameError.suggest(kind, name, known)
    with foreign(f"{kind} {name!r} ({known[name].value}) fails to import"):
        try:
            found: Any = known[name].load()
        except errors.MissingDependencyError:
            raise
        except ImportError as error:
            raise errors.MissingDependencyError.for_extra(
                f"{kind} {name!r}", error.name or str(error), next(iter(known[name].extras), name)
            ) from error
    if not callable(found):
        raise errors.ContractError(f"{kind} {name!r}: {known[name].value} must be a function")
    return found


def load_named(place: str, what: str) -> Any:  # noqa: ANN401  # any object
    """Return what `module:name` names.

    Args:
        place: The module and the name in it.
        what: What it should be, for the message, such as "the policy".

    Raises:
        ConfigurationError: It has another form, does not exist, or fails to import.
    """
    hint = "write it as module:function, and install the module or add its folder to PYTHONPATH"
    with foreign(f"cannot import {what} {place!r} ({hint})", errors.ConfigurationError):
        return resolve_name(place)


def named_agent(agent: str) -> dict[str, Any]:
    """Return the settings of an agent in one text: `module:function`, or a harness."""
    is_function = ":" in agent.partition(" ")[0]  # a harness may have further words
    return {"function" if is_function else "harness": agent}


def load_policy(place: str) -> Callable[..., Any]:
    """Return the policy at `module:name`.

    Raises:
        ConfigurationError: As for `load_named`, or it is not callable.
    """
    if not all(place.partition(":")):
        raise errors.ConfigurationError(f"--policy takes MODULE:NAME, got {place!r}")
    found = load_named(place, "the policy")
    if not callable(found):
        raise errors.ConfigurationError(
            f"{place!r} must be a function of a PolicyContext that returns the reply, "
            f"got {type(found).__name__}"
        )
    return found
