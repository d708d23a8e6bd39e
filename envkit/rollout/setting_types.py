"""Checks the types of settings, whether they come from Python, a file, or a trainer's mapping.

The annotations of the settings' dataclasses are the only declaration of each type.
"""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from envkit.errors import ConfigurationError

_NAMES: dict[object, str] = {
    int: "an integer",
    float: "a finite number",
    str: "a string",
    type(None): "null",
}


def check_types(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Check that values have the types of their fields.

    A float field accepts an integer, and a tuple field a list. A boolean is not a number.

    Args:
        cls: A dataclass that has all the fields.
        values: Values by field name.
        where: Name of the settings, for the message.

    Raises:
        ConfigurationError: A value has the wrong type.
    """
    hints = _hints(cls)
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ConfigurationError(
                f"{where}: {name} must be {_name(hints[name])}, got {value!r:.80}"
            )


def check_fields(settings: Any, where: str) -> None:  # noqa: ANN401  # any dataclass
    """Check that all settings have the types of their fields; see `check_types`.

    An Enum field also accepts the value of a member, which is replaced by the member.

    Args:
        settings: An instance of a dataclass, from its `__post_init__`.
        where: Name of the settings, for the message.

    Raises:
        ConfigurationError: A value has the wrong type.
    """
    cls = cast("type[Any]", type(settings))
    for name, hint in _hints(cls).items():
        if isinstance(hint, type) and issubclass(hint, Enum):
            value = getattr(settings, name)
            member = next((member for member in hint if member.value == value), value)
            object.__setattr__(settings, name, member)  # the dataclasses are frozen
    values = {entry.name: getattr(settings, entry.name) for entry in fields(settings)}
    check_types(cls, values, where)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401  # an annotation
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return False
        return all(_fits(entry, parts[0]) for entry in cast("Sequence[object]", value))
    if origin is not None and issubclass(origin, Mapping):
        keys = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else None
        return keys is not None and all(isinstance(key, str) for key in keys)
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return abs(value) < math.inf  # no conversion: an integer may be too large for a float
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


def _name(hint: Any) -> str:  # noqa: ANN401  # an annotation
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_name(part) for part in parts)
    if origin is Literal:
        return f"one of {list(parts)}"
    if origin is tuple:
        return f"a list, each entry {_name(parts[0])}"
    if origin is not None:
        return "a mapping of names to values"
    if is_dataclass(hint):
        return f"{cast('type', hint).__name__}(...), or a mapping for RolloutConfig.from_mapping"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {[entry.value for entry in hint]}"
    return _NAMES.get(cast("object", hint), str(cast("object", hint)))
