"""Dropdowns, lists and tabs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from envkit_desktop.painter import Painter, line_height
from envkit_desktop.widgets.labels import Panel
from envkit_desktop.widgets.scrolling import BAR, ScrollBar, Scrolled
from envkit_desktop.widgets.widget import PADDING, ROW, Chord, Host, Widget

_ARROW: Final = 20
"""Width of the part with the arrow, in pixels."""
TAB_HEIGHT: Final = 24


@dataclass(slots=True, kw_only=True)
class Dropdown(Widget):
    """Shows one option; a press shows all of them."""

    options: tuple[str, ...] = ()
    selected: int = -1
    """-1 while nothing is chosen."""

    takes_focus: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """The chosen option; empty if there is none."""
        return self.options[self.selected] if 0 <= self.selected < len(self.options) else ""

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the chosen option and the arrow."""
        theme = painter.theme
        border = theme.accent if self.focused else None
        painter.panel(x, y, self.width, self.height, theme.field, border)
        painter.panel(x + self.width - _ARROW, y, _ARROW, self.height, theme.raised, border)
        painter.mark("down", x + self.width - 15, y + self.height // 2 - 5, 10, theme.ink)
        ink = theme.ink if self.text else theme.faint
        self.paint_line(painter, x + PADDING, y, self.text or "Choose...", ink)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield every option."""
        for option in (*self.options, "Choose..."):
            yield option, self.width - _ARROW - 2 * PADDING

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Show the options below."""
        items = tuple((option, str(index), ()) for index, option in enumerate(self.options))
        host.open_menu(self, items, 0, self.height, self.width)

    def chosen(self, host: Host, command: str) -> None:
        """Select the option."""
        self.selected = int(command)
        host.emit(self, "changed")

    def key(self, host: Host, chord: Chord) -> bool:
        """Step by the arrows."""
        if chord[0] or chord[1] not in ("up", "down") or not self.options:
            return False
        step = 1 if chord[1] == "down" else -1
        self.selected = max(0, min(len(self.options) - 1, self.selected + step))
        host.emit(self, "changed")
        return True


@dataclass(slots=True, kw_only=True)
class ListBox(Scrolled):
    """Rows of text; one or several can be chosen."""

    items: tuple[str, ...] = ()
    selected: int = -1
    """The last chosen row, which has the caret; -1 if there is none."""
    is_multiple: bool = False
    """Whether ctrl toggles a row and shift selects a range."""
    chosen_rows: tuple[int, ...] = ()
    """Chosen rows in order, for a multi-select list."""
    anchor: int = -1
    """Where a selection with shift begins; -1 at the caret."""
    offset: int = 0
    """Pixels scrolled down."""
    grip: int = -1
    """Pixels from the thumb's top to where it is held; -1 if it is not held."""

    takes_focus: ClassVar[bool] = True

    @property
    def bar(self) -> ScrollBar:
        """The scroll bar at the right edge."""
        return ScrollBar(
            length=self.height, content=len(self.items) * ROW + 2, offset=self.offset, step=ROW
        )

    @property
    def _lit(self) -> tuple[int, ...]:
        if self.is_multiple:
            return self.chosen_rows
        return (self.selected,) if self.selected >= 0 else ()

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the visible rows."""
        theme = painter.theme
        self.paint_box(painter, x, y, theme.field)
        bar = self.bar
        side = BAR if bar.most else 1
        if bar.most:
            bar.paint(painter, x + self.width - BAR, y)
        inner = painter.inside((x + 1, y + 1, x + self.width - side, y + self.height - 1))
        if inner is None:
            return
        drop = (ROW - line_height(theme.type_pixels)) // 2
        first = self.offset // ROW
        for row in range(first, min(len(self.items), first + self.height // ROW + 2)):
            top, is_lit = y + 1 + row * ROW - self.offset, row in self._lit
            if is_lit:
                inner.fill(x + 1, top, self.width - 2, ROW, theme.accent)
            if self.is_multiple and self.focused and row == self.selected:
                inner.frame(x + 1, top, self.width - side - 1, ROW, theme.ink)
            ink = theme.accent_ink if is_lit else theme.ink
            inner.text(x + PADDING, top + drop, self.items[row], ink)

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield every row."""
        for item in self.items:
            yield item, self.width - 2 * PADDING - (BAR if self.bar.most else 0)

    def row_at(self, y: int) -> int:
        """Return the row at a height of this widget, which may be beyond the last."""
        return (y - 1 + self.offset) // ROW

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Choose the row, or scroll by the bar; two clicks open the row."""
        if self.bar.most and x >= self.width - BAR:
            self.press_bar(y)
            return
        row = self.row_at(y)
        if 0 <= row < len(self.items):
            self._choose(row, host.held)
            host.emit(self, "opened" if clicks == 2 else "selected", self.items[row])

    def _choose(self, row: int, held: frozenset[str]) -> None:
        """Choose a row: alone, with shift from the anchor on, or with ctrl added to others."""
        if self.is_multiple and "shift" in held and self.selected >= 0:
            self.anchor = self.selected if self.anchor < 0 else self.anchor
            low, high = min(self.anchor, row), max(self.anchor, row)
            kept = self.chosen_rows if "ctrl" in held else ()
            self.chosen_rows = tuple(sorted({*kept, *range(low, high + 1)}))
        elif self.is_multiple and "ctrl" in held:
            self.chosen_rows = tuple(sorted({*self.chosen_rows} ^ {row}))
            self.anchor = row
        else:
            self.chosen_rows, self.anchor = (row,), row
        self.selected = row

    def key(self, host: Host, chord: Chord) -> bool:
        """Step by the arrows: plain, extending with shift, or with ctrl moving only the caret.

        Ctrl and space toggle the row with the caret.
        """
        held, name = chord
        allowed = {"ctrl", "shift"} if self.is_multiple else set[str]()
        if not held <= allowed or not self.items:
            return False
        if self.is_multiple and name == "space" and self.selected >= 0:
            self._choose(self.selected, held)
            host.emit(self, "selected", self.items[self.selected])
            return True
        last = len(self.items) - 1
        steps = {"up": self.selected - 1, "down": self.selected + 1, "home": 0, "end": last}
        if name not in steps:
            return False
        row = max(0, min(last, steps[name]))
        if held == frozenset({"ctrl"}):
            self.selected = row
        else:
            self._choose(row, held)
        self._reveal(row)
        host.emit(self, "selected", self.items[row])
        return True

    def _reveal(self, row: int) -> None:
        top = row * ROW
        self.offset = self.bar.clamp(max(top + ROW + 2 - self.height, min(self.offset, top)))


@dataclass(slots=True, kw_only=True)
class Tabs(Widget):
    """Pages, one of which shows: the n-th child belongs to the n-th title."""

    titles: tuple[str, ...] = ()
    selected: int = 0
    tab_width: int = 80

    takes_focus: ClassVar[bool] = True

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the row of titles and the frame of the page."""
        theme = painter.theme
        painter.frame(x, y + TAB_HEIGHT - 1, self.width, self.height - TAB_HEIGHT + 1, theme.border)
        drop = (TAB_HEIGHT - line_height(theme.type_pixels)) // 2
        for index, title in enumerate(self.titles):
            left, is_open = x + index * self.tab_width, index == self.selected
            face = theme.face if is_open else theme.raised
            painter.panel(left, y, self.tab_width, TAB_HEIGHT, face)
            if is_open:
                painter.fill(left + 1, y + TAB_HEIGHT - 1, self.tab_width - 2, 1, theme.face)
                painter.fill(left, y, self.tab_width, 2, theme.accent)
            at = left + (self.tab_width - painter.width_of(title)) // 2
            painter.text(at, y + drop, title, theme.ink)

    def child_origin(self) -> tuple[int, int]:
        """Return the corner below the titles."""
        return 0, TAB_HEIGHT

    def captions(self, pixels: int) -> Iterator[tuple[str, int]]:
        """Yield the titles."""
        for title in self.titles:
            yield title, self.tab_width - 2 * PADDING

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Open the page of the title."""
        index = x // self.tab_width
        if y < TAB_HEIGHT and index < len(self.titles):
            self.open(index)
            host.emit(self, "changed")

    def key(self, host: Host, chord: Chord) -> bool:
        """Step by the arrows."""
        if chord[0] or chord[1] not in ("left", "right"):
            return False
        self.open(max(0, min(len(self.titles) - 1, self.selected + (chord[1] == "right") * 2 - 1)))
        host.emit(self, "changed")
        return True

    def open(self, index: int) -> None:
        """Show a page and hide the others."""
        self.selected = index
        for number, page in enumerate(self.children):
            page.visible = number == index

    def page(self, index: int) -> Panel:
        """Add the page of the index, which must be the next one."""
        panel = Panel(
            width=self.width, height=self.height - TAB_HEIGHT, visible=index == self.selected
        )
        self.children.append(panel)
        return panel
