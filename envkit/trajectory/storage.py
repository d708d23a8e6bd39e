"""Trajectory files: one JSON object per line, with every image stored once next to them.

A run directory holds `trajectories.jsonl` and `images/<sha256>.png`. One call writes a line with
its newline, so a killed writer leaves at most one cut line, at the end. Readers report it and
`TrajectoryWriter(mode="append")` removes it. Image files and files written by `save` appear only
once they are complete.
"""

import contextlib
import json
import os
from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from envkit import fast_json
from envkit.closing import Closing
from envkit.errors import EnvkitError, StorageError
from envkit.files import replace_file, storage_errors
from envkit.folder_claim import FolderClaim
from envkit.images import Image
from envkit.ranges import one_of
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.plain import json_chunks
from envkit.trajectory.record import decode, decode_head, encode
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit.trajectory.typed_record import read_typed

FILE_NAME: Final = "trajectories.jsonl"
_BUFFER: Final = 1 << 18
"""Bytes that one call reads; a line of text has several thousand."""
_DECODER: Final = json.JSONDecoder()
_BLOCK: Final = 1 << 20
_SPACE: Final = 32
"""The last byte that may be white space in ASCII."""

Mode = Literal["create", "append", "overwrite"]
Source = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """One line of a trajectory file."""

    line: int
    """Counted from 1."""
    trajectory: Trajectory | None
    """None if the line cannot be read."""
    certificate: Certificate | None
    """As recorded, not compared with the trajectory; None if the line cannot be read."""
    error: StorageError | None = None
    """Why the line cannot be read."""
    is_cut: bool = False
    """Whether it is an incomplete last line: its writer was stopped, or the disk was full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTrajectory:
    """An encoded trajectory, ready to be written."""

    episode_id: str
    line: bytes
    images: tuple[Image, ...]
    """New images, encoded, each once."""
    certificate: Certificate | None = None
    """As in the line; None if the line was copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """The index entry of one trajectory in a file."""

    line: int
    """Counted from 1."""
    episode_id: str
    env_id: str
    seed: int | None
    group_id: str | None
    stop_reason: StopReason
    initial_observation_hash: str | None
    metadata: Mapping[str, Any]

    @property
    def is_finished(self) -> bool:
        """Whether the episode ended; an aborted one can be resumed."""
        return self.stop_reason is not StopReason.ABORTED


class TrajectoryWriter(Closing):
    """Appends finished trajectories to a run directory.

    The operating system has every trajectory when `append` returns, so a crash of this process
    loses none. A failed write removes its partial line and raises; earlier lines are unaffected. A
    directory has one writer at a time across all processes; threads may share it.
    """

    def __init__(
        self,
        directory: Source,
        *,
        mode: Mode = "create",
        durable: bool = False,
        claim: FolderClaim | None = None,
    ) -> None:
        """Open the directory, creating it if it is missing.

        Args:
            directory: The run directory.
            mode: "create" fails if the directory holds trajectories; "append" adds to them, and
                removes an incomplete last line; "overwrite" drops them.
            durable: Wait until each line is on disk (fsync). Lines then survive a power cut, at a
                cost of a few milliseconds per line.
            claim: The claim of the directory by its trajectory file, which the caller closes. None
                claims the directory until `close`.

        Raises:
            StorageError: The directory cannot be written, has another writer, or already holds
                trajectories.
            ConfigurationError: The mode is unknown.
        """
        one_of("mode", mode, ("create", "append", "overwrite"))
        self.path: Final = Path(directory) / FILE_NAME
        self.cut_bytes = 0
        """Bytes of the incomplete line that append mode removed; 0 if there was none."""
        self._images = ImageFolder(self.path.parent / IMAGE_FOLDER)
        self._durable = durable
        held = claim or FolderClaim(self.path.parent, FILE_NAME, durable=durable)
        self._file: Final = held.file
        self._own_claim: Final = None if claim is not None else held
        try:
            if mode == "append":
                self.cut_bytes = self._file.repair()
            elif mode == "overwrite":
                self._file.clear()
            elif self._file.size:
                raise StorageError(
                    f"{self.path} already holds trajectories; choose another directory, or use "
                    "mode 'append' or 'overwrite'"
                )
        except BaseException:
            self.close()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether another program deleted, replaced or changed the file."""
        return self._file.is_lost

    def prepare(self, trajectory: Trajectory) -> PreparedTrajectory:
        """Encode a trajectory without writing it.

        The work is CPU-bound, in steps of a few milliseconds: call it on a worker thread.

        Raises:
            StorageError: The trajectory, or a value or image in it, cannot be stored; the error
                names the episode.
        """
        return _prepared(trajectory, self._images)

    def append(self, *prepared: PreparedTrajectory) -> None:
        """Write prepared trajectories: new images first, then all lines in one write.

        Raises:
            StorageError: The disk is full or gone, the file was deleted or replaced, or the writer
                is closed. The file is unchanged.
        """
        self._file.check()  # before the image folder of a deleted run would be recreated
        for one in prepared:
            for image in one.images:
                self._images.write(image, durable=self._durable)
        self._file.append(b"".join(one.line for one in prepared))

    def keep_lines(self, wanted: Container[int]) -> None:
        """Drop every line whose number, counted from 1, is not wanted.

        Raises:
            StorageError: The file cannot be replaced; it is unchanged.
        """
        self._file.keep_lines(wanted)

    def write(self, trajectory: Trajectory) -> None:
        """Prepare and append one trajectory.

        Raises:
            StorageError: As for `prepare` and `append`.
        """
        self.append(self.prepare(trajectory))

    def close(self) -> None:
        """Close the file, unless a claim was given; closing twice is fine."""
        if self._own_claim is not None:
            self._own_claim.close()


def save(trajectories: Trajectory | Iterable[Trajectory], path: Source) -> None:
    """Write a trajectory file, replacing an existing one only once the new one is complete.

    Args:
        trajectories: One trajectory or several.
        path: The file, such as "run.jsonl"; its images go into `images/` next to it.

    Raises:
        StorageError: The file cannot be written; an existing one is unchanged.
    """
    target = Path(path)
    rows = (trajectories,) if isinstance(trajectories, Trajectory) else trajectories
    images = ImageFolder(target.parent / IMAGE_FOLDER)
    with storage_errors(f"cannot write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, (_written(row, images) for row in rows), durable=True)


def load(path: Source) -> tuple[Trajectory, ...]:
    """Return all trajectories of a file or a run directory.

    Raises:
        StorageError: See `read_trajectories`.
    """
    return tuple(read_trajectories(path))


def read_trajectories(path: Source, *, skip_cut_line: bool = False) -> Iterator[Trajectory]:
    """Yield the trajectories of a file or a run directory, one at a time.

    Images are read from their files on first use; a missing one raises a StorageError then.

    Args:
        path: The file, or the directory that holds `trajectories.jsonl`.
        skip_cut_line: Skip an incomplete last line instead of raising after the others.

    Raises:
        StorageError: The file does not exist, has a newer schema, or has a line that cannot be
            read.
    """
    for stored in read_lines(path):
        if stored.trajectory is not None:
            yield stored.trajectory
        elif stored.error is not None and not (stored.is_cut and skip_cut_line):
            raise stored.error


def read_lines(path: Source, numbers: Collection[int] | None = None) -> Iterator[StoredLine]:
    """Yield the non-empty lines of a file or a run directory, readable or not.

    Args:
        path: The file or the directory.
        numbers: Parse only these lines, from 1; None parses all.

    Raises:
        StorageError: The file itself cannot be read.
    """
    file = trajectory_file(path)
    images = ImageFolder(file.parent / IMAGE_FOLDER)
    for number, line in _lines(file):
        if numbers is None or number in numbers:
            yield parse_line(file, number, line, images)


class LineReader(Closing):
    """The non-empty lines of a file or a run directory, in any order.

    A line is parsed when it is asked for. Only the places of the lines before it are kept, 16 bytes
    for each; they are found in large blocks, at the speed of memory.
    """

    def __init__(self, path: Source) -> None:
        """Open the file.

        Raises:
            StorageError: It cannot be read.
        """
        self._file = trajectory_file(path)
        self._images = ImageFolder(self._file.parent / IMAGE_FOLDER)
        self._places, self._numbers = array("q"), array("q")
        """Of the lines that have their newline and are not empty."""
        self._ended = 0
        """Lines that have their newline, the empty ones included."""
        self._start, self._scanned = 0, 0
        """Where the line starts that has no newline so far, and where the next block starts."""
        self._is_empty = True
        """Whether that line is empty so far."""
        with storage_errors(f"cannot read {self._file}"):
            self._stream = self._file.open("rb")

    def __len__(self) -> int:
        """Return the number of lines found so far."""
        return len(self._places) + (not self._is_empty)

    def read(self, position: int) -> StoredLine | None:
        """Return a line, readable or not; None if there are fewer lines.

        Args:
            position: Counted from 1, without empty lines.

        Raises:
            StorageError: The file itself cannot be read.
        """
        with storage_errors(f"cannot read {self._file}"):
            while len(self._places) < position and self._scan():
                pass
            if position > len(self):
                return None
            # The last line of a run that is being played may have no newline yet.
            is_last = position > len(self._places)
            self._stream.seek(self._start if is_last else self._places[position - 1])
            line = self._stream.readline()
        number = self._ended + 1 if is_last else self._numbers[position - 1]
        return parse_line(self._file, number, line, self._images)

    def _scan(self) -> bool:
        """Look for lines in the next block, and return whether there was one."""
        self._stream.seek(self._scanned)
        block = self._stream.read(_BLOCK)
        at = 0
        while (end := block.find(b"\n", at)) >= 0:
            self._ended += 1
            # Most lines start with a brace; looking at all of a line is only for the others.
            if not self._is_empty or block[at] > _SPACE or block[at:end].strip():
                self._places.append(self._start)
                self._numbers.append(self._ended)
            at, self._is_empty = end + 1, True
            self._start = self._scanned + at
        self._is_empty = self._is_empty and not block[at:].strip()
        self._scanned += len(block)
        return bool(block)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._stream.close()


def trajectory_file(path: Source) -> Path:
    """Return the trajectory file for a path to the file or to its run directory.

    Raises:
        StorageError: The file does not exist.
    """
    given = Path(path)
    file = given / FILE_NAME if given.is_dir() else given
    if not file.is_file():
        raise StorageError(f"there is no trajectory file {str(file)!r}")
    return file


def read_index(path: Source) -> Iterator[StoredEpisode]:
    """Yield an index entry for every trajectory, with the fields needed to resume a run.

    It parses no ledger and reads no image. It skips an incomplete last line, which
    `TrajectoryWriter(mode="append")` removes.

    Args:
        path: The file, or the directory that holds `trajectories.jsonl`.

    Raises:
        StorageError: The file does not exist, or a complete line cannot be read.
    """
    file = trajectory_file(path)
    images = ImageFolder(file.parent / IMAGE_FOLDER)
    for number, line in _lines(file):
        try:
            yield _stored_episode(number, line, images)
        except (ValueError, RecursionError, StorageError) as error:
            # Zeros are what a power cut leaves of a line, and a line without its end is still being
            # written or was cut. Both are dropped when the run is resumed.
            if line.endswith(b"\n") and b"\0" not in line:
                raise StorageError(f"{file}, line {number} cannot be read: {error}") from error


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty lines of a file with their numbers."""
    with storage_errors(f"cannot read {file}"), file.open("rb", buffering=_BUFFER) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, line


def _stored_episode(number: int, line: bytes, images: ImageFolder) -> StoredEpisode:
    head = decode_head(_head(line), images.read)
    return StoredEpisode(line=number, **head)


def _head(line: bytes) -> object:
    """Return the fields before the ledger if our own writer wrote the line, else all fields."""
    text = line.decode("utf-8")
    # A line is mostly its ledger, so reading stops before it: an index of a large run is read in a
    # fraction of the time. Any doubt falls back to parsing the whole line.
    if text.startswith("{") and text.endswith("}\n") and "\0" not in text:
        fields: dict[str, Any] = {}
        position = 1
        with contextlib.suppress(ValueError, IndexError):
            while True:
                key, position = _DECODER.raw_decode(text, position)
                if key == "segments":
                    return fields
                fields[key], position = _DECODER.raw_decode(text, position + 1)
                position += 1
    return fast_json.loads(text)


def _written(trajectory: Trajectory, images: ImageFolder) -> bytes:
    prepared = _prepared(trajectory, images)
    for image in prepared.images:
        images.write(image)
    return prepared.line


def _prepared(trajectory: Trajectory, folder: ImageFolder) -> PreparedTrajectory:
    images: dict[str, Image] = {}

    def keep(image: Image) -> None:
        if image.sha256 not in images and not folder.holds(image.sha256):
            image.png_bytes()  # raise now if its bytes are invalid
            images[image.sha256] = image

    try:
        certificate = certify(trajectory)
        row = encode(trajectory, certificate, keep)
        line = "".join(json_chunks(row)).encode("ascii") + b"\n"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign objects in records can raise anything
        # Not {error}: the `__str__` of a foreign exception may raise too.
        reason = str(error) if isinstance(error, EnvkitError) else type(error).__name__
        raise StorageError(f"episode {_name(trajectory)} cannot be stored: {reason}") from error
    return PreparedTrajectory(
        episode_id=trajectory.episode_id,
        line=line,
        images=tuple(images.values()),
        certificate=certificate,
    )


def _name(trajectory: Trajectory) -> str:
    found: object = trajectory.episode_id
    return f"{found!r:.80}" if type(found) is str else f"with an id of type {type(found).__name__}"


def parse_line(file: Path, number: int, line: bytes, images: ImageFolder) -> StoredLine:
    """Parse one line, readable or not.

    Args:
        file: Named in the error if the line cannot be read.
        number: Number of the line, from 1.
        line: Its bytes, with the newline if it has one.
        images: The images next to the file.
    """
    found = read_typed(line, images.read)
    if found is not None:
        return StoredLine(line=number, trajectory=found[0], certificate=found[1])
    try:
        row: object = fast_json.loads(line)
    except (ValueError, RecursionError) as error:
        is_cut = not line.endswith(b"\n")
        what = (
            "is cut off: its writer was stopped, or the disk was full. The lines before it are "
            "intact; a TrajectoryWriter in mode 'append' removes it"
            if is_cut
            else f"is not valid JSON: {error}"
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
