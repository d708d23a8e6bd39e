"""The rules of a game, from the documentation of the inner environment's class."""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

import gymnasium

_LEFT_OUT: Final = frozenset(
    {
        "action space",  # in the description of the action
        "arguments",
        "credits",
        "information",
        "integration timestep",
        "observation space",
        "references",
        "vectorized environment",
        "version history",
    }
)
"""Lowercase titles of sections that do not help to play."""
_HEADING: Final = re.compile(r"^[ \t]*##+[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_CODE: Final = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$\n?", re.MULTILINE | re.DOTALL)
_HTML: Final = re.compile(r"<[^<>\n]{1,200}>")
_LINK: Final = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\n]*\)")
_LONGEST: Final = 6000


def rules_of(inner: gymnasium.Env[Any, Any], settings: Mapping[str, object]) -> str:
    """Return the class docstring without code and API sections, and the settings of this game.

    The docstring describes the defaults, which the settings change: a lake that is not slippery.
    Empty if the class has no docstring.
    """
    text = inspect.cleandoc(type(inner.unwrapped).__doc__ or "")
    if not text or type(inner.unwrapped).__doc__ == gymnasium.Env.__doc__:
        return ""
    text = _CODE.sub("", text)
    headings = list(_HEADING.finditer(text))
    starts = [*(heading.start() for heading in headings), len(text)]
    kept = [text[: starts[0]]]
    for heading, end in zip(headings, starts[1:], strict=True):
        if heading.group(1).casefold() not in _LEFT_OUT:
            kept.append(text[heading.start() : end])
    plain = _HTML.sub("", _LINK.sub(r"\1", "".join(kept)))
    text = re.sub(r"\n{3,}", "\n\n", plain).strip()[:_LONGEST]
    said = ", ".join(
        f"{name} = {value!r}"
        for name, value in settings.items()
        if isinstance(value, bool | int | float | str) and name != "render_mode"
    )
    return f"{text}\n\nSettings of this game: {said}." if said else text
