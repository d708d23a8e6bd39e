"""Reads each line once from a file that another process may be appending to."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

MAX_LINE_BYTES: Final = 256 << 20
"""Longer lines are skipped."""
_SAMPLE: Final = 256
"""Bytes compared to detect that a file was replaced."""
_LOCKS: Final = Path("/proc/locks")
"""Linux lists the locks of all processes on this machine here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """One line of the file."""

    number: int
    """Counted from 1, empty lines included."""
    start: int
    """Byte offset of its start."""
    data: bytes | None
    """The line with its newline; None if it is too long."""


class GrowingFile:
    """Tracks how far a file was read, and detects that it was replaced."""

    def __init__(self) -> None:
        """Start before the first line."""
        self.end: int = 0
        """Byte offset after the last line read."""
        self.count = 0
        """Number of lines read."""
        self.is_behind = True
        """Whether the file may have complete lines that were not read yet."""
        self._size = 0
        self._stamp: tuple[int, ...] = ()
        self._head = self._tail = b""
        self._is_skipping = False

    @property
    def is_cut(self) -> bool:
        """Whether the file ended with an incomplete line when it was last read."""
        return not self.is_behind and self._size > self.end

    @property
    def share(self) -> float:
        """Share of the file's bytes that were read; 1 for an empty file."""
        return min(1.0, self.end / self._size) if self._size else 1.0

    def has_changed(self, found: os.stat_result) -> bool:
        """Whether there may be something new to read.

        Args:
            found: Status of the open file.
        """
        return self.is_behind or stamp_of(found) != self._stamp

    def is_replaced(self, stream: BinaryIO, found: os.stat_result) -> bool:
        """Whether the file no longer starts with the lines that were read.

        Args:
            stream: The open file.
            found: Its status.
        """
        if not self._stamp:
            return False
        if self._stamp[:2] != (found.st_dev, found.st_ino) or found.st_size < self.end:
            return True
        if self._tail and not self._tail.endswith(b"\n") and found.st_size > self.end:
            return True  # the last line got its newline, and maybe more text
        stream.seek(0)
        # A run that is played again with --overwrite keeps its file and may already be as long.
        if stream.read(len(self._head)) != self._head:
            return True
        stream.seek(self.end - len(self._tail))
        return stream.read(len(self._tail)) != self._tail

    def read(self, stream: BinaryIO, found: os.stat_result, budget_s: float) -> Iterator[FileLine]:
        """Yield unread lines, without an incomplete last one.

        Args:
            stream: The open file.
            found: Its status.
            budget_s: Approximate time to read, in seconds.
        """
        self._stamp, self._size = stamp_of(found), found.st_size
        self.is_behind = True
        deadline = time.monotonic() + budget_s
        stream.seek(self.end)
        while self.is_behind and time.monotonic() < deadline:
            data = stream.readline(MAX_LINE_BYTES)
            is_piece = len(data) == MAX_LINE_BYTES and not data.endswith(b"\n")
            if not is_piece and not data.endswith(b"\n"):
                self.is_behind = False
                if not _is_json(data):  # empty, or a line that is still being written
                    return
            start, self.end = self.end, self.end + len(data)
            self._head = self._head or data[:_SAMPLE]
            self._tail = data[-_SAMPLE:]
            was_skipping, self._is_skipping = self._is_skipping, is_piece
            if was_skipping:
                continue
            self.count += 1
            yield FileLine(number=self.count, start=start, data=None if is_piece else data)


def stamp_of(found: os.stat_result) -> tuple[int, ...]:
    """Return a value that changes whenever the file is written or replaced."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def locked_files() -> frozenset[str]:
    """Return the files that processes of this machine have locked for writing, for `is_locked`.

    Empty if the system does not list its locks.
    """
    # Trying to lock a file instead could make a writer fail that starts at this moment.
    try:
        lines = _LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return frozenset()
    words = (set(line.split()) for line in lines)
    return frozenset[str]().union(*(one for one in words if {"FLOCK", "WRITE"} <= one))


def is_locked(found: os.stat_result, locked: frozenset[str] | None = None) -> bool:
    """Return whether another process has locked the file for writing.

    Args:
        found: Status of the file.
        locked: The locked files, if they were listed already: listing them takes milliseconds.
    """
    device = found.st_dev
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{found.st_ino}"
    return place in (locked_files() if locked is None else locked)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
