"""Checks that a file has each episode once, and that forks start with their origin's tokens."""

import hashlib
from collections.abc import Iterator
from typing import Final

from envkit.trajectory.checks import Problem, Rule
from envkit.trajectory.segment import Segment
from envkit.trajectory.sequence import Origin
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory

_COLUMNS: Final = ("wire_ids", "train_ids", "logprobs")


class Lineage:
    """Collects the episodes and forks of a file, in any order."""

    def __init__(self) -> None:
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
        self._prefixes[name] = list(_digests(trajectory.segments))
        self._origins.pop(name, None)
        if trajectory.origin is not None:
            self._origins[name] = trajectory.origin

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of forks, then the duplicate episodes."""
        for name, origin in self._origins.items():
            message = self._problem(name, origin)
            if message is not None:
                yield Problem(
                    rule=Rule.TREE, message=message, line=self._lines[name], episode_id=name
                )
        yield from self._doubled

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
            digest.update(column.astype("<f8" if column.dtype.kind == "f" else "<i8").tobytes())
        link = digest.digest()
        yield link
