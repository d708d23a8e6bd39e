"""Carry out canonical actions on a page, by mouse and keyboard events.

Key codes are those of a US keyboard: W3C "UI Events KeyboardEvent code Values" and Windows virtual
key codes (learn.microsoft.com, winuser.h).
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, Final, NamedTuple

from envkit_actions import Action, ActionKind, Button
from envkit_actions.keys import TABLE
from envkit_browser.driver.page import Page

MODIFIERS: Final = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}
"""Bits of the protocol's `modifiers`."""


class Key(NamedTuple):
    """One key of the keyboard."""

    key: str
    code: str
    number: int
    text: str = ""
    shifted: str = ""
    """Character with shift; empty if shift changes nothing."""


_NUMBERS: Final = {
    **{"tab": 9, "escape": 27, "backspace": 8, "delete": 46, "insert": 45, "home": 36, "end": 35},
    **{"pageup": 33, "pagedown": 34, "up": 38, "down": 40, "left": 37, "right": 39},
    **{f"f{n}": 111 + n for n in range(1, 13)},
}
"""Keys whose code is their name in `KeyboardEvent.key`."""
_NAMED: Final = {
    "ctrl": Key("Control", "ControlLeft", 17),
    "shift": Key("Shift", "ShiftLeft", 16),
    "alt": Key("Alt", "AltLeft", 18),
    "meta": Key("Meta", "MetaLeft", 91),
    "enter": Key("Enter", "Enter", 13, "\r"),
    "space": Key(" ", "Space", 32, " "),
    **{
        name: Key(TABLE[name].playwright, TABLE[name].playwright, number)
        for name, number in _NUMBERS.items()
    },
}
_LETTERS: Final = {
    letter: Key(letter, f"Key{letter.upper()}", ord(letter.upper()), letter, letter.upper())
    for letter in "abcdefghijklmnopqrstuvwxyz"
}
_DIGITS: Final = {
    digit: Key(digit, f"Digit{digit}", ord(digit), digit, shifted)
    for digit, shifted in zip("0123456789", ")!@#$%^&*(", strict=True)
}
_SIGNS: Final = {
    sign: Key(sign, code, number, sign, shifted)
    for sign, shifted, code, number in (
        ("-", "_", "Minus", 189),
        ("=", "+", "Equal", 187),
        ("[", "{", "BracketLeft", 219),
        ("]", "}", "BracketRight", 221),
        ("\\", "|", "Backslash", 220),
        (";", ":", "Semicolon", 186),
        ("'", '"', "Quote", 222),
        ("`", "~", "Backquote", 192),
        (",", "<", "Comma", 188),
        (".", ">", "Period", 190),
        ("/", "?", "Slash", 191),
    )
}
_KEYS: Final = {**_NAMED, **_LETTERS, **_DIGITS, **_SIGNS}
_SHIFTED: Final = {key.shifted: key for key in _KEYS.values() if key.shifted}


def find_key(name: str) -> tuple[Key, bool]:
    """Find a key by canonical name or character; also return whether it needs shift.

    A character that is not on the keyboard gets a key without a code.
    """
    if name in _KEYS:
        return _KEYS[name], False
    if name in _SHIFTED:
        return _SHIFTED[name], True
    return Key(name, "", 0, name), False


def key_event(kind: str, name: str, modifiers: int, *, repeats: bool = False) -> dict[str, Any]:
    """Return the parameters of `Input.dispatchKeyEvent`.

    Args:
        kind: "down" or "up".
        name: A canonical name, or a character.
        modifiers: Bits of the modifiers that are down.
        repeats: Whether the key was down before.
    """
    key, needs_shift = find_key(name)
    is_shifted = needs_shift or bool(modifiers & MODIFIERS["shift"])
    written = (key.shifted or key.text) if is_shifted else key.text
    # With ctrl, alt or meta a key is a shortcut and writes nothing.
    text = "" if modifiers & ~MODIFIERS["shift"] else written
    event: dict[str, Any] = {
        "type": "keyUp" if kind == "up" else ("keyDown" if text else "rawKeyDown"),
        "key": written if written and written != "\r" else key.key,
        "code": key.code,
        "windowsVirtualKeyCode": key.number,
        "nativeVirtualKeyCode": key.number,
        "modifiers": modifiers | (MODIFIERS["shift"] if needs_shift else 0),
    }
    if kind == "down":
        event["autoRepeat"] = repeats
        if text:
            event["text"] = event["unmodifiedText"] = text
    return event


Command = tuple[str, dict[str, Any]]
"""A DevTools command and its parameters."""
_MOUSE: Final = "Input.dispatchMouseEvent"
_KEY: Final = "Input.dispatchKeyEvent"
_BITS: Final = {Button.LEFT: 1, Button.RIGHT: 2, Button.MIDDLE: 4}
_CLICKS: Final = {ActionKind.CLICK: 1, ActionKind.DOUBLE_CLICK: 2, ActionKind.TRIPLE_CLICK: 3}
_LONGEST_WAIT_S: Final = 60.0
_REPEATS_A_SECOND: Final = 10
_MAX_REPEATS: Final = 50
_MAX_TYPED: Final = 200
"""Maximum characters typed key by key; longer text is inserted at once."""
_WHEEL_FRAMES: Final = 2
_PRESSED_FRAMES: Final = 2
"""Frames until Chromium 156 has processed a scroll, or a move with a button down."""
_DRAG_STEPS: Final = 5
"""Mouse moves per drag segment: many scripts start a drag at the second move."""


def refusal(action: Action) -> str | None:
    """Return why an action has no effect on a page; None if it may have one."""
    return "a page cannot be enlarged" if action.kind is ActionKind.ZOOM else None


class PageInput:
    """The mouse and the keyboard of one page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.x, self.y = 0, 0
        """Pointer position in device pixels."""
        self._buttons = 0

    async def perform(self, action: Action) -> None:
        """Carry out an action, then let `settle_ms` pass in the page.

        Coordinates outside the screen count as its nearest pixel. Kinds that only look or end the
        episode do nothing: the environment handles them.

        Raises:
            BrowserFault: The page is gone or hung.
        """
        handler = self._HANDLERS.get(action.kind)
        if handler is None:
            return
        action = action.from_cursor(self.x, self.y)
        place = (action.x, action.y) if action.x is not None and action.y is not None else None
        x, y = (self.x, self.y) if place is None else self._inside(*place)
        await handler(self, x, y, action)
        if self._page.options.settle_ms:
            await self._page.pass_time(self._page.options.settle_ms)

    def _inside(self, x: int, y: int) -> tuple[int, int]:
        options = self._page.options
        return max(0, min(options.width - 1, x)), max(0, min(options.height - 1, y))

    def _mouse(self, kind: str, x: int, y: int, **more: Any) -> Command:  # noqa: ANN401  # any JSON
        self.x, self.y = x, y
        scale = self._page.options.scale
        params = {"type": kind, "x": x / scale, "y": y / scale, "buttons": self._buttons, **more}
        return _MOUSE, params

    def _move(self, x: int, y: int, modifiers: int = 0) -> Command:
        button = next((name for name, bit in _BITS.items() if self._buttons & bit), None)
        pressed = {} if button is None else {"button": button.value}
        return self._mouse("mouseMoved", x, y, modifiers=modifiers, **pressed)

    def _press(self, x: int, y: int, button: Button, count: int, modifiers: int = 0) -> Command:
        self._buttons |= _BITS[button]
        more = {"button": button.value, "clickCount": count, "modifiers": modifiers}
        return self._mouse("mousePressed", x, y, **more)

    def _release(self, x: int, y: int, button: Button, count: int, modifiers: int = 0) -> Command:
        self._buttons &= ~_BITS[button]
        more = {"button": button.value, "clickCount": count, "modifiers": modifiers}
        return self._mouse("mouseReleased", x, y, **more)

    async def _click(self, x: int, y: int, action: Action) -> None:
        times = _CLICKS[action.kind]
        button = Button.LEFT if times > 1 else action.button
        held = _modifiers(action.keys)
        commands = [*_holding(action.keys), self._move(x, y, held)]
        for count in range(1, times + 1):
            commands.append(self._press(x, y, button, count, held))
            commands.append(self._release(x, y, button, count, held))
        await self._page.deliver(*commands, *_letting_go(action.keys))

    async def _only_move(self, x: int, y: int, action: Action) -> None:
        frames = _PRESSED_FRAMES if self._buttons else 1
        await self._page.deliver(self._move(x, y), frames=frames)

    async def _mouse_down(self, x: int, y: int, action: Action) -> None:
        await self._page.deliver(self._move(x, y), self._press(x, y, action.button, 1))

    async def _mouse_up(self, x: int, y: int, action: Action) -> None:
        await self._only_move(x, y, action)
        await self._page.deliver(self._release(x, y, action.button, 1))

    async def _drag(self, x: int, y: int, action: Action) -> None:
        held = _modifiers(action.keys)
        await self._page.deliver(
            *_holding(action.keys),
            self._move(x, y, held),
            self._press(x, y, action.button, 1, held),
        )
        for point in action.path:
            for place in _stretch((self.x, self.y), self._inside(*point)):
                await self._page.deliver(self._move(*place, held), frames=_PRESSED_FRAMES)
        # A native drag processes a move at the next one, so the last is sent twice.
        await self._page.deliver(self._move(self.x, self.y, held), frames=_PRESSED_FRAMES)
        await self._page.deliver(
            self._release(self.x, self.y, action.button, 1, held), *_letting_go(action.keys)
        )

    async def _scroll(self, x: int, y: int, action: Action) -> None:
        scale, held = self._page.options.scale, _modifiers(action.keys)
        wheel = self._mouse(
            "mouseWheel",
            x,
            y,
            deltaX=action.dx / scale,
            deltaY=action.dy / scale,
            modifiers=held,
        )
        commands = (*_holding(action.keys), self._move(x, y, held), wheel)
        await self._page.deliver(*commands, *_letting_go(action.keys), frames=_WHEEL_FRAMES)
        await self._page.frame()  # moves the scroll offset from the compositor to the document

    async def _type(self, x: int, y: int, action: Action) -> None:
        if len(action.text) > _MAX_TYPED:
            await self._page.deliver(("Input.insertText", {"text": action.text}))
            return
        commands: list[Command] = []
        for character in action.text.replace("\r\n", "\n"):
            name = {"\n": "enter", "\r": "enter", "\t": "tab", " ": "space"}.get(
                character, character
            )
            if find_key(name)[0].code:
                commands += [(_KEY, key_event("down", name, 0)), (_KEY, key_event("up", name, 0))]
            else:
                commands.append(("Input.insertText", {"text": character}))
        if commands:
            await self._page.deliver(*commands)

    async def _press_keys(self, x: int, y: int, action: Action) -> None:
        await self._page.deliver(*_holding(action.keys), *_letting_go(action.keys))

    async def _hold_keys(self, x: int, y: int, action: Action) -> None:
        seconds = max(0.0, min(_LONGEST_WAIT_S, action.seconds))
        modifiers = _modifiers(action.keys)
        last = action.keys[-1]
        await self._page.deliver(*_holding(action.keys))
        repeats = 0 if last in MODIFIERS else round(seconds * _REPEATS_A_SECOND)
        repeats = min(_MAX_REPEATS, repeats)
        for _ in range(repeats):
            await self._page.pass_time(1000 * seconds / repeats)
            await self._page.deliver((_KEY, key_event("down", last, modifiers, repeats=True)))
        if not repeats:
            await self._page.advance(1000 * seconds)
        await self._page.deliver(*_letting_go(action.keys))

    async def _wait(self, x: int, y: int, action: Action) -> None:
        await self._page.advance(1000 * max(0.0, min(_LONGEST_WAIT_S, action.seconds)))

    _HANDLERS: ClassVar[
        dict[ActionKind, Callable[["PageInput", int, int, Action], Awaitable[None]]]
    ] = {
        **dict.fromkeys(_CLICKS, _click),
        ActionKind.MOVE: _only_move,
        ActionKind.MOUSE_DOWN: _mouse_down,
        ActionKind.MOUSE_UP: _mouse_up,
        ActionKind.DRAG: _drag,
        ActionKind.SCROLL: _scroll,
        ActionKind.TYPE: _type,
        ActionKind.KEY: _press_keys,
        ActionKind.HOLD_KEY: _hold_keys,
        ActionKind.WAIT: _wait,
    }


def _modifiers(keys: tuple[str, ...]) -> int:
    return sum(MODIFIERS.get(key, 0) for key in set(keys))


def _holding(keys: tuple[str, ...]) -> Iterator[Command]:
    modifiers = 0
    for key in keys:
        modifiers |= MODIFIERS.get(key, 0)
        yield _KEY, key_event("down", key, modifiers)


def _letting_go(keys: tuple[str, ...]) -> Iterator[Command]:
    modifiers = _modifiers(keys)
    for key in reversed(keys):
        modifiers &= ~MODIFIERS.get(key, 0)
        yield _KEY, key_event("up", key, modifiers)


def _stretch(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for step in range(1, _DRAG_STEPS + 1):
        share = step / _DRAG_STEPS
        yield (
            round(start[0] + (end[0] - start[0]) * share),
            round(start[1] + (end[1] - start[1]) * share),
        )
