"""Read a tool set from a Python file or from a configuration in YAML or JSON.

A Python file provides all of its public tools, or the value of one name::

    tools.py            every @envkit.tool, in file order
    tools.py:web        a tool, a function, a list of them, a ToolSet, or a function that makes one

A configuration names Python files, relative to itself, and sets limits::

    tools:
      - tools.py
      - use: web.py:search
        name: find              # what the model calls it
        description: Search the encyclopedia.
        timeout_s: 5
    timeout_s: 30
    max_calls: 4
    is_sequential: false
    max_characters: 20000

Both run the code of the named files.
"""

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.files import expanded, read_data
from envkit.plugins import foreign
from envkit.tools import ToolSpec
from envkit.toolset.tool_set import ToolSet

_PYTHON: Final = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)
_LIMITS: Final[Mapping[str, tuple[type, ...]]] = {
    "timeout_s": (int, float, type(None)),
    "max_calls": (int,),
    "is_sequential": (bool,),
    "max_characters": (int,),
}
_ENTRY: Final[Mapping[str, tuple[type, ...]]] = {
    "use": (str,),
    "name": (str,),
    "description": (str,),
    "timeout_s": (int, float),
}


def load_tools(place: str | os.PathLike[str]) -> ToolSet:
    """Read a tool set.

    Args:
        place: `FILE.py`, `FILE.py:NAME`, or a configuration: `FILE.yaml`, `FILE.yml`, `FILE.json`.

    Raises:
        ConfigurationError: The file is missing or invalid, or contains no tool set.
        MissingDependencyError: It is a YAML file and PyYAML is not installed.
    """
    text = expanded(os.fspath(place))
    if match := _PYTHON.fullmatch(text):
        return _from_python(Path(match.group(1)), match.group(2))
    path = Path(text)
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        raise ConfigurationError(
            f"a tool set is FILE.py, FILE.py:NAME, FILE.yaml or FILE.json, got {text!r}"
        )
    return _from_config(read_data(path, "the tool set"), path)


def _from_python(path: Path, name: str | None) -> ToolSet:
    module = _import_file(path)
    if name is None:
        found = [
            value
            for key, value in vars(module).items()
            if isinstance(value, ToolSpec) and not key.startswith("_")
        ]
        if not found:
            raise ConfigurationError(
                f"{str(path)!r} defines no tools: decorate its functions with @envkit.tool"
            )
        return ToolSet(specs=tuple(found))
    if name not in vars(module):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UnknownNameError.suggest(f"name in {path.name}", name, public)
    return _as_set(vars(module)[name], f"{path}:{name}")


def _as_set(value: object, place: str) -> ToolSet:
    if isinstance(value, ToolSet):
        return value
    if isinstance(value, ToolSpec):
        return ToolSet(specs=(value,))
    if isinstance(value, list | tuple):
        return ToolSet.of(cast(list[ToolSpec], value))
    if callable(value):
        return _as_set(_made(value, place), place) if _is_factory(value) else ToolSet.of([value])
    raise ConfigurationError(
        f"{place!r} must be a tool, a list of tools or a ToolSet, got {type(value).__name__}"
    )


def _is_factory(value: Callable[..., Any]) -> bool:
    """Return whether a function's annotation says that it returns tools."""
    returned: object = getattr(value, "__annotations__", {}).get("return")
    return "ToolS" in (returned if isinstance(returned, str) else repr(returned))


def _made(factory: Callable[..., Any], place: str) -> object:
    with foreign(f"{place!r} failed", ConfigurationError):
        return factory()


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no Python file {str(path)!r} to read tools from")
    # A unique name, so that two files called tools.py do not replace each other.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"envkit_tools_{digest}", path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{str(path)!r} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # typing resolves annotations through it
    try:
        with foreign(f"cannot import the tools in {str(path)!r}", ConfigurationError):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _from_config(config: object, path: Path) -> ToolSet:
    fields = _checked(config, {"tools": (list,), **_LIMITS}, f"the tool set {path.name!r}")
    entries = cast(list[object], fields.pop("tools", []))
    if not entries:
        raise ConfigurationError(f"the tool set {path.name!r} needs 'tools', a list, but has none")
    specs: list[ToolSpec] = []
    timeouts: dict[str, float] = {}
    for number, entry in enumerate(entries, start=1):
        given = {"use": entry} if isinstance(entry, str) else entry
        found, limits = _entry(given, path.parent, f"tool {number} of {path.name!r}")
        specs += found
        timeouts |= limits
    return ToolSet(specs=tuple(specs), timeouts=timeouts, **fields)


def _entry(
    entry: object, folder: Path, where: str
) -> tuple[tuple[ToolSpec, ...], dict[str, float]]:
    fields = _checked(entry, _ENTRY, where)
    match = _PYTHON.fullmatch(fields.get("use", ""))
    if match is None:
        raise ConfigurationError(
            f"{where}: 'use' must be FILE.py or FILE.py:NAME, got {fields.get('use')!r}"
        )
    used = _from_python(folder / expanded(match.group(1)), match.group(2))
    specs = used.specs
    renamed = {key: fields[key] for key in ("name", "description") if key in fields}
    if renamed:
        if len(specs) != 1:
            raise ConfigurationError(
                f"{where}: a name or a description applies to one tool, but {fields['use']!r} "
                f"provides {len(specs)}: write FILE.py:NAME"
            )
        specs = (replace(specs[0], **renamed),)
    if "timeout_s" in fields:
        return specs, {spec.name: float(fields["timeout_s"]) for spec in specs}
    old = {before.name: after.name for before, after in zip(used.specs, specs, strict=True)}
    return specs, {old[name]: limit for name, limit in used.timeouts.items()}


def _checked(value: object, allowed: Mapping[str, tuple[type, ...]], where: str) -> dict[str, Any]:
    """Check that a value is a mapping with allowed keys and types, and return it."""
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be a mapping, got {type(value).__name__}")
    fields = cast(dict[Any, Any], value)
    for key, given in fields.items():
        if key not in allowed:
            raise UnknownNameError.suggest(f"key of {where}:", str(key), allowed)
        kinds = allowed[key]
        if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigurationError(f"{where}: {key!r} must be {names}, got {given!r}")
    return dict(fields)
