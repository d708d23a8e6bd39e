"""Shared options, and parsing of their values."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from envkit.errors import ConfigurationError, ContractError, EnvkitError, describe
from envkit.files import expanded
from envkit.secrets import restored, stored

if TYPE_CHECKING:
    from envkit.env import Env

_NEXT_PAIR: Final = re.compile(r",(?=[A-Za-z_]\w*=)")
COUNTING: Final = "Counting"
"""Help panel of the options for counting episodes."""


def complete_id(incomplete: str) -> list[str]:
    """Return the ids with a prefix, for shell completion."""
    from envkit.registration import registry

    return [name for name in registry() if name.startswith(incomplete)]


def complete_engine(incomplete: str) -> list[str]:
    """Return the engines with a prefix, for shell completion."""
    from envkit.builtin_models import ENGINES

    return _complete(ENGINES, incomplete)


def complete_wrap(incomplete: str) -> list[str]:
    """Return the wrappers with a prefix, for shell completion."""
    from envkit.wrappers import WRAPPERS

    return [name for name in WRAPPERS if name.startswith(incomplete)]


def complete_sink(incomplete: str) -> list[str]:
    """Return the sinks with a prefix, for shell completion."""
    from envkit.cli.sinks import GROUP

    return _complete(GROUP, incomplete)


def _complete(group: str, incomplete: str) -> list[str]:
    from envkit.plugins import plugins

    return [name for name in plugins(group) if name.startswith(incomplete)]


EnvId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="An environment id; see `envkit list`.", autocompletion=complete_id
    ),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="An engine; see `envkit doctor`.",
        autocompletion=complete_engine,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="DIR_OR_NAME",
        help="A model folder or hub name; builtin-text and builtin-half come with envkit "
        "(default: builtin, which sees images of canary-v0, computer-use-v0 and three worlds).",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL[,URL]",
        help="Server of an HTTP engine; several servers share the episodes.",
    ),
]
EnvKwargs = Annotated[
    list[str] | None,
    typer.Option(
        "--env-kwargs",
        metavar="KEY=VALUE",
        help="An argument of the environment, its value as JSON or plain text; repeatable.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same tasks.")]
RewardThreshold = Annotated[
    float | None,
    typer.Option(
        metavar="REWARD",
        help="Rewards from this on count as solved (default: as the environment declares).",
        rich_help_panel=COUNTING,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write the result as JSON.")]

ServerKey = Annotated[
    str | None,
    typer.Option("--key", help="Key that clients must send (default: a random key, printed)."),
]
NoKey = Annotated[
    bool, typer.Option("--no-key", help="Accept every client; listens only on this machine.")
]
AllowRemote = Annotated[
    bool,
    typer.Option("--allow-remote", help="With --no-key, also accept clients from other machines."),
]


def parse_env_kwargs(
    pairs: Sequence[str] | None, *, option: str = "--env-kwargs"
) -> dict[str, Any]:
    """Parse the arguments of an environment or wrapper.

    Raises:
        ConfigurationError: A pair has no "=" or no valid name, or a value `env:NAME` refers to a
            variable that is not set.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator or not name.isidentifier():
            raise ConfigurationError(f"{option} takes KEY=VALUE, such as max_turns=5, got {pair!r}")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
        if isinstance(arguments[name], str):
            arguments[name] = expanded(arguments[name])
    return restored(arguments)


def parse_wraps(values: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Parse the wrappers of an environment, each `NAME` or `NAME:KEY=VALUE,KEY=VALUE`.

    Raises:
        UnknownNameError: No wrapper has a name.
        ConfigurationError: A wrapper is named twice or does not accept its arguments, or an
            argument cannot be read.
    """
    from envkit.wrappers.named import wrapping

    wraps: dict[str, dict[str, Any]] = {}
    for value in values or ():
        name, _, given = value.partition(":")
        if name in wraps:
            raise ConfigurationError(f"--wrap takes each wrapper once, got {name!r} twice")
        pairs = _NEXT_PAIR.split(given) if given else []
        wraps[name] = parse_env_kwargs(pairs, option=f"--wrap {name}:")
        wrapping(name, wraps[name])  # rejected here, before a model is loaded
    return wraps


def make_env(env_id: str, arguments: dict[str, Any]) -> "Env":
    """Build an environment.

    Raises:
        UnknownNameError: No environment has the id.
        ConfigurationError: The environment does not accept the arguments.
        ContractError: Its package cannot be imported, or it is not an envkit environment.
    """
    from envkit.registration import make

    try:
        return make(env_id, disable_env_checker=True, **arguments)
    except (EnvkitError, KeyboardInterrupt):
        raise
    except BaseException as error:  # foreign code; SystemExit would look like success
        if isinstance(error, TypeError | ValueError) and arguments:
            typed = " ".join(f"{name}={value}" for name, value in stored(arguments).items())
            raise ConfigurationError(
                f"{env_id} cannot be built with {typed}: {describe(error)}. "
                f"See `envkit info {env_id}`"
            ) from error
        raise ContractError(f"{env_id} cannot be built: {describe(error)}") from error
