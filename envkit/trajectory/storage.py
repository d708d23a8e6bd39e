"""Trajectory files: one JSON object a line, and every image once beside them.

A run directory holds `trajectories.jsonl` and `images/<sha256>.png`. A line is written by one call
and ends with a newline, so a writer that is killed leaves at most one cut line, at the end, which
readers name and `TrajectoryWriter(mode="append")` removes. A file appears under its name only when
it is whole.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np

from envkit.closing import Closing
from envkit.errors import ConfigurationError, EnvkitError, StorageError
from envkit.images import Image
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.files import append_whole, repair_tail, replace_file, storage_errors
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.record import decode, encode
from envkit.trajectory.trajectory import Trajectory

FILE_NAME: Final = "trajectories.jsonl"

Mode = Literal["create", "append", "overwrite"]
Source = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """One line of a trajectory file."""

    line: int
    """Counted from 1."""
    trajectory: Trajectory | None
    """None when the line cannot be read."""
    certificate: Certificate | None
    """As recorded, not compared with the trajectory; None when the line cannot be read."""
    error: StorageError | None = None
    """Why the line cannot be read."""
    is_cut: bool = False
    """The last line has no end: its writer was stopped, or the disk was full."""


class TrajectoryWriter(Closing):
    """Appends finished trajectories to a run directory.

    Every trajectory is on its way to the disk when `write` returns: a crash of this process loses
    none. A write that fails takes its partial line back and raises; what was written before stays.
    One process writes at a time; threads of it may share the writer.
    """

    def __init__(self, directory: Source, *, mode: Mode = "create", durable: bool = False) -> None:
        """Open the directory, making it where it is missing.

        Args:
            directory: The run directory.
            mode: "create" refuses a directory that holds trajectories; "append" goes on behind
                them; "overwrite" drops them.
            durable: Also wait until the disk has each line (fsync), which survives a power cut and
                costs a few milliseconds a line.

        Raises:
            StorageError: The directory cannot be written, or holds trajectories already.
            ConfigurationError: An unknown mode.
        """
        if mode not in ("create", "append", "overwrite"):
            raise ConfigurationError(f"mode must be create, append or overwrite, got {mode!r}")
        self.path: Final = Path(directory) / FILE_NAME
        self.cut_bytes = 0
        """Length of the unfinished line that append mode removed; 0 when the file was whole."""
        self._images = ImageFolder(self.path.parent / IMAGE_FOLDER)
        self._durable = durable
        self._lock = threading.Lock()
        with storage_errors(f"cannot open {self.path} for writing"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if mode == "create" and self.path.is_file() and self.path.stat().st_size:
                raise StorageError(
                    f"{self.path} holds trajectories already; name another directory, or ask for "
                    "mode 'append' or 'overwrite'"
                )
            if mode == "append":
                self.cut_bytes = repair_tail(self.path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._descriptor: int | None = os.open(
                self.path, flags | (os.O_TRUNC if mode == "overwrite" else 0), 0o666
            )

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory, its new images first.

        Raises:
            StorageError: The disk is full or gone, a value cannot be stored, or the writer is
                closed. The file is as it was before the call.
        """
        line = _line(trajectory, lambda image: self._images.write(image, durable=self._durable))
        with self._lock:
            if self._descriptor is None:
                raise StorageError(f"the writer of {self.path} is closed")
            with storage_errors(f"cannot write to {self.path}; what it holds is kept"):
                append_whole(self._descriptor, line)
                if self._durable:
                    os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def save(trajectories: Trajectory | Iterable[Trajectory], path: Source) -> None:
    """Write a trajectory file, replacing one of that name when it is whole.

    Args:
        trajectories: One, or any number.
        path: The file, such as "run.jsonl"; its images go into `images/` beside it.

    Raises:
        StorageError: The file cannot be written; one that was there stays as it was.
    """
    target = Path(path)
    rows = (trajectories,) if isinstance(trajectories, Trajectory) else trajectories
    images = ImageFolder(target.parent / IMAGE_FOLDER)
    with storage_errors(f"cannot write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, (_line(row, images.write) for row in rows), durable=True)


def load(path: Source) -> tuple[Trajectory, ...]:
    """Read a trajectory file or a run directory whole.

    Raises:
        StorageError: See `read_trajectories`.
    """
    return tuple(read_trajectories(path))


def read_trajectories(path: Source, *, skip_cut_line: bool = False) -> Iterator[Trajectory]:
    """Yield the trajectories of a file or a run directory, one at a time.

    Images are read from their files on first use; a missing one raises a StorageError then.

    Args:
        path: The file, or the directory that holds `trajectories.jsonl`.
        skip_cut_line: Leave out an unfinished last line instead of raising behind the others.

    Raises:
        StorageError: No such file, a newer schema, or a line that cannot be read.
    """
    for stored in read_lines(path):
        if stored.trajectory is not None:
            yield stored.trajectory
        elif stored.error is not None and not (stored.is_cut and skip_cut_line):
            raise stored.error


def read_lines(path: Source) -> Iterator[StoredLine]:
    """Yield every line of a file or a run directory, readable or not; empty lines are skipped.

    Raises:
        StorageError: The file itself cannot be read.
    """
    file = trajectory_file(path)
    images = ImageFolder(file.parent / IMAGE_FOLDER)
    with storage_errors(f"cannot read {file}"), file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _read_line(file, number, line, images)


def trajectory_file(path: Source) -> Path:
    """Return the trajectory file that a path names, itself or the one in a run directory.

    Raises:
        StorageError: There is none.
    """
    given = Path(path)
    file = given / FILE_NAME if given.is_dir() else given
    if not file.is_file():
        raise StorageError(f"there is no trajectory file {str(file)!r}")
    return file


def _line(trajectory: Trajectory, keep: Callable[[Image], None]) -> bytes:
    row = encode(trajectory, certify(trajectory), keep)
    try:
        # ASCII escapes keep lone surrogates and exotic line breaks, which models emit, on one line.
        text = json.dumps(row, separators=(",", ":"), allow_nan=False, default=_scalar)
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(
            f"episode {trajectory.episode_id!r} cannot be stored: {error}"
        ) from error
    return text.encode("ascii") + b"\n"


def _scalar(value: object) -> object:
    """Give json the Python number of a NumPy scalar, which engines put among ids."""
    if isinstance(value, np.generic):
        return cast("object", value.item())
    raise TypeError(f"{type(value).__name__} is no JSON data: {value!r:.80}")


def _read_line(file: Path, number: int, line: bytes, images: ImageFolder) -> StoredLine:
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        is_cut = not line.endswith(b"\n")
        what = (
            "is cut off: its writer was stopped, or the disk was full. The lines before it are "
            "whole; a TrajectoryWriter in mode 'append' removes it"
            if is_cut
            else f"is no JSON: {error}"
        )
        failure = StorageError(f"{file}, line {number} {what}")
        return StoredLine(
            line=number, trajectory=None, certificate=None, error=failure, is_cut=is_cut
        )
    try:
        trajectory, certificate = decode(row, images.read)
    except (EnvkitError, RecursionError) as error:
        failure = StorageError(f"{file}, line {number}: {error}")
        return StoredLine(line=number, trajectory=None, certificate=None, error=failure)
    return StoredLine(line=number, trajectory=trajectory, certificate=certificate)
