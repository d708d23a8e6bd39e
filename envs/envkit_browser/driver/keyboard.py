"""Map canonical key names to DevTools key events.

Codes are those of a US keyboard: W3C "UI Events KeyboardEvent code Values" and Windows virtual key
codes (learn.microsoft.com, winuser.h).
"""

from typing import Any, Final, NamedTuple

from envkit_actions.keys import TABLE

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
