"""The searchable texts of an episode."""

from collections.abc import Iterator
from typing import Final

from envkit.messages import text_of
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.rows import title_of

Piece = tuple[str, str]
"""The place of a text, such as "reply 3", and the text."""
_MAX_CHARACTERS: Final = 200_000
"""Maximum number of searchable characters per episode."""


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
