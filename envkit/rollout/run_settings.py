"""The settings of a run in its `run.json`: written, sealed, read, checked and compared."""

import hashlib
import json
import re
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final, cast

import envkit
from envkit.errors import ConfigurationError, StorageError
from envkit.files import replace_file, storage_errors
from envkit.secrets import stored, unnamed

RUN_FILE: Final = "run.json"
SCHEMA: Final = 1
"""Version of `run.json`."""
_ID: Final = re.compile(r"[0-9a-f]{16}")
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "env_id": (str,),
    "config": (dict,),
    "config.env_kwargs": (dict,),
    "engine": (dict,),
    **{
        f"engine.{name}": (str, NoneType)
        for name in ("name", "model", "base_url", "policy", "chat", "key_env")
    },
    "episodes": (int,),
    "group_size": (int,),
    "concurrency": (int,),
    "tasks": (dict, NoneType),
    "shard": (str, NoneType),
    "wrap": (list,),
    "wrap_kwargs": (dict,),
}
"""Types of the settings that `envkit rollout` records; a section comes before its parts."""
_MOST: Final = 1 << 53
"""Largest number of a setting."""
_SHOWN: Final = 60
"""Characters of a setting's value in an error."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a run.

    Raises:
        StorageError: The folder is not a run.
        ConfigurationError: Another version of envkit created the run, or its settings changed.
    """
    file, text = path / RUN_FILE, _read(path)
    try:
        data: Any = json.loads(text)
        schema, version, seal = data["schema"], data["envkit"], data["seal"]
        settings = cast("dict[str, Any]", dict(data["settings"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"{file} does not describe a run: {error}") from error
    if schema != SCHEMA or version != envkit.__version__:
        raise ConfigurationError(
            f"envkit {version} (format {schema}) created {path}; this is {envkit.__version__} "
            f"(format {SCHEMA}), which may play differently: resume with the version that created "
            "the run, or start a new run"
        )
    if seal != _seal(settings):
        raise ConfigurationError(
            f"{file} was changed after the run started, so its episodes would have different "
            "settings; restore the file, or start a new run"
        )
    return settings


def command_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a run of `envkit rollout`.

    Raises:
        StorageError: As for `read_settings`, or a setting is missing or has a wrong type.
        ConfigurationError: As for `read_settings`.
    """
    settings = read_settings(path)
    for names, kinds in _KINDS.items():
        value: Any = settings
        for name in names.split("."):
            value = value.get(name)
        is_number = type(value) is int
        if type(value) not in kinds or (is_number and not 0 < value <= _MOST):
            allowed = " or ".join(kind.__name__ for kind in kinds)
            raise StorageError(
                f"{path / RUN_FILE} does not describe a run of envkit rollout: {names} must be "
                f"{allowed}, got {value!r:.{_SHOWN}}"
            )
    _check_wrappers(path, settings["wrap"], settings["wrap_kwargs"])
    return settings


def _check_wrappers(path: Path, names: list[object], arguments: dict[str, object]) -> None:
    if all(isinstance(name, str) for name in names) and all(
        name in names and isinstance(given, dict) for name, given in arguments.items()
    ):
        return
    raise StorageError(
        f"{path / RUN_FILE} does not describe a run of envkit rollout: wrap must be names and "
        f"wrap_kwargs their arguments, got {names!r:.{_SHOWN}} and {arguments!r:.{_SHOWN}}"
    )


def changed_settings(
    recorded: Mapping[str, Any], settings: Mapping[str, Any], *, besides: Collection[str] = ()
) -> list[str]:
    """Return a line for each setting that differs, such as "config.seed is 0, got 1".

    Secrets are equal.

    Args:
        recorded: A run's settings.
        settings: Other settings.
        besides: Names of settings that may differ, with dots between their parts.
    """
    old, new = (_flat(json.loads(json.dumps(one))) for one in (recorded, settings))
    old, new = ({name: unnamed(one) for name, one in flat.items()} for flat in (old, new))
    return [
        f"{name} is {old.get(name)!r:.{_SHOWN}}, got {new.get(name)!r:.{_SHOWN}}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
        and not any(f"{name}.".startswith(f"{other}.") for other in besides)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def write_settings(path: Path, settings: Mapping[str, Any], run_id: str) -> None:
    """Write `run.json` without secrets.

    Args:
        path: The run's folder.
        settings: As for `RunFolder.create`.
        run_id: 16 lowercase hexadecimal digits.

    Raises:
        StorageError: It cannot be written.
    """
    written = stored(settings)
    document = {
        "schema": SCHEMA,
        "envkit": envkit.__version__,
        "id": run_id,
        "settings": written,
        "seal": _seal(written),
    }
    text = json.dumps(document, indent=2).encode() + b"\n"
    replace_file(path / RUN_FILE, text, durable=True)


def read_id(path: Path) -> str:
    """Return the id of a run whose settings were read; it stays the same when the folder moves.

    Raises:
        StorageError: The folder is not a run.
    """
    found: Any = json.loads(_read(path)).get("id")
    is_valid = isinstance(found, str) and _ID.fullmatch(found)
    return found if is_valid else secrets.token_hex(8)


def _read(path: Path) -> bytes:
    file = path / RUN_FILE
    if not file.is_file():
        raise StorageError(f"{path} is not a run folder: it has no {RUN_FILE}")
    with storage_errors(f"cannot read {file}"):
        return file.read_bytes()


def _seal(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
