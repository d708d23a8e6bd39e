"""Checks keys and types of settings, whether from Python, a file, or a trainer's mapping.

The annotations of the settings' dataclasses are the only declaration of each type.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

from envkit.errors import ConfigurationError, did_you_mean
from envkit.hints import fits, named

_NAMES: dict[object, str] = {
    int: "an integer",
    float: "a finite number",
    str: "a string",
    type(None): "null",
}
T = TypeVar("T")


def section(value: object, name: str) -> Mapping[str, Any]:
    """Return a value that must be a mapping.

    Args:
        value: What a file or a caller gives.
        name: Name of the settings, for the message.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{name!r} must be a mapping of names to values, got {type(value).__name__}"
        )
    return cast("Mapping[str, Any]", value)


def built(cls: type[T], value: object, where: str, *, prefix: str = "") -> T:
    """Return the settings of a mapping, whose sections are mappings themselves.

    Args:
        cls: A dataclass that checks its own values. A field that is a dataclass is a section.
        value: Values by field name.
        where: Name of the settings, for the message.
        prefix: Precedes the names of the sections, for the message.

    Raises:
        ConfigurationError: A section is not a mapping, a key is unknown, or a value is invalid.
    """
    data = dict(section(value, where))
    check_keys(cls, data, where)
    for name, hint in _hints(cls).items():
        if name in data and is_dataclass(hint):
            place = prefix + name
            data[name] = built(cast("type[Any]", hint), data[name], place, prefix=f"{place}.")
    return cls(**data)


def check_keys(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Check that all keys are fields; the error suggests the nearest one.

    Args:
        cls: A dataclass that has all the fields.
        values: Values by field name.
        where: Name of the settings, for the message.

    Raises:
        ConfigurationError: A key is unknown.
    """
    known = [entry.name for entry in fields(cls)]
    for key in values:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigurationError(f"{where} has no key {key!r}.{hint} Known: {known}")


def check_types(cls: type, values: Mapping[str, Any], where: str) -> None:
    """Check that values have the types of their fields.

    What fits is as in `envkit.hints`.

    Args:
        cls: A dataclass that has all the fields.
        values: Values by field name.
        where: Name of the settings, for the message.

    Raises:
        ConfigurationError: A value has the wrong type.
    """
    hints = _hints(cls)
    for name, value in values.items():
        if not fits(value, hints[name]):
            rule = named(hints[name], _NAMES)
            if is_dataclass(hints[name]):
                rule += ", or a mapping for RolloutConfig.from_mapping"
            raise ConfigurationError(f"{where}: {name} must be {rule}, got {value!r:.80}")


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
