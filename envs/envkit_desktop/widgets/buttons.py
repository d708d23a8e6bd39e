"""Buttons, check boxes and radio buttons."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from envkit_desktop.painter import Painter
from envkit_desktop.widgets.widget import Chord, Host, Widget

_BOX: Final = 13
"""Side of the box of a check, in pixels."""
_GAP: Final = 6


@dataclass(slots=True, kw_only=True)
class Button(Widget):
    """Emits "clicked" when it is pressed and released."""

    text: str = ""
    is_default: bool = False
    """Enter presses it, from anywhere in its window."""
    is_cancel: bool = False
    """Escape presses it."""
    pressed: bool = False

    takes_focus: ClassVar[bool] = True

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the face and the centred text."""
        theme = painter.theme
        border = theme.accent if self.focused or self.is_default else theme.border
        painter.panel(
            x, y, self.width, self.height, theme.border if self.pressed else theme.raised, border
        )
        if self.focused:
            painter.frame(x + 1, y + 1, self.width - 2, self.height - 2, theme.accent)
        left = x + (self.width - painter.width_of(self.text)) // 2
        self.paint_line(painter, left, y, self.text, theme.ink if self.enabled else theme.faint)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the text."""
        yield self.text, self.width - 6

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Show the button pressed."""
        self.pressed = True

    def drag(self, host: Host, x: int, y: int) -> None:
        """Show the button released while the pointer is elsewhere."""
        self.pressed = self.holds(x, y)

    def release(self, host: Host, x: int, y: int) -> None:
        """Release, and click if the pointer is still here."""
        self.pressed = False
        if self.holds(x, y):
            host.emit(self, "clicked")

    def key(self, host: Host, chord: Chord) -> bool:
        """Click by space or Enter."""
        if chord[0] or chord[1] not in ("space", "enter"):
            return False
        host.emit(self, "clicked")
        return True


@dataclass(slots=True, kw_only=True)
class _Ticked(Widget):
    """What check boxes and radio buttons share."""

    text: str = ""

    takes_focus: ClassVar[bool] = True

    def change(self, host: Host) -> None:
        """Handle a press."""
        raise NotImplementedError(f"{type(self).__name__} must define change(host)")

    def paint_text(self, painter: Painter, x: int, y: int) -> None:
        """Draw the text of a widget whose corner is at (x, y)."""
        ink = painter.theme.ink if self.enabled else painter.theme.faint
        self.paint_line(painter, x + _BOX + _GAP, y, self.text, ink)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the text."""
        yield self.text, self.width - _BOX - _GAP

    def release(self, host: Host, x: int, y: int) -> None:
        """Change if the pointer is still here."""
        if self.holds(x, y):
            self.change(host)

    def key(self, host: Host, chord: Chord) -> bool:
        """Change by space."""
        if chord[0] or chord[1] != "space":
            return False
        self.change(host)
        return True


@dataclass(slots=True, kw_only=True)
class Check(_Ticked):
    """A box that is ticked or not."""

    checked: bool = False

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the box and its text."""
        theme = painter.theme
        top = y + (self.height - _BOX) // 2
        painter.panel(x, top, _BOX, _BOX, theme.field, theme.accent if self.focused else None)
        if self.checked:
            painter.mark("check", x + 2, top + 2, _BOX - 4, theme.accent)
        self.paint_text(painter, x, y)

    def change(self, host: Host) -> None:
        """Tick or untick the box."""
        self.checked = not self.checked
        host.emit(self, "changed")


@dataclass(slots=True, kw_only=True)
class Radio(_Ticked):
    """One choice of a group: the radios of a parent that share `group`."""

    group: str = ""
    checked: bool = False

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the ring and its text."""
        theme = painter.theme
        top = y + (self.height - _BOX) // 2
        painter.mark("disc", x, top, _BOX, theme.accent if self.focused else theme.border)
        painter.mark("disc", x + 1, top + 1, _BOX - 2, theme.field)
        if self.checked:
            painter.mark("disc", x + 3, top + 3, _BOX - 6, theme.accent)
        self.paint_text(painter, x, y)

    def change(self, host: Host) -> None:
        """Select this radio button."""
        for sibling in host.siblings(self):
            if isinstance(sibling, Radio) and sibling.group == self.group:
                sibling.checked = sibling is self
        host.emit(self, "changed")
