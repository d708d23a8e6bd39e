"""A training row cut into what was sampled and what the environment said.

Rows come from envkit's projections; this says which segments of the ledger a row consists of, so
that a trainer's sample gets each reply together with what the server reported about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envkit.errors import LedgerFault
from envkit.trajectory import Row, Segment, SegmentKind, Trajectory
from envkit_slime.relay import META


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One run of response tokens."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_sampled: bool
    meta_info: dict[str, Any] | None
    """What the server said about a sampled run, in SGLang's words; None for the environment's."""
    wire_ids: tuple[int, ...]
    """One placeholder per image, for readable text."""


def pieces_of(trajectory: Trajectory, row: Row) -> tuple[Piece, ...]:
    """Return the pieces of a row, in order; none for a placeholder.

    Raises:
        LedgerFault: The row is not one of this trajectory's.
    """
    if row.is_placeholder:
        return ()
    for sequence in trajectory.sequences():
        found = _segments(sequence, row)
        if found:
            return tuple(_piece(segment) for segment in found)
    raise LedgerFault("this row is none of the trajectory's, so it cannot be cut at its segments")


def _segments(sequence: Sequence[Segment], row: Row) -> list[Segment]:
    """Return the segments of the row's response, or none if it is not in this sequence."""
    found: list[Segment] = []
    start = length = 0
    for segment in sequence:
        if start >= len(row.prompt_ids) and length < len(row.response_ids):
            found.append(segment)
            length += len(segment.train_ids)
        start += len(segment.train_ids)
    ids = [identity for segment in found for identity in segment.train_ids]
    if not found or found[0].turn != row.turns[0] or tuple(ids) != row.response_ids:
        return []
    return found


def _piece(segment: Segment) -> Piece:
    is_sampled = segment.kind is SegmentKind.MODEL
    return Piece(
        tokens=segment.train_ids,
        logprobs=segment.logprobs,
        is_sampled=is_sampled,
        meta_info=_meta_info(segment) if is_sampled else None,
        wire_ids=segment.wire_ids,
    )


def _meta_info(segment: Segment) -> dict[str, Any]:
    """Return `meta_info` as slime and miles read it."""
    meta = dict(segment.extras)
    counts: dict[str, Any] = meta.pop(META, {})
    meta |= counts
    meta["finish_reason"] = {"type": segment.finish_reason}
    if segment.weight_version is not None:
        meta["weight_version"] = segment.weight_version
    return meta
