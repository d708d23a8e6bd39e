"""A table with a header: rows are chosen, and sorted by a click on a column's title."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from envkit_desktop.painter import Painter, line_height
from envkit_desktop.widgets.scrolling import BAR, ScrollBar, Scrolled
from envkit_desktop.widgets.widget import PADDING, ROW, Chord, Host

HEADER: Final = 22
_SORT_MARK: Final = 12


@dataclass(slots=True, kw_only=True)
class Table(Scrolled):
    """Rows of cells."""

    columns: tuple[tuple[str, int], ...] = ()
    """Each is (title, width in pixels)."""
    rows: tuple[tuple[str, ...], ...] = ()
    selected: int = -1
    offset: int = 0
    """Pixels scrolled down."""
    sorted_by: int = -1
    """Sort column; -1 while the rows are in their original order."""
    is_descending: bool = False
    grip: int = -1
    """Pixels from the thumb's top to where it is held; -1 if it is not held."""

    takes_focus: ClassVar[bool] = True
    bar_top: ClassVar[int] = HEADER

    @property
    def bar(self) -> ScrollBar:
        """The scroll bar next to the rows."""
        return ScrollBar(
            length=self.height - HEADER,
            content=len(self.rows) * ROW + 2,
            offset=self.offset,
            step=ROW,
        )

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the header and the visible rows."""
        theme = painter.theme
        self.paint_box(painter, x, y, theme.field)
        bar = self.bar
        if bar.most:
            bar.paint(painter, x + self.width - BAR, y + HEADER)
        self._paint_header(painter, x, y)
        right = x + self.width - (BAR if bar.most else 1)
        inner = painter.inside((x + 1, y + HEADER, right, y + self.height - 1))
        if inner is None:
            return
        drop, first = (ROW - line_height(theme.type_pixels)) // 2, self.offset // ROW
        for row in range(first, min(len(self.rows), first + self.height // ROW + 2)):
            top, is_chosen = y + HEADER + row * ROW - self.offset, row == self.selected
            if is_chosen:
                inner.fill(x + 1, top, self.width - 2, ROW, theme.accent)
            left = x
            for (_, width), cell in zip(self.columns, self.rows[row], strict=True):
                inner.text(
                    left + PADDING, top + drop, cell, theme.accent_ink if is_chosen else theme.ink
                )
                left += width

    def _paint_header(self, painter: Painter, x: int, y: int) -> None:
        theme, left = painter.theme, x
        drop = (HEADER - line_height(theme.type_pixels)) // 2
        for index, (title, width) in enumerate(self.columns):
            painter.panel(left, y, width, HEADER, theme.raised)
            painter.text(left + PADDING, y + drop, title, theme.ink)
            if index == self.sorted_by:
                mark = "down" if self.is_descending else "up"
                painter.mark(mark, left + width - _SORT_MARK, y + 7, 8, theme.accent)
            left += width

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the titles and every cell; the last column ends where the bar begins."""
        for index, (title, width) in enumerate(self.columns):
            yield title, width - PADDING - _SORT_MARK
            before = sum(item[1] for item in self.columns[:index])
            room = min(width, self.width - BAR - before) - PADDING - 2
            for row in self.rows:
                yield row[index], room

    def column_middle(self, index: int) -> int:
        """Return the x of the middle of a column's title, relative to this widget."""
        return sum(item[1] for item in self.columns[:index]) + self.columns[index][1] // 2

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Sort by a title, scroll by the bar, or choose a row; two clicks open it."""
        if y < HEADER:
            self._sort_at(host, x)
        elif self.bar.most and x >= self.width - BAR:
            self.press_bar(y)
        else:
            row = (y - HEADER + self.offset) // ROW
            if 0 <= row < len(self.rows):
                self.selected = row
                host.emit(self, "opened" if clicks == 2 else "selected", self.rows[row][0])

    def _sort_at(self, host: Host, x: int) -> None:
        left = 0
        for index, (_, width) in enumerate(self.columns):
            if left <= x < left + width:
                self.is_descending = index == self.sorted_by and not self.is_descending
                self.sorted_by, self.selected = index, -1
                self.rows = tuple(
                    sorted(
                        self.rows, key=lambda row: _order(row[index]), reverse=self.is_descending
                    )
                )
                host.emit(self, "sorted", str(index))
                return
            left += width

    def key(self, host: Host, chord: Chord) -> bool:
        """Step by the arrows; Enter opens the chosen row."""
        if chord[0] or chord[1] not in ("up", "down", "enter") or not self.rows:
            return False
        if chord[1] == "enter":
            if self.selected >= 0:
                host.emit(self, "opened", self.rows[self.selected][0])
            return self.selected >= 0
        step = 1 if chord[1] == "down" else -1
        self.selected = max(0, min(len(self.rows) - 1, self.selected + step))
        top, view = self.selected * ROW, self.height - HEADER
        self.offset = self.bar.clamp(max(top + ROW + 2 - view, min(self.offset, top)))
        host.emit(self, "selected", self.rows[self.selected][0])
        return True


def _order(cell: str) -> tuple[float, str]:
    """Return a key that sorts numbers by value, before texts."""
    try:
        return float(cell.replace(",", "").removeprefix("$")), ""
    except ValueError:
        return float("inf"), cell.lower()
