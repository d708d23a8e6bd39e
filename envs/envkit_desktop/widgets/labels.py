"""Labels, progress bars, panels and icons."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from envkit_desktop.painter import Painter, line_height
from envkit_desktop.widgets.widget import Host, Widget

ICON_WIDTH: Final = 76
ICON_HEIGHT: Final = 56
_MARK: Final = 30


@dataclass(slots=True, kw_only=True)
class Label(Widget):
    """A line of text."""

    text: str = ""
    is_warning: bool = False

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the text, vertically centred."""
        theme = painter.theme
        self.paint_line(painter, x, y, self.text, theme.warning if self.is_warning else theme.ink)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the text."""
        yield self.text, self.width


@dataclass(slots=True, kw_only=True)
class Panel(Widget):
    """A box that groups others; the pages of tabs are panels."""

    has_border: bool = False

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the outline."""
        if self.has_border:
            painter.frame(x, y, self.width, self.height, painter.theme.border)


@dataclass(slots=True, kw_only=True)
class Progress(Widget):
    """A bar that fills with the desktop's clock."""

    started: float = 0.0
    """On the desktop's clock, in seconds."""
    duration: float = 1.0
    """Seconds until it is full."""
    percent: int = 0

    def tick(self, now: float) -> bool:
        """Follow the clock; True when it has just become full."""
        share = (now - self.started) / self.duration if self.duration > 0 else 1.0
        before, self.percent = self.percent, max(0, min(100, int(share * 100 + 1e-6)))
        return before < 100 == self.percent

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the bar and its share."""
        theme = painter.theme
        painter.panel(x, y, self.width, self.height, theme.field)
        painter.fill(
            x + 1, y + 1, (self.width - 2) * self.percent // 100, self.height - 2, theme.accent
        )
        text = f"{self.percent}%"
        left = x + (self.width - painter.width_of(text)) // 2
        ink = theme.accent_ink if self.percent > 55 else theme.ink
        self.paint_line(painter, left, y, text, ink)


@dataclass(slots=True, kw_only=True)
class Icon(Widget):
    """A file, a folder or a program: selected by a click, opened by two, dragged onto another."""

    text: str = ""
    mark: str = "file"
    """A mark of the painter."""
    selected: bool = False

    takes_focus: ClassVar[bool] = True
    is_draggable: ClassVar[bool] = True

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the mark over its caption."""
        theme = painter.theme
        color = theme.accent if self.mark != "folder" else (214, 164, 60)
        left, side = x + (self.width - _MARK) // 2, _MARK
        painter.mark(self.mark, left - 1, y + 1, side + 2, theme.border)
        painter.mark(self.mark, left, y + 2, side, color)
        width = painter.width_of(self.text)
        at, top = x + (self.width - width) // 2, y + _MARK + 5
        height = line_height(theme.type_pixels)
        painter.fill(at - 2, top, width + 4, height, theme.accent if self.selected else theme.field)
        painter.text(at, top, self.text, theme.accent_ink if self.selected else theme.ink)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the caption, for which the icon must leave room."""
        yield self.text, self.width - 4

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Select this icon alone; two clicks open it.

        Ctrl toggles it, and shift selects all icons between the selection and this one.
        """
        icons = [item for item in host.siblings(self) if isinstance(item, Icon)]
        if "ctrl" in host.held:
            self.selected = not self.selected
        elif "shift" in host.held:
            here = next(at for at, icon in enumerate(icons) if icon is self)
            lit = [at for at, icon in enumerate(icons) if icon.selected] or [here]
            for at, icon in enumerate(icons):
                icon.selected = min(here, *lit) <= at <= max(here, *lit)
        else:
            for icon in icons:
                icon.selected = icon is self
        host.emit(self, "opened" if clicks == 2 else "selected")
