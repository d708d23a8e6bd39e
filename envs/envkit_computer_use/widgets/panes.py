"""A pane that shows a part of a taller content."""

from dataclasses import dataclass

from envkit_computer_use.painter import Painter
from envkit_computer_use.widgets.scrolling import BAR, ScrollBar
from envkit_computer_use.widgets.widget import Host, Widget


@dataclass(slots=True, kw_only=True)
class ScrollPane(Widget):
    """Children on a content of `content` pixels, scrolled by the wheel or the bar."""

    content: int = 0
    """Height of what can be scrolled to, in pixels."""
    offset: int = 0
    """Pixels scrolled down."""
    grip: int = -1
    """Where the thumb is held, below its top; -1 while it is not."""

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
        """Return the part beside the bar."""
        return 1, 1, self.width - BAR, self.height - 1

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Scroll by the bar."""
        if x >= self.width - BAR:
            bar = self.bar
            self.offset = bar.press(y)
            top, high = bar.thumb
            self.grip = y - top if top <= y < top + high else -1

    def drag(self, host: Host, x: int, y: int) -> None:
        """Drag the thumb."""
        if self.grip >= 0:
            self.offset = self.bar.drag(y, self.grip)

    def release(self, host: Host, x: int, y: int) -> None:
        """Let go of the thumb."""
        self.grip = -1

    def wheel(self, host: Host, dx: int, dy: int) -> bool:
        """Scroll."""
        before = self.offset
        self.offset = self.bar.clamp(self.offset + dy)
        return self.offset != before
