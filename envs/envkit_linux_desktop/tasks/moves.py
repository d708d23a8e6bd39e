"""Input that oracles are made of."""

from collections.abc import Iterator
from typing import Final, Protocol

from envkit_actions.action import Action, ActionKind

OFFICE_SAVED: Final = 1.5
"""Seconds until LibreOffice has written a file."""
_LOOKS: Final = 20
"""Most looks at the windows until one has opened."""
Moves = Iterator[Action]
DIALOG: Final = 0.6
"""Seconds until a dialog takes keys, or a file is written."""


class View(Protocol):
    """What an oracle may know about the screen."""

    def titles(self) -> tuple[str, ...]:
        """Return the titles of the windows, the active one last."""
        ...


class NoOracleError(Exception):
    """The scenario has a check that no plan satisfies, or windows are not as a plan expects."""


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


def await_window(title: str, view: View) -> Moves:
    """Wait until a window whose title begins like this is on top; "" is one without a title.

    Raises:
        NoOracleError: None opens.
    """
    for _ in range(_LOOKS):
        yield wait()
        for top in view.titles()[-1:]:
            if top.startswith(title) and bool(top) == bool(title):
                return
    raise NoOracleError(f"no window {title!r} opens")


def choose(letter: str, place: int) -> Moves:
    """Choose the item with this number, from 0 on, in a menu of LibreOffice."""
    yield wait(1.0)  # LibreOffice takes keys later than it draws
    yield key("alt", letter)
    yield wait(1.0)
    yield key("home")
    for _ in range(place):
        yield key("down")
    yield key("enter")


def save_office() -> Moves:
    """Save in the format that the file has."""
    yield wait(1.0)
    yield key("ctrl", "s")
    yield wait(OFFICE_SAVED)
    yield key("enter")  # keep the format
    yield wait(OFFICE_SAVED)
