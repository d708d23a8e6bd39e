"""Key names: one table with each family's names.

Reading ignores case, `_` and `-` and accepts any column and alias, because models mix conventions.
Writing uses the family's own column.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from envkit.errors import nearest
from envkit_actions.malformed import MalformedActionError, quoted

MAX_KEYS: Final = 6
"""Maximum keys in one chord."""


class KeyNames(NamedTuple):
    """Names of one key."""

    pyautogui: str
    xdotool: str
    playwright: str
    openai: str


class KeyColumn(IntEnum):
    """A naming convention; the value is its position in `KeyNames`."""

    PYAUTOGUI = 0
    """OSWorld, Qwen and UI-TARS: asweigart/pyautogui, `KEYBOARD_KEYS`."""
    XDOTOOL = 1
    """Anthropic: X11's keysym names."""
    PLAYWRIGHT = 2
    """BrowserGym: `KeyboardEvent.key`."""
    OPENAI = 3
    """OpenAI: upper-case names."""


TABLE: Final[dict[str, KeyNames]] = {
    "ctrl": KeyNames("ctrl", "ctrl", "Control", "CTRL"),
    "shift": KeyNames("shift", "shift", "Shift", "SHIFT"),
    "alt": KeyNames("alt", "alt", "Alt", "ALT"),
    "meta": KeyNames("win", "super", "Meta", "CMD"),
    "enter": KeyNames("enter", "Return", "Enter", "ENTER"),
    "tab": KeyNames("tab", "Tab", "Tab", "TAB"),
    "escape": KeyNames("esc", "Escape", "Escape", "ESC"),
    "backspace": KeyNames("backspace", "BackSpace", "Backspace", "BACKSPACE"),
    "delete": KeyNames("delete", "Delete", "Delete", "DELETE"),
    "insert": KeyNames("insert", "Insert", "Insert", "INSERT"),
    "space": KeyNames("space", "space", "Space", "SPACE"),
    "home": KeyNames("home", "Home", "Home", "HOME"),
    "end": KeyNames("end", "End", "End", "END"),
    "pageup": KeyNames("pageup", "Prior", "PageUp", "PAGEUP"),
    "pagedown": KeyNames("pagedown", "Next", "PageDown", "PAGEDOWN"),
    "up": KeyNames("up", "Up", "ArrowUp", "ARROWUP"),
    "down": KeyNames("down", "Down", "ArrowDown", "ARROWDOWN"),
    "left": KeyNames("left", "Left", "ArrowLeft", "ARROWLEFT"),
    "right": KeyNames("right", "Right", "ArrowRight", "ARROWRIGHT"),
    **{f"f{n}": KeyNames(f"f{n}", f"F{n}", f"F{n}", f"F{n}") for n in range(1, 13)},
}
"""Canonical name of a key -> its names elsewhere. A single character is its own name."""

_SYMBOLS: Final = {
    "+": "plus", "-": "minus", ",": "comma", ".": "period dot", "/": "slash", "\\": "backslash",
    ";": "semicolon", ":": "colon", "'": "apostrophe", "`": "grave backquote", "=": "equal equals",
    "[": "bracketleft", "]": "bracketright", "*": "asterisk", "_": "underscore", "!": "exclam",
    "?": "question", "#": "numbersign", "%": "percent", "&": "ampersand", "$": "dollar", "@": "at",
}  # fmt: skip
"""Characters by their names, X11's first."""
_SPELLINGS: Final = {
    "ctrl": "control controll controlr ctrlleft ctrlright ctrll controlormeta",
    "shift": "shiftl shiftr shiftleft shiftright",
    "alt": "altl altr altleft altright altgr option",
    "meta": "command superl superr windows winleft winright metal metaleft",
    "enter": "return kpenter",
    "delete": "del kpdelete",
    "insert": "ins",
    "space": "spacebar",
    "pageup": "pgup",
    "pagedown": "pgdn pgdown",
    **{arrow: f"{arrow}arrow" for arrow in ("up", "down", "left", "right")},
    **_SYMBOLS,
    **{str(n): f"digit{n}" for n in range(10)},
    **{letter: f"key{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"},
}
"""Other names of each key, `_folded`."""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_NAMES: Final = {
    **{name: key for key, names in _SPELLINGS.items() for name in names.split()},
    **{_folded(name): key for key, names in TABLE.items() for name in (key, *names)},
}
_KEYSYMS: Final = {symbol: names.split()[0] for symbol, names in _SYMBOLS.items()}


def canonical_key(name: str) -> str:
    """Return the canonical name of one key.

    Raises:
        MalformedActionError: There is no such key; the message suggests the nearest.
    """
    if len(name) == 1:
        return "space" if name == " " else _character(name)
    known = _NAMES.get(_folded(name[:32])) if len(name) <= 32 else None
    if known is not None:
        return known
    meant = nearest(_folded(name[:32]), TABLE, cutoff=0.5)
    hint = f"did you mean {meant!r}?" if meant else f"such as {', '.join(list(TABLE)[:7])}"
    raise MalformedActionError(
        f"there is no key {quoted(name)}; a key is one character or a name: {hint}"
    )


def chord(names: Iterable[str]) -> tuple[str, ...]:
    """Return the canonical names of keys that are pressed together.

    A capital letter alone is pressed with shift; within a chord case is ignored.

    Raises:
        MalformedActionError: A key is unknown or repeated, or there are none or too many.
    """
    written = list(names)
    if not 1 <= len(written) <= MAX_KEYS:
        raise MalformedActionError(f"keys must name 1 to {MAX_KEYS} keys, got {len(written)}")
    keys = tuple(canonical_key(name) for name in written)
    if len(set(keys)) < len(keys):
        raise MalformedActionError(f"a key is repeated in {quoted('+'.join(keys))}")
    if len(written) == 1 and len(written[0]) == 1 and written[0] != keys[0] != "space":
        return ("shift", *keys)
    return keys


def split_chord(text: str) -> list[str]:
    """Split `ctrl+shift+t` or `ctrl c`; a `+` at the end is the key itself."""
    stripped = text.strip()[:256]
    if len(stripped) <= 1:
        return [stripped] if stripped else ([" "] if text else [])
    if stripped.endswith("++"):
        return [*split_chord(stripped[:-2]), "+"]
    return [name for part in stripped.split("+") for name in part.split()]


def key_name(key: str, column: KeyColumn) -> str:
    """Return a family's name of a canonical key."""
    names = TABLE.get(key)
    if names is not None:
        return names[column]
    return _KEYSYMS.get(key, key) if column is KeyColumn.XDOTOOL else key


def key_names(keys: Sequence[str], column: KeyColumn) -> list[str]:
    """Return a family's names of canonical keys, in order."""
    return [key_name(key, column) for key in keys]


def _character(name: str) -> str:
    lowered = name.lower()
    if len(lowered) != 1 or not lowered.isprintable():
        raise MalformedActionError(f"there is no key {quoted(name)}: press a printable character")
    return lowered
