"""Menu bars, and the menus that bars, dropdowns and right clicks open."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from envkit_desktop.painter import Painter, line_height, text_width
from envkit_desktop.widgets.widget import PADDING, ROW, Host, MenuItems, Widget

BAR_HEIGHT: Final = 22
_SPACE: Final = 12
"""Pixels on both sides of a title of the bar."""
_ARROW: Final = 18
"""Width kept for the mark of a submenu."""


@dataclass(slots=True, kw_only=True)
class MenuBar(Widget):
    """Titles in a row; each opens its menu."""

    menus: tuple[tuple[str, Any], ...] = ()
    """Each is (title, items)."""

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the titles."""
        theme = painter.theme
        painter.fill(x, y, self.width, self.height, theme.raised)
        painter.fill(x, y + self.height - 1, self.width, 1, theme.border)
        for left, _, title in self.titles(theme.type_pixels):
            self.paint_line(painter, x + left + _SPACE, y, title, theme.ink)

    def titles(self, pixels: int) -> Iterator[tuple[int, int, str]]:
        """Yield left edge, right edge and text of each title, relative to this widget."""
        left = 0
        for title, _ in self.menus:
            right = left + text_width(title, pixels) + 2 * _SPACE
            yield left, right, title
            left = right

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the titles, which must all be inside."""
        for left, _, title in self.titles(pixels):
            yield title, self.width - left - 2 * _SPACE

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Open the menu of the title."""
        for index, (left, right, _) in enumerate(self.titles(host.type_pixels)):
            if left <= x < right:
                host.open_menu(self, self.menus[index][1], left, self.height, 0)


@dataclass(slots=True, kw_only=True)
class Menu:
    """Items that are shown above everything until one is chosen; not part of the tree."""

    window: str
    """Window of the owner."""
    owner: str
    """Name of the widget that receives the choice."""
    items: MenuItems
    x: int
    y: int
    width: int
    highlighted: int = -1
    """The item whose submenu is open; -1 if there is none."""

    @property
    def height(self) -> int:
        """Height in pixels."""
        return len(self.items) * ROW + 2

    def row_at(self, x: int, y: int) -> int:
        """Return the index of the item at a place of the screen; -1 if there is none."""
        row = (y - self.y - 1) // ROW
        inside = self.x <= x < self.x + self.width and 0 <= row < len(self.items)
        return row if inside and y > self.y else -1

    def middle_of(self, row: int) -> tuple[int, int]:
        """Return the centre of an item on the screen."""
        return self.x + self.width // 2, self.y + 1 + row * ROW + ROW // 2

    def paint(self, painter: Painter) -> None:
        """Draw the items."""
        theme = painter.theme
        painter.panel(self.x, self.y, self.width, self.height, theme.field)
        drop = (ROW - line_height(theme.type_pixels)) // 2
        for row, (text, _, inner) in enumerate(self.items):
            top, is_lit = self.y + 1 + row * ROW, row == self.highlighted
            if is_lit:
                painter.fill(self.x + 1, top, self.width - 2, ROW, theme.accent)
            ink = theme.accent_ink if is_lit else theme.ink
            painter.text(self.x + PADDING, top + drop, text, ink)
            if inner:
                painter.mark("right", self.x + self.width - 14, top + 5, 10, ink)


def menu_width(items: MenuItems, pixels: int) -> int:
    """Return the width in pixels that shows every item in full."""
    widest = max((text_width(item[0], pixels) for item in items), default=0)
    return widest + 2 * PADDING + _ARROW
