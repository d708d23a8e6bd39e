"""Windows and dialogs, with title bar, resize grip and close box."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envkit_desktop.painter import Painter, line_height
from envkit_desktop.widgets.widget import PADDING, Host, Widget

TITLE: Final = 24
"""Height of the title bar in pixels."""
EDGE: Final = 1
GRIP: Final = 14
"""Side of the corner that resizes, in pixels."""
_CLOSE: Final = 22
"""Width of the box that closes."""
SMALLEST: Final = (120, 70)


class Hold(StrEnum):
    """Part of a window that the pointer holds."""

    NONE = "none"
    """Nothing."""
    TITLE = "title"
    """The title bar: it moves."""
    GRIP = "grip"
    """The corner: it is resized."""
    CLOSE = "close"
    """The closing box, which acts on release."""


@dataclass(slots=True, kw_only=True)
class Window(Widget):
    """A framed box of the desktop with a unique `name`; children are below the title bar."""

    title: str = ""
    is_modal: bool = False
    """Whether it blocks all windows below it."""
    is_closable: bool = True
    is_resizable: bool = False
    is_pinned: bool = False
    """Without title and frame, below all others, never moved: the background with its icons."""
    is_active: bool = False
    hold: Hold = Hold.NONE
    held_x: int = 0
    """Pointer position relative to the window when it was grabbed; for the grip, relative to the
    bottom right corner."""
    held_y: int = 0

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw frame, title bar and face."""
        theme = painter.theme
        if self.is_pinned:
            painter.fill(x, y, self.width, self.height, theme.wallpaper)
            return
        border = theme.accent if self.is_active else theme.border
        painter.panel(x, y, self.width, self.height, theme.face, border)
        bar = theme.accent if self.is_active else theme.title
        ink = theme.accent_ink if self.is_active else theme.title_ink
        painter.fill(x + 1, y + 1, self.width - 2, TITLE - 1, bar)
        top = y + (TITLE - line_height(theme.type_pixels)) // 2
        room = painter.inside((x, y, x + self.width - _CLOSE, y + TITLE))
        if room is not None:
            room.text(x + PADDING + 3, top, self.title, ink)
        if self.is_closable:
            painter.mark("cross", x + self.width - _CLOSE + 6, y + 7, 10, ink)
        if self.is_resizable:
            for inset in (4, 8, 12):
                corner = x + self.width - inset
                painter.fill(corner, y + self.height - 4, 2, 2, theme.border)
                painter.fill(x + self.width - 4, y + self.height - inset, 2, 2, theme.border)

    def child_origin(self) -> tuple[int, int]:
        """Return the corner below the title bar."""
        return (0, 0) if self.is_pinned else (EDGE, TITLE)

    def child_box(self) -> tuple[int, int, int, int]:
        """Return the part inside the frame."""
        if self.is_pinned:
            return 0, 0, self.width, self.height
        return EDGE, TITLE, self.width - EDGE, self.height - EDGE

    @property
    def client(self) -> tuple[int, int]:
        """Width and height of the part inside the frame."""
        return self.width - 2 * EDGE, self.height - TITLE - EDGE

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the title."""
        if not self.is_pinned:
            yield self.title, self.width - PADDING - 3 - (_CLOSE if self.is_closable else 4)

    def close_box(self) -> tuple[int, int]:
        """Return the centre of the closing box, relative to the window."""
        return self.width - _CLOSE // 2, TITLE // 2

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Grab the window."""
        self.held_x, self.held_y = x, y
        if self.is_pinned:
            return
        if self.is_closable and y < TITLE and x >= self.width - _CLOSE:
            self.hold = Hold.CLOSE
        elif y < TITLE:
            self.hold = Hold.TITLE
        elif self.is_resizable and x >= self.width - GRIP and y >= self.height - GRIP:
            self.hold = Hold.GRIP
            self.held_x, self.held_y = x - self.width, y - self.height

    def drag(self, host: Host, x: int, y: int) -> None:
        """Move or resize."""
        if self.hold is Hold.TITLE:
            self.x, self.y = self.x + x - self.held_x, self.y + y - self.held_y
        elif self.hold is Hold.GRIP:
            self.width = max(SMALLEST[0], min(2000, x - self.held_x))
            self.height = max(SMALLEST[1], min(2000, y - self.held_y))

    def release(self, host: Host, x: int, y: int) -> None:
        """Release; close if the pointer is still on the box."""
        hold, self.hold = self.hold, Hold.NONE
        if hold is Hold.CLOSE and y < TITLE and self.width - _CLOSE <= x < self.width:
            host.emit(self, "closing")
