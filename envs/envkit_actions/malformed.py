"""Errors for malformed replies and inexpressible actions."""

from envkit.errors import ConfigurationError


class MalformedActionError(ConfigurationError):
    """A text or value is not an action. The message is a sentence that a model can act on.

    Parsers catch it: in a reply it becomes one of `ParsedActions.problems`.
    """


class InexpressibleActionError(ConfigurationError):
    """A family cannot express an action."""


def quoted(value: object, limit: int = 40) -> str:
    """Return a short, printable form of any model output."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a number of hundreds of digits"  # repr of a huge integer is slow or refused
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[:limit] + "...")
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else repr(value)[:limit]
