"""The searchable text of a run in memory, for searches of all episodes at once."""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from envkit.viewer.search import Piece

BEFORE: Final = 24
"""Characters shown before a hit."""
AFTER: Final = 40
"""Characters shown after a hit."""
MAX_BYTES: Final = 96 << 20
"""So much text of one run is searched, in lower case and as it is written together."""
_END: Final = b"\xff"
"""Ends a piece; no UTF-8 text holds it, so no hit reaches from one piece into the next."""


class SearchText:
    """Text of many episodes, one after another.

    Searching a few large buffers is much faster than searching 10,000 lists of strings: a hit costs
    a binary search, and an episode without one costs nothing of its own.
    """

    def __init__(self) -> None:
        """Start without any text."""
        self._lower = bytearray()
        self._shown = bytearray()
        """The same places as in `_lower`, in the original case."""
        self._starts = array("Q")
        self._numbers = array("Q")
        """Of each piece, its episode."""
        self._wheres: list[str] = []
        self.left_out = 0
        """Episodes without searchable text, because the run has too much of it."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self._lower) + len(self._shown) + 24 * len(self._starts)

    def add(self, number: int, pieces: Sequence[Piece]) -> None:
        """Take the text of one episode.

        Args:
            number: Higher than that of any episode before.
            pieces: As `search_pieces` returns them.
        """
        if self.size > MAX_BYTES:
            self.left_out += 1
            return
        for where, text in pieces:
            lower, shown = _utf8(text.lower()), _utf8(text)
            self._starts.append(len(self._lower))
            self._numbers.append(number)
            self._wheres.append(sys.intern(where))
            self._lower += lower + _END
            self._shown += (shown if len(shown) == len(lower) else lower) + _END

    def find(self, query: str) -> dict[int, dict[str, Any]]:
        """Return the first place of a text in each episode that holds it, ignoring case.

        Args:
            query: What to look for; surrounding space is ignored. An empty one finds nothing.

        Returns:
            By number: "where", and the text "before", "hit" and "after".
        """
        wanted = _utf8(query.strip().lower())
        found: dict[int, dict[str, Any]] = {}
        at = self._lower.find(wanted) if wanted else -1
        while at >= 0:
            piece = bisect_right(self._starts, at) - 1
            found[self._numbers[piece]] = self._hit(piece, at, at + len(wanted))
            following = bisect_right(self._numbers, self._numbers[piece], lo=piece)
            if following == len(self._starts):
                break
            at = self._lower.find(wanted, self._starts[following])
        return found

    def _hit(self, piece: int, at: int, end: int) -> dict[str, Any]:
        start = self._starts[piece]
        from_ = max(start, at - 4 * BEFORE)  # a character has up to four bytes
        before = _text(self._shown[from_:at])
        after = self._shown[end : end + 4 * AFTER].partition(_END)[0]
        is_cut = from_ > start or len(before) > BEFORE
        return {
            "where": self._wheres[piece],
            "before": ("…" if is_cut else "") + before[-BEFORE:],
            "hit": _text(self._shown[at:end]),
            "after": _text(after)[:AFTER],
        }


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # lone surrogates


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "ignore")  # a character may be cut at either side
