"""The JSON schema of a Python function, from its type hints and its Google docstring.

The conventions follow transformers 5 (`get_json_schema` in utils/chat_template_utils.py), because
models are prompted with schemas of that form; a test compares the two. Unlike there, the schema of
the return value is left out, and errors say what to write.
"""

import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache, wraps
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from envkit.errors import ConfigurationError, EnvkitError
from envkit.hints import fits, is_decided, is_union, named

_PLAIN: Final[dict[Any, str]] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
Init = TypeVar("Init", bound=Callable[..., None])

_SECTION: Final = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)(?: \([^)]*\))?:\s*(.*)")
_CHOICES: Final = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Return a function's description and the JSON schema of its arguments.

    Raises:
        ConfigurationError: A hint or a description is missing, or a type has no JSON form.
    """
    name = getattr(function, "__name__", repr(function))
    summary, described = _read_docstring(inspect.getdoc(function) or "")
    if not summary:
        stripped = " Python runs with -OO (or PYTHONOPTIMIZE=2), which removes all docstrings"
        cause = stripped if sys.flags.optimize > 1 else ""
        raise ConfigurationError(f"tool {name!r} needs a docstring: the model reads it.{cause}")
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"tool {name!r}: cannot read its type hints: {error}") from error
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in _parameters(function, name):
        place = f"tool {name!r}, argument {parameter.name!r}"
        if parameter.name not in hints:
            raise ConfigurationError(f"{place} needs a type hint")
        if parameter.name not in described:
            raise ConfigurationError(f"{place} needs a line in the docstring's Args section")
        schema = _schema_of(hints[parameter.name], place)
        properties[parameter.name] = _with_description(schema, described[parameter.name], place)
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    schema = {"type": "object", "properties": properties}
    return summary, ({**schema, "required": required} if required else schema)


def known_arguments(maker: Any) -> set[str]:  # noqa: ANN401  # a class or a function
    """Return the argument names of a function, or of a class and its base classes."""
    kinds = maker.__mro__ if isinstance(maker, type) else (maker,)
    return {
        name
        for kind in kinds
        for name, parameter in inspect.signature(
            kind.__init__ if isinstance(kind, type) else kind
        ).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name != "self"
    }


def takes(maker: Any, names: Iterable[str]) -> bool:  # noqa: ANN401  # as above
    """Return whether a class or function can be called with these arguments by name."""
    given = dict.fromkeys(names)
    try:
        inspect.signature(maker).bind(**given)
    except TypeError:
        return False
    return given.keys() <= known_arguments(maker)


def wrong_types(maker: Any, given: Mapping[str, Any], *, is_strict: bool = False) -> str:  # noqa: ANN401  # as above
    """Describe the arguments whose value contradicts their type hint; empty if none does.

    Args:
        maker: A class or a function.
        given: Its arguments by name.
        is_strict: Also name what only may be wrong, such as a path for a string.
    """
    hints = _hints(maker)
    found: list[str] = []
    for name in given.keys() & hints.keys():
        value, hint = given[name], hints[name]
        if (is_strict or is_decided(value, hint)) and not fits(value, hint):
            rule = named(hint, {float: "a finite number"})
            found.append(f"{name} must be {rule}, got {value!r:.80}")
    return "; ".join(sorted(found))


def checked_arguments(init: Init) -> Init:
    """Wrap the constructor of an environment, so that `wrong_types` of its arguments are errors.

    NumPy's scalars become Python's, which records can store.
    """

    @wraps(init)
    def checked(self: object, *args: Any, **arguments: Any) -> None:  # noqa: ANN401  # any class
        given: dict[str, Any] = {name: _plain(value) for name, value in arguments.items()}
        wrong, cause = wrong_types(init, given), None
        if not wrong:
            try:
                return init(self, *args, **given)
            except EnvkitError:
                raise
            except Exception as error:
                wrong, cause = wrong_types(init, given, is_strict=True), error
                if not wrong:
                    raise
        raise ConfigurationError(f"{type(self).__name__}: {wrong}") from cause

    return cast("Init", checked)


def _plain(value: Any) -> Any:  # noqa: ANN401  # any argument
    return cast("Any", value).item() if isinstance(value, np.generic) else value


@cache
def _hints(maker: Any) -> dict[str, Any]:  # noqa: ANN401  # as above
    """Return the hints of a function's arguments, or of those of a class and its base classes.

    A hint that its own default contradicts, such as `str = None`, says nothing.
    """
    hints: dict[str, Any] = {}
    for kind in reversed(maker.__mro__) if isinstance(maker, type) else (maker,):
        function = kind.__init__ if isinstance(kind, type) else kind
        with suppress(NameError, TypeError, AttributeError):  # a name that only checkers import
            hints |= get_type_hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.default is not parameter.empty and name in hints:
                hints |= {} if fits(parameter.default, hints[name]) else {name: Any}
    return hints


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    unnamed = (
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
        inspect.Parameter.POSITIONAL_ONLY,
    )
    for parameter in parameters:
        if parameter.kind in unnamed:
            raise ConfigurationError(
                f"tool {name!r}: a model passes arguments by name, so {str(parameter)!r} must be "
                "an ordinary named argument"
            )
    return parameters


def _schema_of(hint: Any, place: str) -> dict[str, Any]:  # noqa: ANN401  # any type hint
    origin: Any = get_origin(hint)
    arguments: tuple[Any, ...] = get_args(hint)
    if hint is Any:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enumeration([member.value for member in hint], place)
    if origin is Literal:
        return _enumeration(list(arguments), place)
    if is_union(hint):
        return _union(arguments, place)
    if origin in (list, Sequence):
        return {"type": "array", "items": _schema_of(arguments[0], place)}
    if origin is tuple and len(arguments) > 1 and ... not in arguments:
        return {"type": "array", "prefixItems": [_schema_of(entry, place) for entry in arguments]}
    if origin is dict and len(arguments) == 2:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], place)}
    raise ConfigurationError(
        f"{place}: {hint!r} has no JSON form. Use int, float, str, bool, list, dict, tuple, "
        "Literal, Enum or a union of them, or write the schema by hand for ToolSpec.from_json"
    )


def _enumeration(values: list[Any], place: str) -> dict[str, Any]:
    names: list[str] = []
    for value in values:
        if type(value) not in (int, float, str, bool, type(None)):
            raise ConfigurationError(f"{place}: an enum value must be a JSON scalar, got {value!r}")
        if (name := _PLAIN[type(value)]) not in names:
            names.append(name)
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _union(arguments: tuple[Any, ...], place: str) -> dict[str, Any]:
    options = [_schema_of(entry, place) for entry in arguments if entry is not type(None)]
    schema: dict[str, Any]
    if len(options) == 1:
        schema = options[0]
    elif all(option.keys() == {"type"} for option in options):
        names = sorted({cast(str, option["type"]) for option in options})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": options}
    return {**schema, "nullable": True} if type(None) in arguments else schema


def _with_description(schema: dict[str, Any], text: str, place: str) -> dict[str, Any]:
    if choices := _CHOICES.search(text):
        try:
            schema = {**schema, "enum": json.loads(choices.group(1))}
        except ValueError as error:
            raise ConfigurationError(
                f"{place}: '(choices: ...)' must hold a JSON list, got {choices.group(1)!r}"
            ) from error
        text = text[: choices.start()].strip()
    return {**schema, "description": text}


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the entries of `Args:`."""
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if _SECTION.fullmatch(line)]
    summary = "\n".join(lines[: starts[0]] if starts else lines).strip()
    entries: dict[str, str] = {}
    for start, end in itertools.pairwise([*starts, len(lines)]):
        if lines[start].startswith("Arg"):
            entries.update(_read_entries(lines[start + 1 : end]))
    return summary, entries


def _read_entries(lines: list[str]) -> dict[str, str]:
    entries: dict[str, list[str]] = {}
    current: list[str] = []
    indent: int | None = None
    for line in filter(str.strip, lines):
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        match = _ENTRY.fullmatch(line.strip()) if depth <= indent else None
        if match:
            current = entries.setdefault(match.group(1), [])
            current.append(match.group(2))
        else:
            current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in entries.items()}
