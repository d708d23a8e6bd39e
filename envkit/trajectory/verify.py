"""Check a stored run without a model, as `envkit verify FILE` does."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

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
    checker = _Checker(lambda numbers: read_lines(path, numbers))
    for stored in read_lines(path):
        checker.add(stored)
    checker.finish()
    return VerifyReport(
        path=trajectory_file(path),
        trajectories=checker.trajectories,
        tokens=checker.tokens,
        trained_tokens=checker.trained_tokens,
        images=len(checker.images),
        compared=checker.compared,
        unchecked=checker.unchecked,
        problems=tuple(checker.problems),
    )


def check_certificate(trajectory: Trajectory, recorded: Certificate) -> str | None:
    """Return how a trajectory differs from its recorded certificate, or None."""
    difference = recorded.difference(certify(trajectory))
    return None if difference is None else f"the ledger was changed: {difference}"


class _Checker:
    def __init__(self, read: "_ReadLines") -> None:
        self.trajectories = 0
        self.tokens = 0
        self.trained_tokens = 0
        self.images: dict[str, str | None] = {}  # hash -> what is wrong with the file
        self.compared = 0
        self.unchecked = 0
        self.problems: list[Problem] = []
        self._group_starts: dict[str, str | None] = {}
        self._lineage = Lineage(read)

    def add(self, stored: StoredLine) -> None:
        if stored.trajectory is None or stored.certificate is None:
            text = str(stored.error)
            self.problems.append(Problem(rule=Rule.READABLE, message=text, line=stored.line))
            return
        trajectory = stored.trajectory
        self.trajectories += 1
        self._lineage.add(trajectory, stored.line)
        self.tokens += trajectory.token_count
        drawn = [turn.sanity for turn in trajectory.own_turns if turn.sanity is not None]
        self.unchecked += drawn.count(SanityStatus.UNCHECKED)
        self.compared += len(drawn) - drawn.count(SanityStatus.UNCHECKED)
        self.trained_tokens += _trained_tokens(trajectory)
        self.problems += [
            replace(problem, line=stored.line, episode_id=trajectory.episode_id)
            for problem in (
                *check_trajectory(trajectory),
                *self._certificate(trajectory, stored.certificate),
                *self._image_files(trajectory),
                *self._group(trajectory),
            )
        ]

    def finish(self) -> None:
        """Check the relations between episodes, which need the whole file."""
        self.problems += self._lineage.problems()

    def _certificate(self, trajectory: Trajectory, recorded: Certificate) -> Iterator[Problem]:
        try:
            difference = check_certificate(trajectory, recorded)
        except EnvkitError as error:
            difference = str(error)
        if difference is not None:
            yield Problem(rule=Rule.CERTIFICATE, message=difference)

    def _image_files(self, trajectory: Trajectory) -> Iterator[Problem]:
        ledger = [image for segment in trajectory.segments for image in segment.images]
        for image in dict.fromkeys((*ledger, *images_of(trajectory.messages))):
            if image.sha256 not in self.images:
                self.images[image.sha256] = _check_file(image)
            problem = self.images[image.sha256]
            if problem is not None:
                yield Problem(rule=Rule.IMAGE_FILES, message=problem)

    def _group(self, trajectory: Trajectory) -> Iterator[Problem]:
        if trajectory.group_id is None or trajectory.initial_observation_hash is None:
            return
        if trajectory.is_faulted:  # perhaps because it started elsewhere, so do not compare it
            return
        found = trajectory.initial_observation_hash
        first = self._group_starts.setdefault(trajectory.group_id, found)
        if first != found:
            yield Problem(
                rule=Rule.GROUP,
                message=f"group {trajectory.group_id!r} starts from different observations",
            )


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
        if trajectory.stop_reason is not StopReason.ABORTED:  # a resumed episode has two lines
            if name in self._ended:
                message = f"the episode is also on line {self._lines[name]}: tokens have two owners"
                self._doubled.append(
                    Problem(rule=Rule.TREE, message=message, line=line, episode_id=name)
                )
                return
            self._ended.add(name)
        self._lines[name] = line
        self._has_forks = self._has_forks or trajectory.origin is not None
        if self._has_forks:
            self._prefixes[name] = list(_digests(trajectory.segments))
        # A resumed episode has two lines, and the later one counts.
        self._origins.pop(name, None)
        if trajectory.origin is not None:
            self._origins[name] = trajectory.origin

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
