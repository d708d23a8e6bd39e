"""Sliders and spinners."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from envkit_desktop.painter import Painter
from envkit_desktop.widgets.widget import PADDING, Chord, Host, Widget

_KNOB: Final = 12
_VALUE: Final = 34
"""Width reserved for the number next to a slider, in pixels."""
_ARROWS: Final = 18
"""Width of a spinner's arrows, in pixels."""


@dataclass(slots=True, kw_only=True)
class _Ranged(Widget):
    """A number within bounds."""

    value: int = 0
    low: int = 0
    high: int = 100
    step: int = 1

    takes_focus: ClassVar[bool] = True

    def set(self, host: Host, value: int) -> None:
        """Set the nearest value within the bounds."""
        value = max(self.low, min(self.high, value))
        if value != self.value:
            self.value = value
            host.emit(self, "changed")


@dataclass(slots=True, kw_only=True)
class Slider(_Ranged):
    """A knob on a track, moved by dragging, by pressing on the track or by the arrow keys."""

    @property
    def _track(self) -> int:
        return self.width - _VALUE - _KNOB

    def knob(self, value: int) -> int:
        """Return the x of the knob's centre for a value, relative to this widget."""
        share = (value - self.low) * self._track
        return _KNOB // 2 + round(share / (self.high - self.low))

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw track, knob and number."""
        theme, middle, at = painter.theme, y + self.height // 2, self.knob(self.value)
        painter.fill(x + _KNOB // 2, middle - 2, self._track, 4, theme.border)
        painter.fill(x + _KNOB // 2, middle - 2, at - _KNOB // 2, 4, theme.accent)
        side = _KNOB + 4 if self.focused else _KNOB
        painter.mark("disc", x + at - side // 2, middle - side // 2, side, theme.accent)
        self.paint_line(painter, x + self.width - _VALUE + PADDING, y, str(self.value), theme.ink)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the widest numbers."""
        yield str(self.high), _VALUE - PADDING
        yield str(self.low), _VALUE - PADDING

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Move the knob here."""
        self.drag(host, x, y)

    def drag(self, host: Host, x: int, y: int) -> None:
        """Move the knob along."""
        share = (x - _KNOB // 2) / self._track
        self.set(host, self.low + round(share * (self.high - self.low) / self.step) * self.step)

    def key(self, host: Host, chord: Chord) -> bool:
        """Step by the arrows."""
        steps = {"left": -1, "down": -1, "right": 1, "up": 1, "pagedown": -10, "pageup": 10}
        if chord[0] or chord[1] not in steps:
            return False
        self.set(host, self.value + steps[chord[1]] * self.step)
        return True


@dataclass(slots=True, kw_only=True)
class Spinner(_Ranged):
    """A number with arrows up and down; digits can be typed."""

    high: int = 99
    typed: str = ""
    """Digits typed since it got the focus or last changed."""

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the number and the arrows."""
        theme, left = painter.theme, x + self.width - _ARROWS
        border = theme.accent if self.focused else None
        painter.panel(x, y, self.width, self.height, theme.field, border)
        half = self.height // 2
        painter.panel(left, y, _ARROWS, half, theme.raised, border)
        painter.panel(left, y + half, _ARROWS, self.height - half, theme.raised, border)
        painter.mark("up", left + 5, y + half // 2 - 4, 8, theme.ink)
        painter.mark("down", left + 5, y + half + half // 2 - 4, 8, theme.ink)
        self.paint_line(painter, x + PADDING, y, str(self.value), theme.ink)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the widest number."""
        yield str(self.high), self.width - _ARROWS - 2 * PADDING

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Step by an arrow."""
        self.typed = ""
        if x >= self.width - _ARROWS:
            self.set(host, self.value + (self.step if y < self.height // 2 else -self.step))

    def wheel(self, host: Host, dx: int, dy: int) -> bool:
        """Step only while focused, so scrolling past changes nothing."""
        if not self.focused or not dy:
            return False
        self.set(host, self.value + (self.step if dy < 0 else -self.step))
        return True

    def key(self, host: Host, chord: Chord) -> bool:
        """Step by the arrows; backspace deletes the last digit."""
        steps = {"up": 1, "down": -1, "pageup": 10, "pagedown": -10}
        if chord[0]:
            return False
        if chord[1] in steps:
            self.typed = ""
            self.set(host, self.value + steps[chord[1]] * self.step)
            return True
        if chord[1] == "backspace":
            self.typed = str(self.value)[:-1]
            self.set(host, int(self.typed or "0"))
            return True
        return False

    def write(self, host: Host, text: str) -> bool:
        """Append digits to those typed before; other characters are ignored."""
        digits = "".join(c for c in text if c in "0123456789")
        if digits:
            self.typed = (self.typed + digits)[-6:]
            self.set(host, int(self.typed))
        return True
