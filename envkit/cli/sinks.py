"""The sinks that a rollout writes besides its run directory: `--sink NAME[=VALUE]`."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.files import expanded
from envkit.plugins import load_plugin, plugins

if TYPE_CHECKING:
    from envkit.sinks import GuardedSinks, Sink, SinkRun

GROUP: Final = "envkit.sinks"
"""Entry-point group of sinks: functions or classes that are called with VALUE and a `SinkRun`."""


def parse_sinks(given: Sequence[str] | None) -> dict[str, str]:
    """Return the values of sinks by name; a sink without "=" has the value "".

    Args:
        given: NAME or NAME=VALUE each; None means no sinks.

    Raises:
        UnknownNameError: No installed package provides the sink.
        ConfigurationError: A sink is named twice.
    """
    sinks: dict[str, str] = {}
    for one in given or ():
        name, _, value = one.partition("=")
        if name not in (known := plugins(GROUP)):
            raise UnknownNameError.suggest("sink", name, known)
        if name in sinks:
            raise ConfigurationError(f"a run has at most one sink of a name, got two of {name!r}")
        sinks[name] = expanded(value)
    return sinks


def open_sinks(sinks: Mapping[str, str], run: "SinkRun") -> "GuardedSinks":
    """Open the sinks; if one fails, close the others.

    Args:
        sinks: The result of `parse_sinks`.
        run: The run; each sink gets it with its own name.

    Raises:
        MissingDependencyError: A package that a sink needs is not installed.
        ConfigurationError: A value is wrong, a port is in use, or a service refuses.
        StorageError: A file or a folder cannot be written.
    """
    from envkit.sinks import GuardedSinks

    opened: dict[str, Sink] = {}
    with ExitStack() as undo:
        for name, value in sinks.items():
            opened[name] = load_plugin(GROUP, name, kind="sink")(value, replace(run, sink=name))
            undo.callback(opened[name].close)
        undo.pop_all()
    return GuardedSinks(opened, received=run.records, tell=run.tell)
