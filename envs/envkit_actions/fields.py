"""Typed access to the fields of one action as a model wrote them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from envkit.toolcalls.tolerant_json import scrub
from envkit_actions.action import Action, Button
from envkit_actions.keys import chord, split_chord
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import Reading

MAX_SECONDS: Final = 600.0
"""Longest wait."""
MAX_SCROLL: Final = 100_000
"""Longest scroll in pixels."""
DIRECTIONS: Final = ("up", "down", "left", "right")
"""Of a scroll."""
MAX_PATH: Final = 100
"""Maximum points of a drag."""
_FAR: Final = 10**9
_NUMBER: Final = re.compile(r"\s*([+-]?\d{1,12}(?:\.\d{0,12})?)\s*", re.ASCII)
_BETWEEN: Final = re.compile(r"[\s,()\[\]]+")
_LONGEST_PLACE: Final = 128

V = TypeVar("V")


def as_number(value: object, name: str) -> float:
    """Return a finite number; a string of digits counts, a boolean does not.

    Raises:
        MalformedActionError: It is not a number.
    """
    if isinstance(value, str) and (found := _NUMBER.fullmatch(value[:64])):
        return float(found.group(1))
    if isinstance(value, int) and not isinstance(value, bool):
        return float(
            min(max(value, -_FAR), _FAR)
        )  # a huge integer has no float; infinity is out of range too
    if isinstance(value, float) and math.isfinite(value):
        return min(max(value, -_FAR), _FAR)
    raise MalformedActionError(f"'{name}' must be a number, got {quoted(value)}")


def as_pair(value: object, name: str) -> tuple[float, float]:
    """Return x and y from [x, y], {"x": x, "y": y} or "(x, y)".

    Raises:
        MalformedActionError: It is not a pair.
    """
    if isinstance(value, str) and len(numbers := _numbers(value)) == 2:
        return numbers[0], numbers[1]
    if isinstance(value, Mapping):
        fields = cast(Mapping[str, Any], value)
        if "x" in fields and "y" in fields:
            return as_number(fields["x"], f"{name}.x"), as_number(fields["y"], f"{name}.y")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        pair = cast(Sequence[object], value)
        if len(pair) == 2:
            return as_number(pair[0], f"{name}[0]"), as_number(pair[1], f"{name}[1]")
    shown = quoted(cast(object, value))
    raise MalformedActionError(f"'{name}' must be [x, y], got {shown}")


def as_region(value: object, name: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two corners from [x0, y0, x1, y1], [[x0, y0], [x1, y1]] or either as a string.

    Raises:
        MalformedActionError: It is not a region.
    """
    parts = _numbers(value) if isinstance(value, str) else value
    if isinstance(parts, list):
        corners = cast(list[object], parts)
        if len(corners) == 4:
            return as_pair(corners[:2], name), as_pair(corners[2:], name)
        if len(corners) == 2:
            return as_pair(corners[0], name), as_pair(corners[1], name)
    raise MalformedActionError(f"'{name}' must be [x0, y0, x1, y1], got {quoted(value)}")


def _numbers(text: str) -> list[float]:
    """Return the numbers of a text that holds nothing but them and brackets; else none."""
    parts = [part for part in _BETWEEN.split(text[:_LONGEST_PLACE]) if part]
    return [float(part) for part in parts] if all(map(_NUMBER.fullmatch, parts)) else []


class Fields:
    """The fields of one action. Every method raises `MalformedActionError` with a sentence.

    A null field counts as missing. A field that no method asked for is unknown to the action.
    """

    def __init__(self, values: Mapping[str, Any], reading: Reading, name: str) -> None:
        self.is_relative = False
        """Whether places are relative to the cursor."""
        self.name = name
        """Name of the action, for messages."""
        self._values = values
        self._reading = reading
        self._known: set[str] = set()

    def word(self, key: str, options: Mapping[str, V]) -> V:
        """Return what the action's word stands for; messages call the action by it from now on."""
        meant = self.choice(key, options)
        self.name = str(self._values[key]).lower()
        return meant

    def read(self, reader: "Reader") -> None:
        """Add the actions that a reader returns; it must ask for every field."""
        made = reader(self)
        self.check_all_known()
        self._reading.add(*((made,) if isinstance(made, Action) else made))

    def check_all_known(self) -> None:
        """Check that every field was asked for, so none is ignored."""
        for key, value in self._values.items():
            if value is not None and key not in self._known:
                known = ", ".join(sorted(self._known))
                raise MalformedActionError(
                    f"{self.name} has an unknown field {quoted(key)}; known: {known or 'none'}"
                )

    def has(self, key: str) -> bool:
        """Whether the field is present and not null."""
        self._known.add(key)
        return self._values.get(key) is not None

    def named(self, *keys: str) -> str:
        """Return which of several names a field has; the first if it is missing."""
        return next((key for key in keys if self.has(key)), keys[0])

    def get(self, key: str) -> Any:  # noqa: ANN401  # any JSON
        """Return the field unchanged.

        Raises:
            MalformedActionError: It is missing.
        """
        if not self.has(key):
            raise MalformedActionError(f"{self.name} needs '{key}'")
        return self._values[key]

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number; `default` None makes the field mandatory."""
        if default is not None and not self.has(key):
            return default
        return as_number(self.get(key), key)

    def seconds(self, key: str, default: float | None = None, *, per_second: float = 1.0) -> float:
        """Return a duration between 0 and `MAX_SECONDS`.

        Args:
            key: The field.
            default: Default in the field's unit; None makes the field mandatory.
            per_second: How many of the field's units make a second.
        """
        value = self.number(key, default) / per_second
        if not 0 <= value <= MAX_SECONDS:
            raise MalformedActionError(
                f"'{key}' must be 0 to {MAX_SECONDS * per_second:g}, got {value * per_second:.10g}"
            )
        return value

    def amount(self, key: str, default: float | None = None) -> int:
        """Return a distance to scroll, in whole pixels or clicks."""
        value = self.number(key, default)
        if abs(value) > MAX_SCROLL:
            raise MalformedActionError(f"'{key}' must be at most {MAX_SCROLL}, got {value:.10g}")
        return round(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string without lone surrogates; `default` None makes the field mandatory."""
        if default is not None and not self.has(key):
            return default
        value = self.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _FAR:
            return str(value)  # models write the text 42 without quotes
        if not isinstance(value, str):
            raise MalformedActionError(f"'{key}' must be a string, got {quoted(value)}")
        return scrub(value)

    def choice(self, key: str, options: Mapping[str, V], default: V | None = None) -> V:
        """Return the option that a word names."""
        if default is not None and not self.has(key):
            return default
        value = self.get(key)
        if isinstance(value, str) and value.lower() in options:
            return options[value.lower()]
        raise MalformedActionError(
            f"'{key}' must be one of {', '.join(options)}, got {quoted(value)}"
        )

    def direction(self, key: str) -> str:
        """Return one of `DIRECTIONS`."""
        return self.choice(key, {word: word for word in DIRECTIONS})

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.get(key) if self.has(key) else default
        if not isinstance(value, bool):
            raise MalformedActionError(f"'{key}' must be true or false, got {quoted(value)}")
        return value

    def button(self) -> Button:
        """Return the mouse button `button`; left if the field is missing."""
        return self.choice("button", {button.value: button for button in Button}, Button.LEFT)

    def keys(self, key: str) -> tuple[str, ...]:
        """Return keys from a list of names, or from a string such as "ctrl+c"."""
        value = self.get(key)
        if isinstance(value, str):
            return chord(split_chord(value))
        if not isinstance(value, list):
            raise MalformedActionError(f"'{key}' must be a list of key names, got {quoted(value)}")
        names = cast(list[object], value)[:50]
        if not all(isinstance(name, str) for name in names):
            raise MalformedActionError(f"'{key}' must hold only strings")
        return chord(part for name in cast(list[str], names) for part in split_chord(name))

    def place(self, pair: tuple[float, float]) -> tuple[int, int]:
        """Return the screen pixel, or the distance, that two numbers mean."""
        if self.is_relative:
            return self._reading.space.offset_to_screen(*pair)
        return self._reading.point(*pair)

    def pair(self, key: str) -> tuple[int, int]:
        """Return a pixel of the screen from a field [x, y]."""
        return self.place(as_pair(self.get(key), key))

    def optional_pair(self, key: str) -> tuple[int, int] | tuple[None, None]:
        """Return a pixel, or two None for the cursor's position."""
        return self.pair(key) if self.has(key) else (None, None)

    def point(self) -> tuple[int, int]:
        """Return a pixel from the fields `x` and `y`."""
        return self.place((self.number("x"), self.number("y")))

    def optional_point(self) -> tuple[int, int] | tuple[None, None]:
        """Return a pixel, or two None if `x` and `y` are both missing."""
        return self.point() if self.has("x") or self.has("y") else (None, None)

    def path(self, key: str) -> tuple[tuple[int, int], ...]:
        """Return the pixels of a list of points."""
        value = self.get(key)
        if not isinstance(value, list) or not 1 <= len(cast(list[object], value)) <= MAX_PATH:
            raise MalformedActionError(f"'{key}' must be a list of 1 to {MAX_PATH} points [x, y]")
        points = cast(list[object], value)
        return tuple(self.place(as_pair(point, key)) for point in points)


Reader = Callable[[Fields], Action | Sequence[Action]]
"""Returns one action for the fields of a call, or several."""
