"""What finished episodes add to the end of their run, kept in a file for a resumed run.

Each entry is bound to the bytes of the episode's line by a hash, so an entry of a line that was
changed, moved to another file or replaced is never found. An entry that is missing, cut off or
damaged costs only time: it is computed again from the line.
"""

import contextlib
import hashlib
import os
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

import envkit
from envkit.closing import Closing
from envkit.metrics.facts import EpisodeFacts
from envkit.open_files import NO_FOLLOW, OPENS_AS_BYTES, open_regular
from envkit.trajectory.verify import RowCheck
from envkit.viewer.rows import EpisodeRow
from envkit.viewer.run import RowFacts
from envkit.viewer.search import Piece

DIGEST_FILE: Final = "digest.bin"
_HASH_BYTES: Final = 16
_HEAD_BYTES: Final = 2 * _HASH_BYTES + 4
"""Hash of the line, hash of the entry, and its length."""
_MAX_BYTES: Final = 64 << 20
"""Longer entries are computed again: a few bytes of a hostile file can expand to any size."""
_LEVEL: Final = 1
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
"""Opening a named pipe then fails instead of waiting for a reader."""
_WRITING: Final = os.O_WRONLY | os.O_CREAT | NO_FOLLOW | OPENS_AS_BYTES | _NO_WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPage:
    """The page of an episode, with its images by hash."""

    packed: str
    pieces: list[Piece]
    images: tuple[str, ...]
    token_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestEntry:
    """What one record adds to the metrics, the report and the check of its run."""

    index: RowFacts
    check: RowCheck
    page: KeptPage | None
    """None if the report does not list it."""


_NAMES: Final = " ".join(
    [
        *(one.name for one in fields(KeptPage)),
        *RowCheck.__struct_fields__,
        *EpisodeRow.__struct_fields__,
        *EpisodeFacts.__struct_fields__,
        *RowFacts.__struct_fields__,
        *(one.name for one in fields(DigestEntry)),
    ]
).encode()
"""Every entry repeats them, so they are known to its compression: a quarter of the size."""


def _signature() -> bytes:
    """Return the first line of the file; another version's entries may have another meaning."""
    key = hashlib.sha256(envkit.__version__.encode() + _NAMES).hexdigest()[:16]
    return f"envkit digest {key}\n".encode()


class DigestFile(Closing):
    """The entries of one run. A failure to write one is not an error."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        """Read where the entries are.

        Args:
            path: The file; the first entry creates it.
            is_new: Drop the entries that it has.
        """
        self._path = path
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), _decoder()
        self._places: dict[bytes, tuple[int, int]] = {}
        """Place and length of each entry, by the hash of its line."""
        self._stream: BinaryIO | None = None
        self._descriptor: int | None = None
        self._end = 0
        """Place after the last sound entry."""
        self._is_off = False
        if not is_new:
            with contextlib.suppress(OSError):
                self._stream = open_regular(path, follow=False)
                self._scan(self._stream)

    def find(self, line: bytes) -> DigestEntry | None:
        """Return the entry of a line; None without one.

        Args:
            line: The line with its newline.
        """
        place = self._places.get(_hash(line))
        if place is None or self._stream is None:
            return None
        try:
            self._stream.seek(place[0])
            data = self._stream.read(place[1])
            plain = zlib.decompressobj(zdict=_NAMES).decompress(data, _MAX_BYTES)
            return self._decoder.decode(plain)
        except (OSError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def add(self, line: bytes, entry: DigestEntry) -> None:
        """Append the entry of a line, unless it cannot be written.

        Args:
            line: The line with its newline.
            entry: Its entry.
        """
        if self._is_off:
            return
        try:
            plain = self._encoder.encode(entry)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            return  # a lone surrogate, an integer beyond 64 bits, or a type of another library
        packer = zlib.compressobj(_LEVEL, zdict=_NAMES)
        data = packer.compress(plain) + packer.flush()
        head = _hash(line) + _hash(data) + len(data).to_bytes(4, "big")
        try:
            self._append(head + data)
        except OSError:  # a full disk must not stop a run for what can be computed again
            self._is_off = True

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _scan(self, stream: BinaryIO) -> None:
        signature = _signature()
        if stream.read(len(signature)) != signature:
            return
        self._end = len(signature)
        while len(head := stream.read(_HEAD_BYTES)) == _HEAD_BYTES:
            size = int.from_bytes(head[-4:], "big")
            data = stream.read(size)
            if len(data) != size or _hash(data) != head[_HASH_BYTES : 2 * _HASH_BYTES]:
                return
            self._places[head[:_HASH_BYTES]] = (self._end + _HEAD_BYTES, size)
            self._end += _HEAD_BYTES + size

    def _append(self, data: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, _WRITING, 0o666)
            # A process that was killed may have cut its last entry.
            os.ftruncate(self._descriptor, self._end)
            if not self._end:
                data = _signature() + data
        os.lseek(self._descriptor, self._end, os.SEEK_SET)
        while data:
            written = os.write(self._descriptor, data)
            self._end += written
            data = data[written:]


def _decoder() -> "msgspec.msgpack.Decoder[DigestEntry]":
    return msgspec.msgpack.Decoder(DigestEntry)


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()
