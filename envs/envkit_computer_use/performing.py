"""Carry out one canonical action on a desktop."""

from typing import Final

from envkit_computer_use import keyboard, pointer
from envkit_computer_use.actions.action import Action, ActionKind, Button
from envkit_computer_use.desktop import Desktop

_CLICKS: Final = {
    ActionKind.CLICK: 1,
    ActionKind.DOUBLE_CLICK: 2,
    ActionKind.TRIPLE_CLICK: 3,
}
_LONGEST_WAIT: Final = 60.0
_REPEATS_A_SECOND: Final = 10
"""How often a key that is held repeats."""
_MOST_REPEATS: Final = 50


def perform(desk: Desktop, action: Action) -> str | None:
    """Carry out an action that does not end the episode; return why nothing happened, or None.

    Coordinates outside the screen count as its nearest pixel.
    """
    x, y = _place(desk, action)
    note: str | None = None
    match action.kind:
        case ActionKind.CLICK | ActionKind.DOUBLE_CLICK | ActionKind.TRIPLE_CLICK:
            button = Button.LEFT if _CLICKS[action.kind] > 1 else action.button
            note = pointer.click(desk, x, y, button, _CLICKS[action.kind])
        case ActionKind.MOVE:
            pointer.move(desk, x, y)
        case ActionKind.MOUSE_DOWN:
            note = pointer.press(desk, x, y, action.button, 1)
        case ActionKind.MOUSE_UP:
            pointer.move(desk, x, y)
            pointer.release(desk)
        case ActionKind.DRAG:
            note = _drag(desk, x, y, action)
        case ActionKind.SCROLL:
            note = pointer.scroll(desk, x, y, action.dx, action.dy)
        case ActionKind.TYPE:
            note = keyboard.type_text(desk, action.text)
        case ActionKind.KEY:
            note = keyboard.press_keys(desk, action.keys)
        case ActionKind.HOLD_KEY:
            repeats = max(1, min(_MOST_REPEATS, round(action.seconds * _REPEATS_A_SECOND)))
            for _ in range(repeats):
                note = keyboard.press_keys(desk, action.keys)
        case ActionKind.WAIT:
            desk.advance(max(0.0, min(_LONGEST_WAIT, action.seconds)))
        case _:
            pass
    desk.end_action()
    return note


def _place(desk: Desktop, action: Action) -> tuple[int, int]:
    if action.x is None or action.y is None:
        return desk.pointer
    return _inside(desk, action.x, action.y)


def _inside(desk: Desktop, x: int, y: int) -> tuple[int, int]:
    return max(0, min(desk.width - 1, x)), max(0, min(desk.height - 1, y))


def _drag(desk: Desktop, x: int, y: int, action: Action) -> str | None:
    note = pointer.press(desk, x, y, action.button, 1)
    for point in action.path:
        pointer.move(desk, *_inside(desk, *point))
    pointer.release(desk)
    return note
