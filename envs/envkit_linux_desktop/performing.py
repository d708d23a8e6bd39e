"""Execute one canonical action on a session."""

import time
from collections.abc import Callable
from typing import Any, Final

from envkit_actions.action import Action, ActionKind, Button
from envkit_linux_desktop.display import Display
from envkit_linux_desktop.keyboard import Keyboard, UntypableError

LONGEST_WAIT: Final = 30.0
"""Maximum seconds of one wait or one held key."""
_TYPE_SECONDS: Final = 15.0
"""Seconds after which the rest of a text is dropped."""
_BUTTONS: Final = {Button.LEFT: 1, Button.MIDDLE: 2, Button.RIGHT: 3}
_CLICKS: Final = {
    ActionKind.CLICK: 1,
    ActionKind.DOUBLE_CLICK: 2,
    ActionKind.TRIPLE_CLICK: 3,
}
_IDLE_SECONDS: Final = 5.0
"""Maximum seconds until applications are idle; one that plays an animation never is."""
_USES_KEYS: Final = (ActionKind.TYPE, ActionKind.KEY, ActionKind.HOLD_KEY)
_WHEEL_PIXELS: Final = 120
_MAX_NOTCHES: Final = 50
_DRAG_STEPS: Final = 8
_DRAG_SECONDS: Final = 0.008


class Performer:
    """Moves the pointer and presses keys on one display."""

    def __init__(self, display: Display) -> None:
        """Read the keyboard's layout.

        Raises:
            EnvFault: The display is gone.
        """
        self._display = display
        with display.faults():
            self._keyboard = Keyboard(display.x, rest=self._rest)
        self._handlers: dict[ActionKind, Callable[[Action], str | None]] = {
            **dict.fromkeys(_CLICKS, self._click),
            ActionKind.MOVE: self._move,
            ActionKind.MOUSE_DOWN: lambda action: self._press(action, is_down=True),
            ActionKind.MOUSE_UP: lambda action: self._press(action, is_down=False),
            ActionKind.DRAG: self._drag,
            ActionKind.SCROLL: self._scroll,
            ActionKind.TYPE: lambda action: self._keyboard.type(action.text, _TYPE_SECONDS),
            ActionKind.KEY: self._chord,
            ActionKind.HOLD_KEY: self._hold,
            ActionKind.WAIT: lambda action: _sleep(action.seconds),
        }

    def perform(self, action: Action) -> str | None:
        """Execute an action that does not end the episode; return what failed, or None.

        Coordinates outside the screen are clamped to it. The keys of a click, a drag or a
        scroll are held during it.

        Raises:
            EnvFault: The display is gone.
        """
        action = action.from_cursor(*self._display.pointer)
        handler = self._handlers.get(action.kind)
        if handler is None:
            return None
        held = () if action.kind in (ActionKind.KEY, ActionKind.HOLD_KEY) else action.keys
        try:
            with self._display.faults():
                if action.kind in _USES_KEYS:
                    self._keyboard.aim(self._display.focused())
                self._keyboard.down(held)
                try:
                    note = handler(action)
                finally:
                    self._keyboard.up(held)
            if action.kind is not ActionKind.WAIT:
                self._display.await_input()
            return note
        except UntypableError as error:
            return str(error)

    def _place(self, x: int, y: int) -> None:
        x = max(0, min(self._display.width - 1, x))
        y = max(0, min(self._display.height - 1, y))
        self._display.pointer = (x, y)
        self._input("MotionNotify", x=x, y=y)

    def _move(self, action: Action) -> None:
        if action.x is not None and action.y is not None:
            self._place(action.x, action.y)
        self._sync()

    def _click(self, action: Action) -> None:
        times = _CLICKS[action.kind]
        button = _BUTTONS[Button.LEFT if times > 1 else action.button]
        self._move(action)
        for _ in range(times):
            self._input("ButtonPress", button)
            self._input("ButtonRelease", button)
        self._sync()

    def _press(self, action: Action, *, is_down: bool) -> None:
        self._move(action)
        self._input("ButtonPress" if is_down else "ButtonRelease", _BUTTONS[action.button])
        self._sync()

    def _drag(self, action: Action) -> None:
        self._press(action, is_down=True)
        for x, y in action.path:
            from_x, from_y = self._display.pointer
            for step in range(1, _DRAG_STEPS + 1):
                part = step / _DRAG_STEPS
                self._place(
                    round(from_x + (x - from_x) * part), round(from_y + (y - from_y) * part)
                )
                self._sync()
                time.sleep(_DRAG_SECONDS)
        self._input("ButtonRelease", _BUTTONS[action.button])
        self._sync()

    def _scroll(self, action: Action) -> str | None:
        self._move(action)
        left_out = 0
        for pixels, back, forth in ((action.dy, 4, 5), (action.dx, 6, 7)):
            notches = -(-abs(pixels) // _WHEEL_PIXELS)
            left_out += max(0, notches - _MAX_NOTCHES)
            for _ in range(min(_MAX_NOTCHES, notches)):
                self._input("ButtonPress", forth if pixels > 0 else back)
                self._input("ButtonRelease", forth if pixels > 0 else back)
        self._sync()
        if left_out:
            return f"the wheel turned by {_MAX_NOTCHES} clicks, the most at once"
        return None

    def _chord(self, action: Action) -> None:
        self._keyboard.down(action.keys)
        if {"alt", "tab"} <= set(action.keys):
            # The window manager must see Alt released, or its list of windows stays.
            self._display.settle(quiet=0.1, limit=1.0, least=0.2)
        self._keyboard.up(action.keys)
        # Applications may take a chord and the text after it in another order.
        self._display.settle(quiet=0.04, limit=0.5, least=0.04)

    def _hold(self, action: Action) -> str | None:
        self._keyboard.down(action.keys)
        try:
            return _sleep(action.seconds)
        finally:
            self._keyboard.up(action.keys)

    def _rest(self, seconds: float) -> bool:
        """Wait until applications have read all input so far; return whether they have."""
        answered = self._display.await_input(seconds)
        if answered is None:
            self._display.await_idle(min(seconds, _IDLE_SECONDS))
        return answered is not False

    def _input(self, kind: str, detail: int = 0, **place: int) -> None:
        from Xlib import X
        from Xlib.ext import xtest

        library: Any = xtest
        library.fake_input(self._display.x, getattr(X, kind), detail, **place)

    def _sync(self) -> None:
        self._display.x.sync()


def _sleep(seconds: float) -> str | None:
    time.sleep(max(0.0, min(LONGEST_WAIT, seconds)))
    return f"it took {LONGEST_WAIT:g} seconds, the most at once" if seconds > LONGEST_WAIT else None
