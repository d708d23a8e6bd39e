"""The episodes that a sink has, kept in a file so that resumed runs deliver each one once."""

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from envkit.closing import Closing
from envkit.files import storage_errors
from envkit.open_files import NO_FOLLOW, OPENS_AS_BYTES, open_regular

_KEY: Final = re.compile(rb"[0-9a-f]{16}")
_METRICS: Final = b"null"
_APPENDING: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_FOLLOW | OPENS_AS_BYTES


class Received(Closing):
    """A record of what one sink has received, over all commands that wrote to it.

    The file has a key in its first line, then a line per episode and per call of `write_metrics`.
    A delivery is recorded once the sink has taken it: if the process is killed in between, the
    sink may get that episode again.
    """

    def __init__(self, file: Path, *, is_new: bool = False) -> None:
        """Read the record.

        Args:
            file: The record; the first delivery creates it.
            is_new: Ignore a record that exists; the first delivery replaces it.

        Raises:
            StorageError: The file cannot be read, or is a symbolic link.
        """
        self._file, self._descriptor = file, None
        text = b""
        with (
            storage_errors(f"cannot read {file}"),
            suppress(FileNotFoundError, NotADirectoryError),
            open_regular(file, follow=False) as stream,
        ):
            text = stream.read()
        first, *lines = text.split(b"\n")
        self._is_new = is_new or _KEY.fullmatch(first) is None
        if self._is_new:
            first, lines = secrets.token_hex(8).encode(), []
        self.key: Final = first.decode()
        """Identifies what the sink writes, such as a run of W&B; 16 hexadecimal digits."""
        # A process that was killed may have cut its last line.
        self._start = first + b"\n" if self._is_new else b"" if lines[-1:] == [b""] else b"\n"
        lines = [line for line in lines if line]
        self._known = {line for line in lines if line != _METRICS}
        self.count = len(self._known)
        """Number of received episodes."""
        self.has_metrics = bool(lines) and lines[-1] == _METRICS
        """Whether the metrics were written after the last episode."""

    def __contains__(self, episode_id: str) -> bool:
        """Return whether an earlier command delivered the episode."""
        return _line(episode_id) in self._known

    def add(self, episode_id: str) -> None:
        """Record an episode.

        Raises:
            StorageError: It cannot be written.
        """
        self._append(_line(episode_id))
        self.count += 1
        self.has_metrics = False

    def add_metrics(self) -> None:
        """Record that the metrics of the episodes so far were written.

        Raises:
            StorageError: It cannot be written.
        """
        self._append(_METRICS)
        self.has_metrics = True

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: bytes) -> None:
        with storage_errors(f"cannot write {self._file}"):
            if self._descriptor is None:
                flags = _APPENDING | (os.O_TRUNC if self._is_new else 0)
                self._descriptor = os.open(self._file, flags, 0o666)
                self._is_new = False
            os.write(self._descriptor, self._start + line + b"\n")
            self._start = b""


def _line(episode_id: str) -> bytes:
    return json.dumps(episode_id).encode()
