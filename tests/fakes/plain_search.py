"""The search of the viewer without an index: the reference for its fast implementations."""

from collections.abc import Sequence
from typing import Any

from envkit.viewer.search import AFTER, BEFORE, Piece


def find(pieces: Sequence[Piece], query: str) -> dict[str, Any] | None:
    """Return the first place of a text, ignoring case; None if the episode does not hold it.

    Args:
        pieces: As `search_pieces` returns them.
        query: What to look for; surrounding space is ignored.

    Returns:
        JSON data: "where", and the text "before", "hit" and "after".
    """
    wanted = query.strip().lower()
    for where, text in pieces:
        lowered = text.lower()
        at = lowered.find(wanted)
        if at >= 0:
            shown = text if len(text) == len(lowered) else lowered
            end = at + len(wanted)
            start = max(0, at - BEFORE)
            return {
                "where": where,
                "before": ("…" if start else "") + shown[start:at],
                "hit": shown[at:end],
                "after": shown[end : end + AFTER],
            }
    return None
