"""Comparison of values with type hints, for settings and arguments that come as JSON data."""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Final, Literal, Union, cast, get_args, get_origin

_JSON: Final = (bool, int, float, str, list, dict, type(None))


def is_union(hint: Any) -> bool:  # noqa: ANN401  # any type hint
    """Return whether a hint is a union."""
    return get_origin(hint) in (Union, types.UnionType)


def is_decided(value: object, hint: Any) -> bool:  # noqa: ANN401  # any type hint
    """Return whether a value that does not fit is surely wrong.

    It is if it has a type of JSON data, or if the hint names a dataclass or a protocol. Another
    object may stand for one that the hint names, such as a path for a string.
    """
    if type(value) in (*_JSON, tuple):
        return True
    parts = get_args(hint) if is_union(hint) else (hint,)
    return any(is_dataclass(part) or getattr(part, "_is_runtime_protocol", False) for part in parts)


def fits(value: object, hint: Any) -> bool:  # noqa: ANN401  # any type hint
    """Return whether a value is what a hint says.

    A float may be an integer but is finite, a boolean is not a number, and a list may be a tuple.
    A hint with another meaning, such as a foreign class, fits everything.
    """
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if is_union(hint):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin in (list, tuple, Sequence):
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return False
        if not parts or (origin is tuple and parts[-1] is not ...):
            return True
        return all(fits(one, parts[0]) for one in cast("Sequence[object]", value))
    if origin in (dict, Mapping):
        rows = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else None
        if rows is None or not parts:
            return rows is not None
        return all(fits(key, parts[0]) and fits(one, parts[1]) for key, one in rows.items())
    if origin is Callable:
        return callable(value)
    return not isinstance(hint, type) or _is_a(value, hint)


def _is_a(value: object, hint: type) -> bool:
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return abs(value) < math.inf  # no conversion: an integer may be too large for a float
    is_ours = hint.__module__.partition(".")[0].startswith("envkit")
    is_checked = getattr(hint, "_is_runtime_protocol", False) or issubclass(hint, Enum)
    if hint in _JSON or is_ours or is_dataclass(hint) or is_checked:
        with suppress(TypeError):  # a TypedDict, or a protocol without a check
            return isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    return True


def named(hint: Any, names: Mapping[object, str]) -> str:  # noqa: ANN401  # any type hint
    """Return the words for what a hint takes.

    Args:
        hint: A hint that `fits` knows.
        names: Words for some classes; others have their own names.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if is_union(hint):
        return " or ".join(named(part, names) for part in parts)
    if origin is Literal:
        return f"one of {list(parts)}"
    if origin in (list, tuple, Sequence):
        return f"a list, each entry {named(parts[0], names)}"
    if origin in (dict, Mapping):
        return "a mapping of names to values"
    if origin is Callable:
        return "a function"
    if hint in names or not isinstance(hint, type):
        return names.get(hint, str(hint))
    if issubclass(hint, Enum):
        return f"one of {[entry.value for entry in hint]}"
    ending = "(...)" if is_dataclass(cast("type[object]", hint)) else ""
    return "None" if hint is type(None) else hint.__name__ + ending
