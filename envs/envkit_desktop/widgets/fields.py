"""Text inputs: a single-line field and a multi-line area."""

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from envkit_desktop.painter import Painter, line_height, text_width
from envkit_desktop.widgets.editing import Editor
from envkit_desktop.widgets.scrolling import BAR, ScrollBar
from envkit_desktop.widgets.widget import PADDING, Chord, Host


@dataclass(slots=True, kw_only=True)
class TextField(Editor):
    """One line; Enter goes to the window's default button."""

    offset: int = 0
    """Pixels scrolled to the right."""

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the frame, the selection, the text and the caret."""
        theme = painter.theme
        self.paint_box(painter, x, y, theme.field if self.enabled else theme.face)
        inner = painter.inside((x + 3, y + 1, x + self.width - 3, y + self.height - 1))
        if inner is None:
            return
        left, high = x + PADDING - self.offset, line_height(theme.type_pixels)
        top = y + (self.height - high) // 2
        _draw_line(inner, left, top, self.text, self.selection)
        if self.focused:
            inner.fill(left + painter.width_of(self.text[: self.cursor]), top, 1, high, theme.ink)

    def index_at(self, host: Host, x: int, y: int) -> int:
        """Return the nearest caret."""
        return _nearest(self.text, x - PADDING + self.offset, host.type_pixels)

    def reveal(self, host: Host) -> None:
        """Scroll to show the caret, without a gap after the text."""
        room = self.width - 2 * PADDING - 1
        caret = text_width(self.text[: self.cursor], host.type_pixels)
        longest = max(0, text_width(self.text, host.type_pixels) - room)
        self.offset = min(longest, max(caret - room, min(self.offset, caret)))


@dataclass(slots=True, kw_only=True)
class TextArea(Editor):
    """Several lines, without wrapping; Enter begins a new one."""

    offset: int = 0
    """Pixels scrolled down."""
    grip: int = -1
    """Pixels from the thumb's top to where it is held; -1 if it is not held."""
    is_locked: bool = False
    """Text can be selected and copied, not changed."""

    has_lines: ClassVar[bool] = True

    def _bar(self, pixels: int) -> ScrollBar:
        lines = self.text.count("\n") + 1
        high = line_height(pixels)
        return ScrollBar(
            length=self.height, content=lines * high + 2 * PADDING, offset=self.offset, step=high
        )

    def is_at_end(self, host: Host) -> bool:
        """Return whether the last line is scrolled into view."""
        return self.offset == self._bar(host.type_pixels).most

    def paint(self, painter: Painter, x: int, y: int) -> None:
        """Draw the visible lines."""
        theme = painter.theme
        self.paint_box(painter, x, y, theme.face if self.is_locked else theme.field)
        bar = self._bar(theme.type_pixels)
        if bar.most:
            bar.paint(painter, x + self.width - BAR, y)
        inner = painter.inside((x + 1, y + 1, x + self.width - BAR, y + self.height - 1))
        if inner is None:
            return
        high, (start, end), at = line_height(theme.type_pixels), self.selection, 0
        for number, line in enumerate(self.text.split("\n")):
            top = y + PADDING + number * high - self.offset
            if top + high > y and top < y + self.height:
                chosen = (max(0, start - at), min(len(line), end - at))
                _draw_line(inner, x + PADDING, top, line, chosen)
                if self.focused and 0 <= self.cursor - at <= len(line):
                    caret = painter.width_of(line[: self.cursor - at])
                    inner.fill(x + PADDING + caret, top, 1, high, theme.ink)
            at += len(line) + 1

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Place the caret, or scroll by the bar."""
        bar = self._bar(host.type_pixels)
        if bar.most and x >= self.width - BAR:
            self.offset = bar.press(y)
            top, high = bar.thumb
            self.grip = y - top if top <= y < top + high else -1
            return
        Editor.press(self, host, x, y, clicks)

    def drag(self, host: Host, x: int, y: int) -> None:
        """Drag the thumb, or select: above the area to the start, below it to the end."""
        if self.grip >= 0:
            self.offset = self._bar(host.type_pixels).drag(y, self.grip)
        elif 0 <= y < self.height:
            Editor.drag(self, host, x, y)
        else:
            self.cursor = 0 if y < 0 else len(self.text)
            self.reveal(host)

    def release(self, host: Host, x: int, y: int) -> None:
        """Let go of the thumb."""
        self.grip = -1

    def replace(self, host: Host, text: str) -> None:
        """Replace the selection with text, unless locked."""
        if not self.is_locked:
            Editor.replace(self, host, text)

    def wheel(self, host: Host, dx: int, dy: int) -> bool:
        """Scroll."""
        before = self.offset
        self.offset = self._bar(host.type_pixels).clamp(self.offset + dy)
        return self.offset != before

    def index_at(self, host: Host, x: int, y: int) -> int:
        """Return the nearest caret."""
        lines = self.text.split("\n")
        row = (y - PADDING + self.offset) // line_height(host.type_pixels)
        row = max(0, min(len(lines) - 1, row))
        before = sum(len(line) + 1 for line in lines[:row])
        return before + _nearest(lines[row], x - PADDING, host.type_pixels)

    def caret_after(self, host: Host, name: str, *, by_word: bool) -> int | None:
        """Move by lines as well; home and end stay on the line."""
        start = self.text.rfind("\n", 0, self.cursor) + 1
        end = self.text.find("\n", self.cursor)
        end = len(self.text) if end < 0 else end
        match name:
            case "home":
                return 0 if by_word else start
            case "end":
                return len(self.text) if by_word else end
            case "up":
                above = self.text.rfind("\n", 0, max(0, start - 1)) + 1
                return min(above + self.cursor - start, start - 1) if start else 0
            case "down":
                below = self.text.find("\n", end + 1)
                below = len(self.text) if below < 0 else below
                return min(end + 1 + self.cursor - start, below)
            case _:
                return Editor.caret_after(self, host, name, by_word=by_word)

    def key(self, host: Host, chord: Chord) -> bool:
        """Start a new line on Enter; handle other keys as every editor."""
        if not chord[0] and chord[1] == "enter":
            self.replace(host, "\n")
            return True
        return Editor.key(self, host, chord)

    def reveal(self, host: Host) -> None:
        """Scroll to show the caret's line."""
        high = line_height(host.type_pixels)
        top = self.text.count("\n", 0, self.cursor) * high
        room = self.height - 2 * PADDING
        self.offset = self._bar(host.type_pixels).clamp(
            max(top + high - room, min(self.offset, top))
        )


def _draw_line(painter: Painter, x: int, y: int, text: str, chosen: tuple[int, int]) -> None:
    theme = painter.theme
    painter.text(x, y, text, theme.ink)
    start, end = chosen
    if start >= end:
        return
    left, right = x + painter.width_of(text[:start]), x + painter.width_of(text[:end])
    high = line_height(theme.type_pixels)
    painter.fill(left, y, right - left, high, theme.accent)
    marked = painter.inside((left, y, right, y + high))
    if marked is not None:
        marked.text(x, y, text, theme.accent_ink)


def _nearest(text: str, x: int, pixels: int) -> int:
    """Return the index whose caret is nearest to x pixels from the start of the line."""
    if x <= 0 or not text:
        return 0
    if len(text) > 400:  # avoids measuring a long line character by character
        return min(len(text), x * len(text) // max(1, text_width(text, pixels)))
    edges = [text_width(prefix, pixels) for prefix in accumulate(text)]
    return min(range(len(text) + 1), key=lambda index: abs((edges[index - 1] if index else 0) - x))
