"""Check a stored run without a model, as `envkit verify FILE` does."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import Struct

from envkit.errors import EnvkitError, ImageError, LedgerFault, StorageError
from envkit.images import Image
from envkit.messages import images_of
from envkit.text import counted
from envkit.tokens.sanity import SanityStatus
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import Problem, Rule, check_trajectory
from envkit.trajectory.segment import Segment
from envkit.trajectory.sequence import Origin
from envkit.trajectory.stop import StopReason
from envkit.trajectory.storage import StoredLine, read_lines, trajectory_file
from envkit.trajectory.trajectory import Trajectory

_COLUMNS: Final = ("wire_ids", "train_ids", "logprobs")
_ReadLines = Callable[[Collection[int]], Iterable[StoredLine]]
"""Reads lines of the file again, by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of checking a trajectory file."""

    path: Path
    trajectories: int
    """Number of readable trajectories."""
    tokens: int
    """Train ids of all ledgers."""
    trained_tokens: int
    """Tokens with mask 1 in the training rows."""
    images: int
    """Distinct image files that were read and compared."""
    compared: int
    """Observations that the run compared with a full render."""
    unchecked: int
    """Observations that the run drew for that, but could not compare."""
    problems: tuple[Problem, ...]
    """Problems in line order; those between episodes come last."""

    @property
    def is_sound(self) -> bool:
        """Whether the file has trajectories and no problems."""
        return self.trajectories > 0 and not self.problems

    def __str__(self) -> str:
        counts = (
            f"{self.path}: {counted(self.trajectories, 'trajectory')}, "
            f"{counted(self.tokens, 'token')} ({self.trained_tokens} trained), "
            f"{counted(self.images, 'image')}"
        )
        if self.compared or self.unchecked:
            counts += f", {counted(self.compared, 'observation')} compared with a full render"
        if self.unchecked:
            counts += f", {self.unchecked} unchecked"
        if self.is_sound:
            return f"{counts}: all sound"
        if not self.problems:
            return f"{counts}: nothing to verify"
        number = counted(len(self.problems), "problem")
        return "\n".join([f"{counts}: {number}", *(f"  {problem}" for problem in self.problems)])


def verify_file(path: str | os.PathLike[str]) -> VerifyReport:
    """Check every trajectory of a file or a run directory.

    Raises:
        StorageError: The file itself cannot be read. A line that cannot be read is a problem in the
            report.
    """
    checker = FileCheck(lambda numbers: read_lines(path, numbers))
    for stored in read_lines(path):
        checker.add(stored)
    return checker.finished(trajectory_file(path))


def check_certificate(trajectory: Trajectory, recorded: Certificate) -> str | None:
    """Return how a trajectory differs from its recorded certificate, or None."""
    difference = recorded.difference(certify(trajectory))
    return None if difference is None else f"the ledger was changed: {difference}"


class RowCheck(Struct, frozen=True, kw_only=True):
    """What one record adds to the check of its file, without its tokens."""

    episode_id: str
    is_aborted: bool
    is_fork: bool
    group_id: str | None
    start: str | None
    """Hash of the first observation; None if the group is not compared by it."""
    tokens: int
    trained_tokens: int
    compared: int
    unchecked: int
    images: tuple[str, ...]
    """Hashes of its images."""
    problems: tuple[Problem, ...]

    @classmethod
    def of(cls, trajectory: Trajectory, problems: Iterable[Problem]) -> "RowCheck":
        """Return what a record adds.

        Args:
            trajectory: The record.
            problems: What the rules for a single record found.
        """
        drawn = [turn.sanity for turn in trajectory.own_turns if turn.sanity is not None]
        unchecked = drawn.count(SanityStatus.UNCHECKED)
        # A fault perhaps comes from another start, so it is not compared.
        is_compared = trajectory.group_id is not None and not trajectory.is_faulted
        return cls(
            episode_id=trajectory.episode_id,
            is_aborted=trajectory.stop_reason is StopReason.ABORTED,
            is_fork=trajectory.origin is not None,
            group_id=trajectory.group_id,
            start=trajectory.initial_observation_hash if is_compared else None,
            tokens=trajectory.token_count,
            trained_tokens=_trained_tokens(trajectory),
            compared=len(drawn) - unchecked,
            unchecked=unchecked,
            images=tuple([image.sha256 for image in _images(trajectory)]),
            problems=tuple(
                [replace(problem, episode_id=trajectory.episode_id) for problem in problems]
            ),
        )


class FileCheck:
    """Checks the records of a file one after the other."""

    def __init__(self, read: _ReadLines) -> None:
        """Start with no records.

        Args:
            read: Reads lines of the file again; only files with forks need it.
        """
        self._rows = self._tokens = self._trained = self._compared = self._unchecked = 0
        self._images: dict[str, str | None] = {}  # hash -> what is wrong with the file
        self._problems: list[Problem] = []
        self._group_starts: dict[str, str | None] = {}
        self._lineage = Lineage(read)

    def add(self, stored: StoredLine) -> None:
        """Check a line of the file."""
        trajectory = stored.trajectory
        if trajectory is None or stored.certificate is None:
            text = str(stored.error)
            self._problems.append(Problem(rule=Rule.READABLE, message=text, line=stored.line))
            return
        self._lineage.add(trajectory, stored.line)
        problems = (
            *check_trajectory(trajectory),
            *certificate_problems(trajectory, stored.certificate),
        )
        row = RowCheck.of(trajectory, problems)
        images = {image.sha256: image for image in _images(trajectory)} if row.images else {}
        self._take(row, stored.line, images)

    def add_row(self, row: RowCheck, line: int, image: Callable[[str], Image]) -> None:
        """Add a record that is not a fork and was checked before.

        Args:
            row: What it adds.
            line: Its line, from 1.
            image: Returns the image with a given hash.
        """
        self._lineage.add_row(row.episode_id, line, is_aborted=row.is_aborted)
        self._take(row, line, {sha256: image(sha256) for sha256 in row.images})

    def _take(self, row: RowCheck, line: int, images: Mapping[str, Image]) -> None:
        self._rows += 1
        self._tokens += row.tokens
        self._trained += row.trained_tokens
        self._compared += row.compared
        self._unchecked += row.unchecked
        self._problems += [
            replace(problem, line=line, episode_id=row.episode_id)
            for problem in (*row.problems, *self._image_files(images), *self._group(row))
        ]

    def finished(self, path: Path) -> VerifyReport:
        """Check the relations between episodes, which need the whole file, and return the result.

        Args:
            path: The trajectory file.
        """
        return VerifyReport(
            path=path,
            trajectories=self._rows,
            tokens=self._tokens,
            trained_tokens=self._trained,
            images=len(self._images),
            compared=self._compared,
            unchecked=self._unchecked,
            problems=(*self._problems, *self._lineage.problems()),
        )

    def _image_files(self, images: Mapping[str, Image]) -> Iterator[Problem]:
        for sha256, image in images.items():
            if sha256 not in self._images:
                self._images[sha256] = _check_file(image)
            problem = self._images[sha256]
            if problem is not None:
                yield Problem(rule=Rule.IMAGE_FILES, message=problem)

    def _group(self, row: RowCheck) -> Iterator[Problem]:
        if row.group_id is None or row.start is None:
            return
        if self._group_starts.setdefault(row.group_id, row.start) != row.start:
            message = f"group {row.group_id!r} starts from different observations"
            yield Problem(rule=Rule.GROUP, message=message)


def certificate_problems(trajectory: Trajectory, recorded: Certificate) -> Iterator[Problem]:
    """Yield the problem of a certificate that does not match, or cannot be computed."""
    try:
        difference = check_certificate(trajectory, recorded)
    except EnvkitError as error:
        difference = str(error)
    if difference is not None:
        yield Problem(rule=Rule.CERTIFICATE, message=difference)


def _images(trajectory: Trajectory) -> dict[Image, None]:
    ledger = [image for segment in trajectory.segments for image in segment.images]
    return dict.fromkeys((*ledger, *images_of(trajectory.messages)))


def _trained_tokens(trajectory: Trajectory) -> int:
    """Return the number of tokens with mask 1 in the training rows, without building the rows."""
    if trajectory.is_faulted:
        return 0
    try:
        if trajectory.branches:
            trajectory.sequences()
    except LedgerFault:  # an invalid tree, which `check_trajectory` reports
        return 0
    # A row trains what its sequence owns, and each segment has one owner: a sequence or the parent.
    shared = 0 if trajectory.origin is None else max(0, trajectory.origin.segments)
    return sum([segment.trained_token_count for segment in trajectory.segments[shared:]])


def _check_file(image: Image) -> str | None:
    try:
        image.check()
    except (ImageError, StorageError) as error:
        return f"image {image.sha256}: {error}"
    return None


class Lineage:
    """Collects the episodes and forks of a file, in any order.

    Most files have no forks, so digests start with the first one. The parents before it are read
    again.
    """

    def __init__(self, read: _ReadLines) -> None:
        """Set what reads lines again."""
        self._read = read
        self._has_forks = False
        self._prefixes: dict[str, list[bytes]] = {}  # by episode id: a digest after each segment
        self._origins: dict[str, Origin] = {}
        self._lines: dict[str, int] = {}
        self._ended: set[str] = set()
        self._doubled: list[Problem] = []

    def add(self, trajectory: Trajectory, line: int) -> None:
        """Add a trajectory and its line."""
        name = trajectory.episode_id
        is_aborted = trajectory.stop_reason is StopReason.ABORTED
        if not self.add_row(name, line, is_aborted=is_aborted):
            return
        self._has_forks = self._has_forks or trajectory.origin is not None
        if self._has_forks:
            self._prefixes[name] = list(_digests(trajectory.segments))
        # A resumed episode has two lines, and the later one counts.
        self._origins.pop(name, None)
        if trajectory.origin is not None:
            self._origins[name] = trajectory.origin

    def add_row(self, name: str, line: int, *, is_aborted: bool) -> bool:
        """Add an episode that no fork is compared with; return whether it counts.

        Args:
            name: Its id.
            line: Its line.
            is_aborted: Whether a later line may continue it.
        """
        if not is_aborted:  # a resumed episode has two lines
            if name in self._ended:
                message = f"the episode is also on line {self._lines[name]}: tokens have two owners"
                self._doubled.append(
                    Problem(rule=Rule.TREE, message=message, line=line, episode_id=name)
                )
                return False
            self._ended.add(name)
        self._lines[name] = line
        return True

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of forks, then the duplicate episodes."""
        self._read_parents()
        for name, origin in self._origins.items():
            message = self._problem(name, origin)
            if message is not None:
                yield Problem(
                    rule=Rule.TREE, message=message, line=self._lines[name], episode_id=name
                )
        yield from self._doubled

    def _read_parents(self) -> None:
        parents = {origin.episode_id for origin in self._origins.values()}
        missing = (parents & self._lines.keys()) - self._prefixes.keys()
        numbers = {self._lines[name] for name in missing}
        for stored in self._read(numbers) if numbers else ():
            found = stored.trajectory
            # Of a file that was replaced meanwhile, only the same episode counts.
            if found is not None and self._lines.get(found.episode_id) == stored.line:
                self._prefixes[found.episode_id] = list(_digests(found.segments))

    def _problem(self, name: str, origin: Origin) -> str | None:
        if self._is_cycle(name):
            return f"its origin {origin.episode_id!r} is also its descendant: a cycle"
        parent = self._prefixes.get(origin.episode_id)
        if parent is None:
            return f"its origin {origin.episode_id!r} is not in the file"
        mine, shared = self._prefixes[name], origin.segments
        for index in range(min(shared, len(mine))):
            if index >= len(parent) or mine[index] != parent[index]:
                return (
                    f"segment {index} differs from that of its origin {origin.episode_id!r}, but "
                    f"the fork shares {shared} segments"
                )
        return None

    def _is_cycle(self, name: str) -> bool:
        seen, place = {name}, self._origins[name].episode_id
        while place in self._origins and place not in seen:
            seen.add(place)
            place = self._origins[place].episode_id
        return place in seen


def _digests(segments: tuple[Segment, ...]) -> Iterator[bytes]:
    """Yield a digest of everything up to each segment; masks differ between owner and fork."""
    link = b""
    for segment in segments:
        digest = hashlib.sha256(link)
        images = ",".join(image.sha256 for image in segment.images)
        digest.update(f"{segment.kind.value} {segment.turn} {images}".encode())
        for name in _COLUMNS:
            column = segment.array(name)
            digest.update(f" {len(column)} {column.dtype.kind} ".encode())
            # Columns are stored as narrow as their values allow, and in the machine's byte order.
            digest.update(column.astype("<f8" if column.dtype.kind == "f" else "<i8").tobytes())
        link = digest.digest()
        yield link
