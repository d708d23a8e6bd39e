"""The part of the oracle that works in dialogs of settings and in Xfce's settings editor."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from envkit_actions.action import Action
from envkit_linux_desktop.tasks import configuring
from envkit_linux_desktop.tasks.configuring import Channel, Keyfile, channel_path
from envkit_linux_desktop.tasks.moves import Moves, View, await_window, key, text, wait
from envkit_linux_desktop.tasks.reader import read


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a dialog shows a property."""

    page: int
    """Pages to turn from the first."""
    tabs: int
    """Presses of Tab from the page's label."""
    step: int = 0
    """What one arrow key changes; 0 for a switch, -1 for a field."""


DIALOGS: Mapping[str, str] = {
    "keyboards": "Keyboard",
    "accessibility": "Accessibility",
    "xsettings": "Appearance",
}
"""Channel -> the title of its dialog."""
_PLACES: Mapping[str, Place] = {
    "/Default/RestoreNumlock": Place(page=0, tabs=1),
    "/Default/KeyRepeat/Delay": Place(page=0, tabs=3, step=1),
    "/Default/KeyRepeat/Rate": Place(page=0, tabs=4, step=1),
    "/StickyKeys/LatchToLock": Place(page=1, tabs=2),
    "/StickyKeys/TwoKeysDisable": Place(page=1, tabs=3),
    "/SlowKeys/Delay": Place(page=1, tabs=5, step=10),
    "/BounceKeys": Place(page=1, tabs=6),
    "/MouseKeys": Place(page=2, tabs=1),
    "/Xft/DPI": Place(page=2, tabs=7, step=-1),
    "/Gtk/ButtonImages": Place(page=3, tabs=1),
    "/Gtk/MenuImages": Place(page=3, tabs=2),
    "/Gtk/CanChangeAccels": Place(page=3, tabs=3),
    "/Gtk/DialogsUseHeader": Place(page=3, tabs=4),
    "/Net/EnableEventSounds": Place(page=3, tabs=5),
}


def change_settings(check: Channel, files: Mapping[str, bytes]) -> Moves:
    """Yield the input in a channel's dialog that changes its properties."""
    before = read("xfconf", files[channel_path(check.name)])["model"]["properties"]
    page = 0
    changes = [
        (_PLACES[path], before[path][1], value)
        for path, (_, value) in check.values.items()
        if before[path][1] != value
    ]
    for place, old, new in sorted(changes, key=lambda change: change[0].page):
        while page < place.page:
            yield key("ctrl", "pagedown")
            page += 1
        yield wait(0.3)
        for _ in range(place.tabs):
            yield key("tab")
        yield from _set(place, old, new)
        for _ in range(place.tabs):
            yield key("shift", "tab")
    yield wait()


def _set(place: Place, old: str, new: str) -> Moves:
    if place.step == 0:
        yield key("space")
    elif place.step < 0:
        yield key("ctrl", "a")
        yield text(f"{new}\n")
    else:
        steps = (int(new) - int(old)) // place.step
        for _ in range(abs(steps)):
            yield key("right" if steps > 0 else "left")


EDITOR: Final = "Settings Editor"
"""Its title."""


def edit_channel(check: Channel, files: Mapping[str, bytes], view: View) -> Moves:
    """Yield the input that resets, changes and adds properties of the first channel."""
    before: configuring.Values = read("xfconf", files[channel_path(check.name)])["model"][
        "properties"
    ]
    rows = _rows(before)
    yield wait(1.0)
    yield key("home")  # in the list of channels
    yield key("tab")
    yield key("tab")
    yield wait(0.3)
    for path in sorted(before, key=rows.index, reverse=True):  # rows above one stay in place
        if path in check.absent:
            yield from _select(rows.index(path))
            yield from _reset(view)
        elif path in check.values and before[path][1] != check.values[path][1]:
            yield from _select(rows.index(path))
            yield key("enter")
            yield from await_window("Edit Property", view)
            yield from _enter(*check.values[path])
            yield from _save(view)
    for path, (kind, value) in check.values.items():
        if path not in before:
            yield key("alt", "a")
            yield from await_window("New Property", view)
            yield key("ctrl", "a")
            yield text(path)
            yield key("tab")
            yield key("down")  # the first type is a text, and its field gets the focus
            yield wait(0.3)
            yield from _enter(kind, value)
            yield from _save(view)


def _rows(paths: Iterable[str]) -> list[str]:
    """Return the rows of the tree, each group above its properties."""
    parts = [tuple(path.split("/")) for path in paths]
    rows = {part[:count] for part in parts for count in range(2, len(part) + 1)}
    return ["/".join(row) for row in sorted(rows)]


def _select(row: int) -> Moves:
    yield key("home")
    for _ in range(row):
        yield key("down")


def _reset(view: View) -> Moves:
    yield key("alt", "r")
    yield from await_window("", view)  # the question has no title
    yield key("tab")
    yield key("space")
    yield from await_window(EDITOR, view)


def _enter(kind: str, value: str) -> Moves:
    if kind == "bool":
        yield key("space")
    else:
        yield key("ctrl", "a")
        yield text(value)


def _save(view: View) -> Moves:
    """Go over "Cancel" to "Save" and press it."""
    yield key("tab")
    yield key("tab")
    yield key("space")
    yield from await_window(EDITOR, view)


_TAB: Final = key("tab")
_BACK: Final = key("shift", "tab")
_SPACE: Final = key("space")
_EDITING: Final = (key("ctrl", "pagedown"), wait(0.3))
"""Turn to Mousepad's second page."""
_SHOWING: Final = (key("down"), wait(0.3))
"""Turn to PCManFM's second page."""
_WAYS: Final[Mapping[str, tuple[Action, ...]]] = {
    "show-line-numbers": (_TAB, _SPACE),
    "show-right-margin": (*[_TAB] * 4, _SPACE),
    "highlight-current-line": (*[_BACK] * 5, _SPACE),
    "match-braces": (*[_BACK] * 4, _SPACE),
    "word-wrap": (*[_BACK] * 3, _SPACE),
    "tab-width": (*_EDITING, _TAB),
    "auto-indent": (*_EDITING, *[_TAB] * 3, _SPACE),
    "single_click": (key("alt", "o"),),
    "confirm_del": (key("alt", "n"),),
    "thumbnail_max": (*_SHOWING, key("alt", "n")),
    "si_unit": (*_SHOWING, key("alt", "e")),
    "backup_as_hidden": (*_SHOWING, key("alt", "h")),
    "show_full_names": (*_SHOWING, key("alt", "w")),
}
"""Preference -> input in a newly opened dialog that turns it on or off, or goes to its field."""
_NUMBERS: Final = ("tab-width", "thumbnail_max")


def is_of_files(check: Keyfile) -> bool:
    """Return whether the file manager has the preferences, and not the text editor."""
    return check.path.endswith("libfm.conf")


def change_preferences(check: Keyfile, files: Mapping[str, bytes], view: View) -> Moves:
    """Yield the input that changes preferences, in a new dialog for each."""
    before = configuring.read_keyfile(files[check.path].decode())
    title = "Preferences" if is_of_files(check) else "Mousepad Preferences"
    for section, values in check.sections.items():
        for name, value in values.items():
            if before[section, name] != value:
                yield key("alt", "e")
                yield wait()
                yield key("up")  # the last item of the menu "Edit"
                yield key("enter")
                yield from await_window(title, view)
                yield from _WAYS[name]
                if name in _NUMBERS:
                    yield key("ctrl", "a")
                    yield text(value)
                    yield _TAB
                yield wait()
                yield key("escape")
                yield wait()
