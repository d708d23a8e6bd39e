"""Carry out one canonical action on a desktop."""

from collections.abc import Callable
from typing import Final

from envkit_actions.action import Action, ActionKind, Button
from envkit_desktop import keyboard, pointer
from envkit_desktop.desktop import Desktop

_CLICKS: Final = {
    ActionKind.CLICK: 1,
    ActionKind.DOUBLE_CLICK: 2,
    ActionKind.TRIPLE_CLICK: 3,
}
_LONGEST_WAIT: Final = 60.0
_REPEATS_A_SECOND: Final = 10
"""Repeat rate of a held key."""
_MAX_REPEATS: Final = 50


def perform(desk: Desktop, action: Action) -> str | None:
    """Carry out an action that does not end the episode; return why nothing happened, or None.

    Coordinates outside the screen count as its nearest pixel. The keys of a click, a drag or a
    scroll are held during it.
    """
    action = action.from_cursor(*desk.pointer)
    x, y = _place(desk, action)
    handler = _HANDLERS.get(action.kind)
    desk.held = frozenset(action.keys)
    note = None if handler is None else handler(desk, x, y, action)
    desk.held = frozenset()
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


def _click(desk: Desktop, x: int, y: int, action: Action) -> str | None:
    times = _CLICKS[action.kind]
    button = Button.LEFT if times > 1 else action.button
    return pointer.click(desk, x, y, button, times)


def _release(desk: Desktop, x: int, y: int, action: Action) -> None:
    pointer.move(desk, x, y)
    pointer.release(desk)


def _hold_keys(desk: Desktop, x: int, y: int, action: Action) -> str | None:
    note: str | None = None
    repeats = min(_MAX_REPEATS, round(min(action.seconds, _LONGEST_WAIT) * _REPEATS_A_SECOND))
    for _ in range(max(1, repeats)):
        note = keyboard.press_keys(desk, action.keys)
    return note


_HANDLERS: Final[dict[ActionKind, Callable[[Desktop, int, int, Action], str | None]]] = {
    **dict.fromkeys(_CLICKS, _click),
    ActionKind.MOVE: lambda desk, x, y, _: pointer.move(desk, x, y),
    ActionKind.MOUSE_DOWN: lambda desk, x, y, a: pointer.press(desk, x, y, a.button, 1),
    ActionKind.MOUSE_UP: _release,
    ActionKind.DRAG: _drag,
    ActionKind.SCROLL: lambda desk, x, y, a: pointer.scroll(desk, x, y, a.dx, a.dy),
    ActionKind.TYPE: lambda desk, x, y, a: keyboard.type_text(desk, a.text),
    ActionKind.KEY: lambda desk, x, y, a: keyboard.press_keys(desk, a.keys),
    ActionKind.HOLD_KEY: _hold_keys,
    ActionKind.WAIT: lambda desk, x, y, a: desk.advance(max(0.0, min(_LONGEST_WAIT, a.seconds))),
}
"""Handlers by kind. Kinds that only look or end the episode are handled by the environment."""
