"""Input that oracles are made of."""

from collections.abc import Iterator
from typing import Final

from envkit_actions.action import Action, ActionKind

Moves = Iterator[Action]
DIALOG: Final = 0.6
"""Seconds until a dialog takes keys, or a file is written."""


def key(*names: str) -> Action:
    """Press a chord."""
    return Action(kind=ActionKind.KEY, keys=names)


def text(value: str) -> Action:
    """Type text."""
    return Action(kind=ActionKind.TYPE, text=value)


def wait(seconds: float = DIALOG) -> Action:
    """Wait."""
    return Action(kind=ActionKind.WAIT, seconds=seconds)


def name_file(path: str) -> Moves:
    """Enter a path in GTK's file dialog, whose completion swallows an Enter that comes at once."""
    yield wait()
    yield key("ctrl", "a")
    yield text(f"~/{path}")
    yield wait()
    yield key("enter")
    yield wait()
