"""A pane that scrolls content taller than itself."""

from dataclasses import dataclass

from envkit_desktop.painter import Painter
from envkit_desktop.widgets.scrolling import BAR, ScrollBar, Scrolled
from envkit_desktop.widgets.widget import Host


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
