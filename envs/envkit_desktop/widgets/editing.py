"""Text with a caret and a selection, shared by fields and areas."""

from dataclasses import dataclass
from typing import ClassVar, Final

from envkit_desktop.widgets.widget import Chord, Host, Widget

LONGEST_TEXT: Final = 4000
"""Maximum characters in a field or an area."""


@dataclass(slots=True, kw_only=True)
class Editor(Widget):
    """Text that can be edited. The selection is the text between anchor and cursor."""

    text: str = ""
    cursor: int = 0
    """Index of the character after the caret."""
    anchor: int = 0

    takes_focus: ClassVar[bool] = True
    has_lines: ClassVar[bool] = False

    @property
    def selection(self) -> tuple[int, int]:
        """Start and end of the selection; equal if it is empty."""
        return min(self.cursor, self.anchor), max(self.cursor, self.anchor)

    def replace(self, host: Host, text: str) -> None:
        """Replace the selection with text."""
        start, end = self.selection
        room = LONGEST_TEXT - len(self.text) + (end - start)
        text = text[: max(0, room)]
        if not text and start == end:
            return
        self.text = self.text[:start] + text + self.text[end:]
        self.cursor = self.anchor = start + len(text)
        self.reveal(host)
        host.emit(self, "changed")

    def reveal(self, host: Host) -> None:
        """Scroll to the caret."""

    def index_at(self, host: Host, x: int, y: int) -> int:
        """Return the index of the caret nearest to a place relative to this widget."""
        return 0

    def press(self, host: Host, x: int, y: int, clicks: int) -> None:
        """Place the caret; two clicks select the word, three everything on the line.

        With shift the selection is extended to the place instead.
        """
        index = self.index_at(host, x, y)
        if "shift" in host.held:
            self.cursor = index
        elif clicks == 1:
            self.cursor = self.anchor = index
        elif clicks == 2:
            self.anchor, self.cursor = self._word_at(index)
        else:
            self.anchor = self.text.rfind("\n", 0, index) + 1
            end = self.text.find("\n", index)
            self.cursor = len(self.text) if end < 0 else end
        self.reveal(host)

    def drag(self, host: Host, x: int, y: int) -> None:
        """Select up to the pointer."""
        self.cursor = self.index_at(host, x, y)
        self.reveal(host)

    def write(self, host: Host, text: str) -> bool:
        """Insert printable text; other characters are dropped."""
        kept = "".join(c for c in text if c.isprintable() or (c == "\n" and self.has_lines))
        self.replace(host, kept)
        return True

    def key(self, host: Host, chord: Chord) -> bool:
        """Move, delete, or use the clipboard."""
        modifiers, name = chord
        if modifiers == frozenset({"ctrl"}) and name in _CLIPBOARD:
            self._use_clipboard(host, name)
            return True
        if modifiers <= {"shift", "ctrl"}:
            target = self.caret_after(host, name, by_word="ctrl" in modifiers)
            if target is not None:
                self.cursor = max(0, min(len(self.text), target))
                if "shift" not in modifiers:
                    self.anchor = self.cursor
                self.reveal(host)
                return True
        if not modifiers and name in ("backspace", "delete"):
            self._delete(host, -1 if name == "backspace" else 1)
            return True
        return False

    def caret_after(self, host: Host, name: str, *, by_word: bool) -> int | None:
        """Return where a key moves the caret; None for keys that do not move it."""
        if name in ("left", "right") and self.cursor != self.anchor and not by_word:
            return self.selection[0 if name == "left" else 1]
        match name:
            case "left":
                return self._word_start(self.cursor) if by_word else self.cursor - 1
            case "right":
                return self._word_end(self.cursor) if by_word else self.cursor + 1
            case "home":
                return 0
            case "end":
                return len(self.text)
            case _:
                return None

    def _use_clipboard(self, host: Host, name: str) -> None:
        start, end = self.selection
        if name == "a":
            self.anchor, self.cursor = 0, len(self.text)
        elif name == "v":
            self.write(host, host.clipboard)
        elif start != end:
            host.clipboard = self.text[start:end]
            if name == "x":
                self.replace(host, "")

    def _delete(self, host: Host, direction: int) -> None:
        if self.cursor == self.anchor:
            self.anchor = max(0, min(len(self.text), self.cursor + direction))
        self.replace(host, "")

    def _word_at(self, index: int) -> tuple[int, int]:
        start = end = index
        while start > 0 and self.text[start - 1].isalnum():
            start -= 1
        while end < len(self.text) and self.text[end].isalnum():
            end += 1
        return start, end

    def _word_start(self, index: int) -> int:
        while index > 0 and not self.text[index - 1].isalnum():
            index -= 1
        return self._word_at(index)[0] if index else 0

    def _word_end(self, index: int) -> int:
        while index < len(self.text) and not self.text[index].isalnum():
            index += 1
        return self._word_at(index)[1]


_CLIPBOARD: Final = frozenset("acvx")
