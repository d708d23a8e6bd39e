"""Whether images and placeholder tokens of a ledger add up, judged from the ids alone.

A stored trajectory names no placeholder token. It is found again: a wire id that occurs once for
every image of every segment and nowhere else, and whose expansion (most models repeat it, some
write rows and markers) turns the wire ids into the train ids. Where no id fits, images and
placeholders do not agree.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from envkit.trajectory.segment import Segment


def check_placeholders(segments: Sequence[Segment]) -> str | None:
    """Return what is wrong with images and placeholders, or None.

    Args:
        segments: Of one trajectory, in order.
    """
    candidates: set[int] | None = None
    elsewhere: set[int] = set()
    for index, segment in enumerate(segments):
        if not segment.images:
            if segment.wire_ids != segment.train_ids:
                return f"segment {index} has no image, but its wire ids and train ids differ"
            elsewhere.update(segment.wire_ids)
            continue
        fitting = _fitting(segment)
        candidates = fitting if candidates is None else candidates & fitting
        if not candidates:
            return (
                f"segment {index} has {len(segment.images)} images, but no token that stands once "
                "for each of them and expands its wire ids to its train ids"
            )
    if candidates is not None and not candidates - elsewhere:
        return "the placeholder token occurs in a segment without images"
    return None


def _fitting(segment: Segment) -> set[int]:
    """Return the ids that explain the segment; only those that repeat themselves if any does."""
    wire, train = segment.wire_ids, segment.train_ids
    occurrences = Counter(wire)
    possible = {
        token
        for token in wire[: _shared_prefix(wire, train) + 1]
        if occurrences[token] == len(segment.images)
    }
    if wire == train:
        return possible
    trained, grown = Counter(train), len(train) - len(wire)
    repeated = {
        token
        for token in possible
        # Counting first: comparing is slow, and a long prompt has hundreds of candidates.
        if trained[token] - occurrences[token] == grown and _without_runs(token, wire, train)
    }
    return repeated or {token for token in possible if _expands(token, wire, train)}


def _without_runs(token: int, wire: Sequence[int], train: Sequence[int]) -> bool:
    """Whether wire and train are equal once runs of `token` count as one."""

    def collapse(ids: Sequence[int]) -> list[int]:
        before = chain((None,), ids)
        return [i for i, last in zip(ids, before, strict=False) if i != token or last != token]

    return collapse(wire) == collapse(train)


def _shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(left), len(right)))


def _expands(token: int, wire: tuple[int, ...], train: tuple[int, ...]) -> bool:
    """Whether replacing each `token` of wire by one or more ids can give train."""
    chunks = _split(wire, token)
    if train[: len(chunks[0])] != chunks[0]:
        return False
    position = len(chunks[0])
    for chunk in chunks[1:-1]:
        found = _find(chunk, train, position + 1)
        if found < 0:
            return False
        position = found + len(chunk)
    last = chunks[-1]
    return len(train) - len(last) > position and train[len(train) - len(last) :] == last


def _split(ids: tuple[int, ...], token: int) -> list[tuple[int, ...]]:
    cuts = [n for n, value in enumerate(ids) if value == token]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(ids)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True)]


def _find(chunk: tuple[int, ...], ids: tuple[int, ...], start: int) -> int:
    """Return where the chunk first stands at or behind `start`; -1 where it does not."""
    if not chunk:
        return start if start <= len(ids) else -1
    size = len(chunk)
    while True:
        try:
            start = ids.index(chunk[0], start)
        except ValueError:
            return -1
        if ids[start : start + size] == chunk:
            return start
        start += 1
