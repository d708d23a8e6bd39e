"""Type text and press chords on a display, through XTEST."""

import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

_RETURN: Final = 0xFF0D
_TAB: Final = 0xFF09
_SHIFT: Final = 0xFFE1
_NAMES: Final = {
    "ctrl": "Control_L",
    "shift": "Shift_L",
    "alt": "Alt_L",
    "meta": "Super_L",
    "enter": "Return",
    "backspace": "BackSpace",
    "space": "space",
    "pageup": "Prior",
    "pagedown": "Next",
    **{key: key.capitalize() for key in ("tab", "escape", "delete", "insert", "home", "end")},
    **{key: key.capitalize() for key in ("up", "down", "left", "right")},
    **{f"f{n}": f"F{n}" for n in range(1, 13)},
}
"""X11's names of canonical keys."""
_BOUND_SECONDS: Final = 0.15
"""Time that toolkits need to read a changed layout before the first press."""
_READ_SECONDS: Final = 10.0
"""Maximum seconds until the window has read the keys before a chord that needs a keycode."""
_UNICODE: Final = 0x1000000
_AT_ONCE: Final = 100
"""Characters that are sent to the display together."""
_REPEATS: Final = {"galculator": 0.3}
"""Seconds before the same key counts again, by window class.

GTK 3 ignores a second activation of a button for 250 ms, and each key presses a button there."""


class UntypableError(ValueError):
    """A text has a character that no key can produce."""


def symbol_of(character: str) -> int:
    """Return the X11 symbol of a character.

    Raises:
        UntypableError: It has none.
    """
    if character in "\n\t":
        return _RETURN if character == "\n" else _TAB
    point = ord(character)
    if unicodedata.category(character) in ("Cc", "Cs"):
        raise UntypableError(f"the character U+{point:04X} has no key; nothing was typed")
    return point if point < 0x100 else _UNICODE | point


class Keyboard:
    """The keys of one display.

    Characters of the layout have their keys. Others are bound to spare keycodes before use.
    """

    def __init__(self, display: Any, rest: Callable[[float], bool]) -> None:  # noqa: ANN401  # python-xlib has no types
        """Read the layout.

        Args:
            display: A connection to the X server.
            rest: Waits up to so many seconds until applications have read all earlier key
                presses; returns whether they have.
        """
        from Xlib import XK, X
        from Xlib.ext import xtest

        library: Any = xtest
        self._display, self._rest = display, rest
        self._fake, self._named = library.fake_input, XK.string_to_keysym
        self._kinds = {True: X.KeyPress, False: X.KeyRelease}
        info = display.display.info
        low, high = info.min_keycode, info.max_keycode
        self._codes: dict[int, tuple[int, int]] = {}
        self._spare: list[int] = []
        rows = list(enumerate(display.get_keyboard_mapping(low, high - low + 1), low))
        self._spare.extend(code for code, symbols in rows if not any(symbols))
        for level in (0, 1):  # a later key has Alt on its second level, which no chord reaches
            for code, symbols in rows:
                if symbols[level]:
                    self._codes.setdefault(symbols[level], (code, level))
        self._bound: dict[int, int] = {}
        self._strokes: dict[int, float] = {}
        self._repeat = 0.0

    def aim(self, window: str) -> None:
        """Prepare to press keys that a window of this class receives."""
        self._repeat = _REPEATS.get(window, 0.0)

    def type(self, text: str, seconds: float) -> None:
        """Type text; a line feed is Enter.

        Args:
            text: The text to type.
            seconds: Time after which the rest is dropped.

        Raises:
            UntypableError: A character has no key, and nothing was typed; or the time ran out.
        """
        symbols = [symbol_of(character) for character in text.replace("\r\n", "\n")]
        until, count = time.monotonic() + seconds, 0
        for part in self._parts(symbols):
            is_bound = self._bind(part, until)
            for symbol in part:
                if not is_bound or time.monotonic() > until:
                    raise UntypableError(
                        f"only the first {count} of {len(symbols)} characters were typed: "
                        f"it took {seconds:g} seconds"
                    )
                self._stroke(*self._codes.get(symbol, (self._bound.get(symbol, 0), 0)))
                count += 1
            self._display.sync()

    def down(self, keys: Sequence[str]) -> None:
        """Press keys and hold them.

        Raises:
            UntypableError: A key needs a keycode, and an application has not read its last use.
        """
        until = time.monotonic() + _READ_SECONDS
        if not self._bind([self._symbol(key) for key in keys], until):
            raise UntypableError(
                f"the window read no keys for {_READ_SECONDS:g} seconds; nothing was pressed"
            )
        for key in self._held(keys):
            self._await_repeat(self._code(key))
            self._press(self._code(key), is_down=True)
        self._display.sync()

    def up(self, keys: Sequence[str]) -> None:
        """Release keys in reverse order."""
        for key in reversed(self._held(keys)):
            self._press(self._code(key), is_down=False)
        self._display.sync()

    def _held(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Return the keys, with Shift if one of them is on its second level, such as "?"."""
        levels = {self._codes.get(self._symbol(key), (0, 0))[1] for key in keys}
        return ("shift", *keys) if 1 in levels and "shift" not in keys else tuple(keys)

    def _symbol(self, key: str) -> int:
        return int(self._named(_NAMES[key])) if key in _NAMES else symbol_of(key)

    def _code(self, key: str) -> int:
        symbol = self._symbol(key)
        return self._codes[symbol][0] if symbol in self._codes else self._bound[symbol]

    def _parts(self, symbols: Sequence[int]) -> Iterator[list[int]]:
        """Yield short runs of symbols that need no more spare keycodes than there are."""
        part: list[int] = []
        missing: set[int] = set()
        for symbol in symbols:
            if symbol not in self._codes and symbol not in missing:
                if len(missing) == len(self._spare):
                    yield part
                    part, missing = [], set()
                missing.add(symbol)
            part.append(symbol)
            if len(part) == _AT_ONCE:
                yield part
                part, missing = [], set()
        yield part

    def _bind(self, symbols: Sequence[int], until: float) -> bool:
        """Give symbols keycodes; return False if earlier keys were not read in time.

        An application looks up a key in the layout when it reads it, so a keycode can change only
        after that.
        """
        wanted = {one: None for one in symbols if one not in self._codes}
        new = [one for one in wanted if one not in self._bound]
        if not new:
            return True
        if len(self._bound) + len(new) > len(self._spare):
            self._display.sync()
            if not self._rest(until - time.monotonic()):
                return False
            self._bound, new = {}, list(wanted)
        for symbol in new:
            code = self._spare[len(self._bound)]
            self._bound[symbol] = code
            self._display.change_keyboard_mapping(code, [(symbol, symbol)])
        self._display.sync()
        time.sleep(_BOUND_SECONDS)
        return True

    def _stroke(self, code: int, level: int) -> None:
        self._await_repeat(code)
        shift = self._codes[_SHIFT][0]
        if level:
            self._press(shift, is_down=True)
        self._press(code, is_down=True)
        self._press(code, is_down=False)
        if level:
            self._press(shift, is_down=False)

    def _await_repeat(self, code: int) -> None:
        """Wait until the window takes a key that was pressed before."""
        if not self._repeat:
            return
        self._display.sync()
        time.sleep(max(0.0, self._strokes.get(code, 0.0) + self._repeat - time.monotonic()))
        self._strokes[code] = time.monotonic()

    def _press(self, code: int, *, is_down: bool) -> None:
        self._fake(self._display, self._kinds[is_down], code)
