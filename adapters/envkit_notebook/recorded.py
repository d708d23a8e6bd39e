"""Read a recorded episode from memory, a trajectory file, or a run directory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from envkit.errors import ConfigurationError, StorageError
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.storage import read_lines
from envkit.trajectory.trajectory import Trajectory
from envkit_exchange.trajectories import contents_of

Source = Trajectory | Sequence[Trajectory] | str | os.PathLike[str]
"""An episode, several such as the leaves of `play_tree`, a trajectory file or a run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded episode."""

    trajectory: Trajectory
    certificate: Certificate | None
    """Certificate of its file; None for a trajectory in memory."""
    index: int
    count: int
    """Number of episodes in the source."""


def read_episode(source: Source, index: int = 0) -> Recorded:
    """Return an episode.

    Args:
        source: One or several trajectories, a trajectory file or a run directory.
        index: Index of the episode in a file, from 0; -1 is the last one.

    Raises:
        ConfigurationError: There is no such episode.
        StorageError: The file or a line cannot be read; the message names it.
    """
    if not isinstance(source, (str, os.PathLike)):
        given = [source] if isinstance(source, Trajectory) else source
        count = _checked(index, len(given), "trajectories")
        return Recorded(trajectory=given[index], certificate=None, index=index % count, count=count)
    count = contents_of(source).count
    _checked(index, count, str(source))
    place = index % count
    stored = next(islice(read_lines(source), place, None))
    if stored.trajectory is None:
        raise stored.error or StorageError(f"episode {place} of {str(source)!r} cannot be read")
    return Recorded(
        trajectory=stored.trajectory, certificate=stored.certificate, index=place, count=count
    )


def _checked(index: int, count: int, name: str) -> int:
    if not -count <= index < count:
        raise ConfigurationError(
            f"index must be one of the {count} episodes of {name!r}, got {index}"
        )
    return count
