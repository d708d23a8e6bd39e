"""The part of the oracle that changes preferences of Mousepad and PCManFM in their dialogs."""

from collections.abc import Mapping
from typing import Final

from envkit_actions.action import Action
from envkit_linux_desktop.tasks.configuring import Keyfile, read_keyfile
from envkit_linux_desktop.tasks.moves import Moves, View, await_window, key, text, wait

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
    before = read_keyfile(files[check.path].decode())
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
