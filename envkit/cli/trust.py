"""What a run folder names that would run code or be sent something, and who confirmed it.

Run folders are data. A path, a command or an address in `run.json` is used only if the command line
repeats it, or `--trust` names it. Nothing is imported to find them.
"""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from envkit.access import is_loopback
from envkit.agents.rewards import TEAMS
from envkit.errors import ConfigurationError
from envkit.plugins import named_agent
from envkit.secrets import HIDDEN, REFERENCE, is_hidden, restored, stored, variables

_PLACE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w./-]*")
"""`module:function`, and Gymnasium's `module:Name-v0`."""
_CODE: Final = frozenset({
    "argv", "callable", "class", "cls", "cmd", "command", "commands", "entrypoint",
    "environment", "executable", "function", "functions", "hook", "hooks", "import", "imports",
    "module", "modules", "plugin", "plugins", "program", "python", "script", "scripts", "setup",
})  # fmt: skip
"""Last words of the names of arguments whose values are code, whatever they look like."""
_VARIABLES: Final = "env"
"""Name of an argument that maps variables of a program, which can make it run other code."""
_ADDRESS: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::\d+)?(?:/[^\s,\\@]*)?",
    re.ASCII | re.IGNORECASE,
)
"""An address that every client reads alike; the group is its host."""
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Something in a run's settings that runs code, receives data, or reads a variable."""

    setting: str
    """Its name in `run.json`, such as "config.agent.command"."""
    text: str
    """As it is listed and trusted: JSON if it is not one line of printable text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What the command line confirms of the runs that it resumes."""

    repeated: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that it repeats, nested as in `run.json`."""
    trusted: Collection[str] = ()
    """References of --trust."""
    replaced: Collection[str] = ()
    """Settings that other options replace, such as "config.player_options"."""

    def confirm(
        self, folder: Path, runs: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return runs' settings with their secrets, if everything that they name is confirmed.

        Args:
            folder: For messages.
            runs: Settings of `run.json`, by a name.

        Raises:
            ConfigurationError: An option differs from a run's setting, a reference is not
                confirmed, or a secret is not known.
        """
        left: dict[str, Reference] = {}
        filled: dict[str, dict[str, Any]] = {}
        for name, settings in runs.items():
            merge = _Repeat()
            filled[name] = cast("dict[str, Any]", merge.over(settings, self.repeated, ""))
            if merge.changed:
                raise ConfigurationError(
                    f"--resume cannot change the settings of {folder}: {'; '.join(merge.changed)}. "
                    "Drop the option, or start a new run"
                )
            known = (*merge.repeated, *self.replaced)
            for one in references(settings):
                if one.text not in self.trusted and not _is_within(one.setting, known):
                    left.setdefault(one.text, one)
        if left:
            ways = ["repeat the options that set them", _trust_all(left.values())]
            raise _unconfirmed(str(folder), left.values(), ways)
        for settings in filled.values():
            self._check_known(folder, settings)
        return {name: restored(settings) for name, settings in filled.items()}

    def _check_known(self, folder: Path, settings: Mapping[str, Any]) -> None:
        lost = [
            name
            for name, value in _leaves(settings, "")
            if isinstance(value, str) and HIDDEN in value and not _is_within(name, self.replaced)
        ]
        if lost:
            raise ConfigurationError(
                f"{folder} does not hold the secrets {', '.join(lost)}, since no environment "
                "variable held them when the run started: repeat the options that set them"
            )


class _Repeat:
    """Compares the settings that the command line repeats with a run's."""

    def __init__(self) -> None:
        self.repeated: list[str] = []
        """Names of the settings that are the same, or secret."""
        self.changed: list[str] = []

    def over(self, old: Any, given: Any, name: str) -> Any:  # noqa: ANN401  # settings
        """Return a run's settings, with the given ones for secrets."""
        if name == "config.agent" and isinstance(given, Mapping) and isinstance(old, str):
            self.over(named_agent(old), given, name)
            return old
        if isinstance(given, Mapping) and isinstance(old, Mapping):
            before = dict(cast("Mapping[str, Any]", old))
            for key, value in cast("Mapping[str, Any]", given).items():
                before[key] = self.over(before.get(key), value, f"{name}.{key}".lstrip("."))
            return before
        self.repeated.append(name)
        if is_hidden(old):
            return cast("object", given)
        if old != given:
            shown = stored({name.rpartition(".")[2]: given}).popitem()[1]
            self.changed.append(f"{name} is {old!r:.{_SHOWN}}, got {shown!r:.{_SHOWN}}")
        return cast("object", old)


def check_rows(
    file: Path,
    given: Mapping[str, Any],
    rows: Mapping[str, Any],
    *,
    trusted: Collection[str] | None = None,
) -> None:
    """Check that the arguments in the rows of a task file name nothing that is not confirmed.

    Args:
        file: For the message.
        given: Arguments of the environment on the command line.
        rows: Those of the rows.
        trusted: References of --trust; None for a command without that option.

    Raises:
        ConfigurationError: They do.
    """
    left = [
        one
        for one in _in_arguments("env_kwargs", {k: v for k, v in rows.items() if k not in given})
        if one.text not in (trusted or ())
    ]
    if left:
        ways = ["repeat them with --env-kwargs", _trust_all(left)][: 1 if trusted is None else 2]
        raise _unconfirmed(str(file), left, ways)


def references(settings: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield everything in the settings of a run that runs code, receives data or reads a variable.

    What an installed package registers by name is not among it: environments, engines, scripted
    policies of an environment, wrappers, history policies.

    Args:
        settings: JSON data, which may hold anything.
    """
    config, engine = _section(settings.get("config")), _section(settings.get("engine"))
    yield from _in_config(config)
    policy = engine.get("policy")
    if isinstance(policy, str) and ":" in policy:
        yield _reference("engine.policy", policy)
    for name in ("base_url", "chat"):
        if not _is_here(engine.get(name)):
            yield _reference(f"engine.{name}", engine[name])
    if engine.get("key_env") is not None and not _is_here(engine.get("chat")):
        yield _reference("engine.key_env", f"env:{engine['key_env']}")
    yield from _in_arguments("wrap_kwargs", settings.get("wrap_kwargs"))
    for name, value in _leaves(settings, ""):
        for variable in variables([value]):
            yield _reference(name, f"env:{variable}")


def trust_options(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the options that confirm what runs name, for the command that resumes them.

    Args:
        runs: Settings of `run.json`.
    """
    texts = dict.fromkeys(one.text for settings in runs for one in references(settings))
    return "".join(f" --trust {shlex.quote(text)}" for text in texts)


def _in_config(config: Mapping[str, Any]) -> Iterator[Reference]:
    agent = config.get("agent")
    for name, value in (named_agent(agent) if isinstance(agent, str) else _section(agent)).items():
        is_code = name in ("function", "command", "harness", "grade") and value is not None
        is_elsewhere = name == "url" and not _is_here(value)
        if is_code or is_elsewhere or (name == "bind" and not _is_here(f"http://{value}")):
            yield _reference(f"config.agent.{name}", value)
    adjust, history = config.get("adjust_rewards"), config.get("history")
    if isinstance(adjust, str) and adjust not in TEAMS:
        yield _reference("config.adjust_rewards", adjust)
    if isinstance(history, str) and ":" in history:
        yield _reference("config.history", history)
    if config.get("workers"):
        given = _section(config.get("player_options"))
        if given.get("address") not in (None, "auto", "local"):
            yield _reference("config.player_options.address", given["address"])
        if given.get("runtime_env"):
            yield _reference("config.player_options.runtime_env", given["runtime_env"])
    for name in ("env_kwargs", "engine"):
        yield from _in_arguments(f"config.{name}", config.get(name))


def _in_arguments(name: str, value: Any) -> Iterator[Reference]:  # noqa: ANN401  # JSON data
    """Yield what the arguments of an environment or a wrapper name, at any depth."""
    if isinstance(value, Mapping):
        if value and name.rpartition(".")[2] == _VARIABLES:
            yield _reference(name, value)
        for key, entry in cast("Mapping[str, Any]", value).items():
            yield from _in_arguments(f"{name}.{key}", entry)
    elif _is_code_name(name) and isinstance(value, str | list) and value:
        yield _reference(name, value)
    elif isinstance(value, list):
        for place, entry in enumerate(cast("list[Any]", value)):
            yield from _in_arguments(f"{name}.{place}", entry)
    elif isinstance(value, str):
        is_place = _PLACE.fullmatch(value) and not REFERENCE.fullmatch(value)
        if is_place or ("://" in value and not _is_here(value)):
            yield _reference(name, value)


def _is_code_name(name: str) -> bool:
    return re.split(r"[\W_]+", name)[-1].lower() in _CODE or name.lower().endswith("entry_point")


def _is_here(addresses: object) -> bool:
    """Return whether addresses, separated by commas, are all on this machine; None is."""
    if addresses is None:
        return True
    if not isinstance(addresses, str):
        return False
    hosts = [_ADDRESS.fullmatch(address.strip()) for address in addresses.split(",")]
    return all(found is not None and is_loopback(found[1].strip("[]")) for found in hosts)


def _reference(setting: str, value: Any) -> Reference:  # noqa: ANN401  # JSON data
    is_text = isinstance(value, str) and not value.startswith(('"', "[", "{"))
    if is_text and value.isprintable() and value == " ".join(value.split()):
        return Reference(setting=setting, text=value)
    text = json.dumps(value).replace("  ", " \\u0020")  # messages merge spaces
    return Reference(setting=setting, text=text)


def _trust_all(left: Collection[Reference]) -> str:
    return "add " + " ".join(f"--trust {shlex.quote(one.text)}" for one in left)


def _unconfirmed(
    where: str, left: Collection[Reference], ways: Sequence[str]
) -> ConfigurationError:
    listed = "; ".join(f"{one.setting}: {one.text}" for one in left)
    return ConfigurationError(
        f"{where} names what must be confirmed, since it runs code, receives data or reads a "
        f"variable: {listed}. Nothing was run. If you trust all of it, {', or '.join(ways)}"
    )


def _is_within(name: str, others: Collection[str]) -> bool:
    return any(f"{name}.".startswith(f"{other}.") for other in others)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  # JSON data
    """Yield the settings that are not mappings or lists, with their dotted names."""
    if isinstance(value, Mapping):
        for key, entry in cast("Mapping[str, Any]", value).items():
            yield from _leaves(entry, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(cast("Sequence[Any]", value)):
            yield from _leaves(entry, f"{name}.{place}")
    else:
        yield name, value


def _section(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
