"""The keyboard: typed text, keys for the focused widget, and keys of windows."""

from collections.abc import Iterator, Sequence
from typing import Final

from envkit_desktop.desktop import Desktop
from envkit_desktop.widgets import Button, Widget, Window
from envkit_desktop.widgets.widget import Chord

_MODIFIERS: Final = frozenset({"ctrl", "shift", "alt", "meta"})
_CONTEXT: Final[Chord] = (frozenset({"shift"}), "f10")
"""Opens the menu of the widget with the focus, as a right click does."""


def type_text(desk: Desktop, text: str) -> str | None:
    """Type text; return why it had no effect, or None.

    A line feed is Enter and a tab is Tab.
    """
    was_taken, run = True, ""
    for character in text.replace("\r\n", "\n"):
        if character not in "\n\t":
            run += character
            continue
        was_taken = _write(desk, run) and was_taken
        run = ""
        press_keys(desk, ("enter" if character == "\n" else "tab",))
    was_taken = _write(desk, run) and was_taken
    return None if was_taken else "no text field has the focus"


def _write(desk: Desktop, text: str) -> bool:
    if not text:
        return True
    desk.menus.clear()
    return desk.focus is not None and desk.focus.enabled and desk.focus.write(desk, text)


def press_keys(desk: Desktop, keys: Sequence[str]) -> str | None:
    """Press keys together; return why nothing happened, or None."""
    modifiers = frozenset(key for key in keys if key in _MODIFIERS)
    was_taken = False
    for key in keys:
        if key not in _MODIFIERS:
            was_taken = _press(desk, (modifiers, key)) or was_taken
    return None if was_taken else "the keys had no effect"


def _press(desk: Desktop, chord: Chord) -> bool:
    if desk.menus:
        return _press_in_menu(desk, chord[1])
    if chord[1] == "tab" and chord[0] <= {"shift"}:
        return _move_focus(desk, -1 if chord[0] else 1)
    focus = desk.focus
    if focus is not None and focus.context and chord == _CONTEXT:
        desk.open_menu(focus, focus.context, focus.width // 2, focus.height // 2, 0)
        return True
    if focus is not None and focus.enabled:
        if focus.key(desk, chord):
            return True
        character = _character(chord)
        if character and focus.write(desk, character):
            return True
    return _press_in_window(desk, desk.top, chord)


def _press_in_menu(desk: Desktop, key: str) -> bool:
    menu = desk.menus[-1]
    if key in ("up", "down"):
        step = 1 if key == "down" else -1
        menu.highlighted = max(0, min(len(menu.items) - 1, menu.highlighted + step))
    elif key == "enter" and menu.highlighted >= 0:
        desk.choose(menu, menu.highlighted)
    elif key == "left" and len(desk.menus) > 1:
        desk.menus.pop()
    elif key == "right" and menu.highlighted >= 0 and menu.items[menu.highlighted][2]:
        desk.choose(menu, menu.highlighted)
    else:
        desk.menus.clear()
    return True


def _press_in_window(desk: Desktop, window: Window, chord: Chord) -> bool:
    modifiers, key = chord
    if (
        modifiers == frozenset({"alt"})
        and key == "f4"
        and window.is_closable
        and not window.is_pinned
    ):
        desk.emit(window, "closing")
        return True
    if not modifiers and key in ("enter", "escape"):
        for widget in _shown(window):
            if isinstance(widget, Button) and widget.enabled and _answers(widget, key):
                desk.emit(widget, "clicked")
                return True
        return False
    if modifiers & {"ctrl", "alt"} or len(key) > 1:
        desk.emit(window, "shortcut", "+".join([*sorted(modifiers), key]))
    return False


def _answers(button: Button, key: str) -> bool:
    return button.is_default if key == "enter" else button.is_cancel


def _move_focus(desk: Desktop, step: int) -> bool:
    targets = [item for item in _shown(desk.top) if item.takes_focus and item.enabled]
    if not targets:
        return False
    at = next((index for index, item in enumerate(targets) if item is desk.focus), None)
    start = (-1 if step > 0 else 0) if at is None else at
    desk.set_focus(targets[(start + step) % len(targets)])
    return True


def _shown(widget: Widget) -> Iterator[Widget]:
    if widget.visible:
        yield widget
        for child in widget.children:
            yield from _shown(child)


def _character(chord: Chord) -> str:
    modifiers, key = chord
    if not modifiers <= {"shift"}:
        return ""
    key = " " if key == "space" else key
    if len(key) != 1:
        return ""
    return key.upper() if modifiers else key
