"""The searchable texts of episodes, and of a whole run in memory to search them all at once."""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

from envkit.messages import text_of
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.rows import title_of

Piece = tuple[str, str]
"""The place of a text, such as "reply 3", and the text."""
_MAX_CHARACTERS: Final = 200_000
"""Maximum number of searchable characters per episode."""
BEFORE: Final = 24
"""Characters shown before a hit."""
AFTER: Final = 40
"""Characters shown after a hit."""
MAX_BYTES: Final = 96 << 20
"""Memory limit for the text of one run, in lowercase and original case together."""
_END: Final = b"\xff"
"""Ends a piece. It never occurs in UTF-8 text, so no hit spans two pieces."""


def search_pieces(trajectory: Trajectory) -> list[Piece]:
    """Return the searchable texts of an episode, in the order of the conversation.

    The system prompt is left out: it is the same in every episode, so its words would match all.
    """
    return list(_limited(_pieces(trajectory)))


def _pieces(trajectory: Trajectory) -> Iterator[Piece]:
    yield "task", title_of(trajectory)
    family = trajectory.task.get("family")
    for where, text in (
        ("family", family if isinstance(family, str) else ""),
        ("episode", trajectory.episode_id),
        ("group", trajectory.group_id or ""),
        ("fault", "" if trajectory.fault is None else trajectory.fault.message),
    ):
        if text:
            yield where, text
    turn = 1
    for entry in trajectory.messages:
        role, text = entry["role"], text_of(entry)
        if role == "assistant":
            calls = entry.get("tool_calls")
            yield f"reply {turn}", text if not calls else f"{text} {calls}"
            turn += 1
        elif role != "system" and text:
            yield f"{'tool' if role == 'tool' else 'seen'}, turn {turn}", text


def _limited(pieces: Iterator[Piece]) -> Iterator[Piece]:
    left = _MAX_CHARACTERS
    for where, text in pieces:
        if left <= 0:
            return
        yield where, text[:left]
        left -= len(text)


class SearchText:
    """The concatenated text of many episodes.

    Searching one large buffer is much faster than searching 10,000 lists of strings: each hit costs
    a binary search, and an episode without hits costs nothing extra.
    """

    def __init__(self) -> None:
        """Start with no text."""
        self._lower = bytearray()
        self._shown = bytearray()
        """Text in the original case, at the same offsets as in `_lower`."""
        self._starts = array("Q")
        self._numbers = array("Q")
        """The episode of each piece."""
        self._wheres: list[str] = []
        self.left_out = 0
        """Episodes without searchable text, because the run has too much of it."""

    @property
    def size(self) -> int:
        """Memory use in bytes."""
        return len(self._lower) + len(self._shown) + 24 * len(self._starts)

    def add(self, number: int, pieces: Sequence[Piece]) -> None:
        """Add the text of one episode.

        Args:
            number: Number of the episode; higher than any before.
            pieces: As returned by `search_pieces`.
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
        """Return the first hit in each episode, ignoring case.

        Args:
            query: The text to find, without surrounding space; an empty query finds nothing.

        Returns:
            By episode number: "where", and the text "before", "hit" and "after".
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
    return data.decode("utf-8", "ignore")  # a character may be cut at either end
