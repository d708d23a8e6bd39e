"""A training row cut into what was sampled and what the environment said.

A row of envkit's projections knows its segments of the ledger. A trainer's sample gets each reply
together with what the server reported about it.
"""

from dataclasses import dataclass
from typing import Any

from envkit.errors import LedgerFault
from envkit.trajectory import Row, Segment, SegmentKind
from envkit_slime.engine import META


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


def pieces_of(row: Row) -> tuple[Piece, ...]:
    """Return the pieces of a row of `whole_row` or `step_rows`, in order; none for a placeholder.

    Raises:
        LedgerFault: `merge_rows` joined the row, which no longer knows its segments.
    """
    if sum(len(segment.train_ids) for segment in row.segments) == len(row.response_ids):
        return tuple(_piece(segment) for segment in row.segments)
    if row.is_placeholder:
        return ()
    raise LedgerFault(
        "a row of merge_rows cannot be cut at its segments; use step_rows(merge=True)"
    )


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
