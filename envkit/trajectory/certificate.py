"""A proof that a ledger is unchanged since it was recorded: a hash chain over its segments.

Link n covers everything up to segment n, so the first link that differs identifies the first
changed segment. The seal covers the number of links and how the episode ended, so a shortened
ledger has a different seal. Anyone can recompute it from a file, without a model.

The chain detects accidents and careless edits. It is not a signature: whoever rewrites the ledger
can also rewrite the certificate.
"""

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from envkit.trajectory.columns import Packed
from envkit.trajectory.plain import to_plain
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory

ALGORITHM: Final = "sha256-chain-1"
_CHUNK: Final = 1 << 14
"""Values that one call converts, which holds the GIL for about a millisecond."""
_INTEGER: Final = np.dtype("<i8")
_FLOAT: Final = np.dtype("<f8")
_IMPLIED: Final = (bytes(8), bytes((1, *bytes(7))))
"""One value of a column that is stored as None: 0 (also the float), and 1 in a model's mask."""
_ENCODER: Final = json.JSONEncoder(sort_keys=True)
_LENGTH: Final = struct.Struct("<Q").pack
_DOUBLE: Final = struct.Struct("<d").pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The hash chain of one trajectory."""

    algorithm: str = ALGORITHM
    links: tuple[str, ...]
    """Hexadecimal SHA-256 after the header (first) and after each segment."""
    seal: str
    """SHA-256 of the last link, the segment count, the stop reason, the reward and the branches."""

    def difference(self, other: "Certificate") -> str | None:
        """Return what differs from another certificate; None if they are equal.

        Args:
            other: Recomputed from the current ledger, while this one was recorded.
        """
        if self == other:
            return None
        if self.algorithm != other.algorithm:
            return f"its certificate uses {self.algorithm!r}, not {other.algorithm!r}"
        for index, (recorded, found) in enumerate(zip(self.links, other.links, strict=False)):
            if recorded != found:
                return "the task or the episode's identity" if index == 0 else _segment(index - 1)
        if len(self.links) != len(other.links):
            return f"{len(self.links) - 1} segments were recorded, got {len(other.links) - 1}"
        return "the stop reason, the reward, or where the branches start"


def certify(trajectory: Trajectory) -> Certificate:
    """Return the certificate of a trajectory.

    It covers the episode id, environment, seed and task; the kind, turn, ids, mask,
    log-probabilities, image hashes, reward, weight version and finish reason of every segment;
    where branches start; and how the episode ended. It does not cover timings, messages or
    metadata.

    Raises:
        StorageError: The task is not JSON data.
    """
    link = _header(trajectory)
    links = [link]
    for segment in trajectory.segments:
        link = _hash(link, *_columns(segment))
        links.append(link)
    end = _hash(
        link,
        _text(str(len(trajectory.segments))),
        _text(trajectory.stop_reason.value),
        _number(trajectory.reward),
        *map(_text, _tree(trajectory)),
    )
    return Certificate(links=tuple(one.hex() for one in links), seal=end.hex())


def _tree(trajectory: Trajectory) -> Iterator[str]:
    """Yield where branches and forks start; nothing for a linear episode, as in older versions."""
    for one in trajectory.branches:
        yield f"branch {one.segment} {one.parent} {one.at} {one.reason}"
    origin = trajectory.origin
    if origin is not None:
        yield f"origin {origin.segments} {origin.turns} {origin.root} {origin.episode_id}"


def _segment(index: int) -> str:
    return f"segment {index} (counted from 0)"


def _header(trajectory: Trajectory) -> bytes:
    task = to_plain(trajectory.task, "task", lambda image: None)
    return _hash(
        ALGORITHM.encode(),
        _text(trajectory.episode_id),
        _text(trajectory.env_id),
        _text("" if trajectory.seed is None else str(trajectory.seed)),
        _text(_ENCODER.encode(task)),
    )


def _columns(segment: Segment) -> tuple[bytes, ...]:
    ids, train, mask, logprobs = segment.packed()
    count, version, finish = segment.token_count, segment.weight_version, segment.finish_reason
    wire = _integers(ids)
    usual = _IMPLIED[segment.kind is SegmentKind.MODEL]
    return (
        _word(segment.kind.value),
        _word(str(segment.turn)),
        wire,
        wire if train is None else _integers(train),
        _framed(usual * count) if mask is None else _integers(mask),
        _framed(_IMPLIED[False] * count) if logprobs is None else _floats(logprobs),
        _text(",".join([one.sha256 for one in segment.images])) if segment.images else _EMPTY,
        _number(segment.reward),
        _word("none" if version is None else f"={version}"),
        _word("none" if finish is None else f"={finish}"),
    )


def _integers(column: Packed) -> bytes:
    return _framed(_in_chunks(column, _integers_of))


def _integers_of(part: Packed) -> bytes:
    return part.astype(_INTEGER).tobytes()


def _floats(column: Packed) -> bytes:
    return _framed(_in_chunks(column, _floats_of))


def _floats_of(part: Packed) -> bytes:
    array = part.astype(_FLOAT)
    array[np.isnan(array)] = np.nan  # one bit pattern for every NaN
    return array.tobytes()


def _in_chunks(column: Packed, convert: Callable[[Packed], bytes]) -> bytes:
    if len(column) <= _CHUNK:
        return convert(column)
    starts = range(0, len(column), _CHUNK)
    return b"".join(convert(column[start : start + _CHUNK]) for start in starts)


def _number(value: float | None) -> bytes:
    if value is None:
        return _NONE
    number = float(value)
    return _framed(_DOUBLE(math.nan if math.isnan(number) else number))


def _hash(*columns: bytes) -> bytes:
    return hashlib.sha256(b"".join(columns)).digest()


def _text(text: str) -> bytes:
    return _framed(_utf8(text))


_word: Final = lru_cache(_text)


def _framed(column: bytes) -> bytes:
    """Put the length before a column, so different lists of columns never give the same bytes."""
    return _LENGTH(len(column)) + column


_EMPTY: Final = _framed(b"")
_NONE: Final = _framed(b"none")


def _utf8(text: str) -> bytes:
    """Encode text as it reads back from a file: adjacent surrogate halves form one character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "surrogatepass")
