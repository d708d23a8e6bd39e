"""The part of the oracle that changes Xfce's settings in their dialogs."""

from collections.abc import Mapping
from dataclasses import dataclass

from envkit_linux_desktop.tasks.configuring import Channel, channel_path
from envkit_linux_desktop.tasks.moves import Moves, key, text, wait
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
