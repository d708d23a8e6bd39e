"""A vertical scroll bar: geometry, drawing and pressing, for every widget that scrolls.

A pane scrolls content taller than itself.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from envkit_desktop.painter import Painter
from envkit_desktop.widgets.widget import Host, Widget

BAR: Final = 14
"""Width of a scroll bar in pixels."""
_SMALLEST_THUMB: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrollBar:
    """A bar along the right edge of a view; lengths and offsets in pixels."""

    length: int
    """Height of the bar and the view."""
    content: int
    """Height of the content."""
    offset: int
    step: int = 20
    """Pixels per arrow press."""

    @property
    def most(self) -> int:
        """The largest offset."""
        return max(0, self.content - self.length)

    @property
    def thumb(self) -> tuple[int, int]:
        """Top and height of the thumb."""
        track = self.length - 2 * BAR
        height = min(track, max(_SMALLEST_THUMB, track * self.length // max(1, self.content)))
        travel = track - height
        return BAR + (travel * self.offset // self.most if self.most else 0), height

    def clamp(self, offset: int) -> int:
        """Return the nearest valid offset."""
        return max(0, min(self.most, offset))

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw with the top left corner at (x, y)."""
        theme = painter.theme
        painter.panel(x, y, BAR, self.length, theme.face)
        if not self.most:
            return
        painter.mark("up", x + 3, y + 3, 8, theme.ink)
        painter.mark("down", x + 3, y + self.length - 11, 8, theme.ink)
        top, height = self.thumb
        painter.panel(x + 1, y + top, BAR - 2, height, theme.raised)

    def press(self, y: int) -> int:
        """Return the offset after a press at this height of the bar."""
        top, height = self.thumb
        if y < BAR:
            return self.clamp(self.offset - self.step)
        if y >= self.length - BAR:
            return self.clamp(self.offset + self.step)
        if y < top:
            return self.clamp(self.offset - self.length)
        if y >= top + height:
            return self.clamp(self.offset + self.length)
        return self.offset

    def drag(self, y: int, grip: int) -> int:
        """Return the offset when the thumb was held `grip` below its top and is now at `y`."""
        travel = self.length - 2 * BAR - self.thumb[1]
        return self.clamp(round((y - grip - BAR) * self.most / travel)) if travel > 0 else 0


class Scrolled(Widget):
    """Scrolling for widgets with a bar at their right edge; subclasses define the fields."""

    __slots__ = ()

    offset: int
    grip: int
    bar_top: ClassVar[int] = 0
    """Where the bar begins, in pixels below the widget's top."""

    @property
    def bar(self) -> ScrollBar:
        """The scroll bar in the widget's current state."""
        raise NotImplementedError(f"{type(self).__name__} must define bar")

    def press_bar(self, y: int) -> None:
        """Scroll by a press on the bar, or grab its thumb."""
        bar, y = self.bar, y - self.bar_top
        self.offset = bar.press(y)
        top, high = bar.thumb
        self.grip = y - top if top <= y < top + high else -1

    def drag(self, host: Host, x: int, y: int) -> None:
        """Drag the thumb."""
        if self.grip >= 0:
            self.offset = self.bar.drag(y - self.bar_top, self.grip)

    def release(self, host: Host, x: int, y: int) -> None:
        """Release the thumb."""
        self.grip = -1

    def wheel(self, host: Host, dx: int, dy: int) -> bool:
        """Scroll."""
        before = self.offset
        self.offset = self.bar.clamp(self.offset + dy)
        return self.offset != before


@dataclass(slots=True, kw_only=True)
class ScrollPane(Scrolled):
    """Children on a content of `content` pixels, scrolled by the wheel or the bar."""

    content: int = 0
    """Height of what can be scrolled to, in pixels."""
    offset: int = 0
    """Pixels scrolled down."""
    grip: int = -1
    """Pixels from the thumb's top to where it is held; -1 if it is not held."""

    @property
    def bar(self) -> ScrollBar:
        """The scroll bar at the right edge."""
        return ScrollBar(length=self.height, content=self.content, offset=self.offset, step=30)

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the frame and the bar."""
        painter.frame(x, y, self.width, self.height, painter.theme.border)
        self.bar.paint(painter, x + self.width - BAR, y)

    def child_origin(self) -> tuple[int, int]:
        """Return the scrolled corner."""
        return 0, -self.offset

    def child_box(self) -> tuple[int, int, int, int]:
        """Return the part next to the bar."""
        return 1, 1, self.width - BAR, self.height - 1

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Scroll by the bar."""
        if x >= self.width - BAR:
            self.press_bar(y)
