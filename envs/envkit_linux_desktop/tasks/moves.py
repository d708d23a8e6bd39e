"""Input that oracles are made of."""

from collections.abc import Iterator
from typing import Final, Protocol

from PIL import Image as PilImage

from envkit_actions.action import Action, ActionKind

OFFICE_SAVED: Final = 1.5
"""Seconds until LibreOffice has written a file."""
_LOOKS: Final = 10
"""Maximum checks of the screen for a change."""
_LOOK: Final = 0.3
"""Seconds until the next check."""
_PRESSES: Final = 3
"""Maximum presses of a chord without effect."""
Moves = Iterator[Action]
DIALOG: Final = 0.6
"""Seconds until a dialog takes keys, or a file is written."""


class View(Protocol):
    """What an oracle may know about the screen."""

    def titles(self) -> tuple[str, ...]:
        """Return the titles of the windows, the active one last."""
        ...

    def shot(self) -> PilImage.Image:
        """Return a copy of the screen."""
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
    yield key("ctrl", "a")
    yield text(f"~/{path}")
    yield wait()
    yield key("enter")
    yield wait()


def press(view: View, *names: str) -> Moves:
    """Press a chord and wait until the screen changes."""
    yield wait(_LOOK)  # all before has been carried out
    before = view.shot()
    for _ in range(_PRESSES):
        yield key(*names)
        for _ in range(_LOOKS):
            yield wait(_LOOK)
            if view.shot() != before:
                return


def await_window(title: str, view: View, *names: str) -> Moves:
    """Wait until the top window's title begins like this; "" is a window without a title.

    Args:
        title: The beginning.
        view: Shows the titles.
        names: A chord that opens the window, pressed again if it does not; none waits only.

    Raises:
        NoOracleError: None opens.
    """
    for _ in range(_PRESSES):
        if names:
            yield key(*names)
        for _ in range(_LOOKS):
            yield wait()
            for top in view.titles()[-1:]:
                if top.startswith(title) and bool(top) == bool(title):
                    yield wait(_LOOK)  # it takes keys later than it has its title
                    return
    raise NoOracleError(f"no window {title!r} opens")


def enter_office(view: View) -> Moves:
    """Wait until LibreOffice takes keys: a dialog opens by keys and closes again."""
    yield wait()
    name = view.titles()[-1]
    yield from await_window("Find", view, "ctrl", "h")
    yield from await_window(name, view, "escape")


def choose(letter: str, place: int, view: View) -> Moves:
    """Choose the item with this number, from 0 on, in a menu of LibreOffice."""
    yield from press(view, "alt", letter)
    yield key("home")
    for _ in range(place):
        yield key("down")
    yield key("enter")


def save_office(view: View) -> Moves:
    """Save in the format that the file has."""
    yield from press(view, "ctrl", "s")  # which also turns off the sign of changes
    yield wait(OFFICE_SAVED)
    yield key("enter")  # keep the format
    yield wait(OFFICE_SAVED)
