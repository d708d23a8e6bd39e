"""Checks of the values that a caller chooses, for constructors and settings."""

from collections.abc import Collection, Iterable
from typing import TypeVar

from envkit.errors import ConfigurationError, UnknownNameError

Choice = TypeVar("Choice")


def one_of(name: str, value: Choice, choices: Collection[Choice]) -> Choice:
    """Return a value that is one of the choices.

    Args:
        name: What the caller chooses, for the error.
        value: A string of the same value is as good as a member of a `StrEnum`.
        choices: What is allowed, in the order to show.

    Raises:
        ConfigurationError: The value is none of them.
    """
    if value not in list(choices):  # a list, because the value may not be hashable
        known = ", ".join(repr(getattr(choice, "value", choice)) for choice in choices)
        raise ConfigurationError(f"{name} must be one of {known}, got {value!r}")
    return value


def some_of(kind: str, names: Iterable[str] | None, known: Collection[str]) -> list[str]:
    """Return the chosen names in order, each once; None chooses all that are known.

    Args:
        kind: What has the names, for the error.
        names: The choice.
        known: What is allowed.

    Raises:
        UnknownNameError: There is no such name.
        ConfigurationError: No name is chosen.
    """
    chosen = sorted(known if names is None else set(names))
    for name in chosen:
        if name not in known:
            raise UnknownNameError.suggest(kind, name, known)
    if not chosen:
        raise ConfigurationError(f"at least one {kind} must be named, got none")
    return chosen


def at_least(least: float, **values: float | None) -> None:
    """Check that no value is below a limit.

    Args:
        least: The smallest allowed value.
        values: Values by the names for the error; None means no limit and is allowed.

    Raises:
        ConfigurationError: A value is below the limit or not a number.
    """
    for name, value in values.items():
        if value is not None and not value >= least:  # not `<`: NaN is no limit
            raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")


def positive(**values: float | None) -> None:
    """Check that every value is above zero; None means no limit and is allowed.

    Raises:
        ConfigurationError: A value is zero, negative or not a number.
    """
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ConfigurationError(f"{name} must be positive, got {value!r}")


def within(least: float, most: float, **values: float | None) -> None:
    """Check that every value is in a range, both ends included; None is allowed.

    Raises:
        ConfigurationError: A value is outside the range or not a number.
    """
    for name, value in values.items():
        if value is not None and not least <= value <= most:
            raise ConfigurationError(f"{name} must be {least} to {most}, got {value!r}")
