"""The widget that steps through recorded episodes."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from envkit.errors import ConfigurationError, StorageError
from envkit.tokens import ChatCodec
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.storage import read_lines, trajectory_file
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer import run_text
from envkit.viewer.run import read_run
from envkit_exchange.trajectories import contents_of
from envkit_notebook.scene import cleaned, episode_view
from envkit_notebook.widget import EpisodeWidget, number_in

Source = Trajectory | Sequence[Trajectory] | str | os.PathLike[str]
"""An episode, several such as the leaves of `play_tree`, a trajectory file or a run directory."""
_AT_ONCE_BYTES: Final = 16 << 20
"""A larger file is read only when a person asks for the figures."""


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


class ShowWidget(EpisodeWidget):
    """Steps through an episode of a run, turn by turn, with the run's figures and trees."""

    def __init__(self, source: Source, index: int, *, codec: ChatCodec | None) -> None:
        """Read the episode.

        Raises:
            ConfigurationError: There is no such episode.
            StorageError: It cannot be read.
        """
        self._source, self._codec = source, codec
        self._run: dict[str, Any] | None = None
        super().__init__("show", {})
        recorded = read_episode(source, index)
        if recorded.count > 1 and _is_small(source):
            self._run = _run_view(source)
        self._take(recorded)

    @property
    def trajectory(self) -> Trajectory:
        """The episode that is shown."""
        return self._recorded.trajectory

    async def act(self, wish: dict[str, Any]) -> None:
        """Show another episode of the same run, or the run's figures."""
        if wish.get("do") == "episode":
            index = number_in(wish, "index")
            self._take(await asyncio.to_thread(read_episode, self._source, index))
        elif wish.get("do") == "run":
            self._run = await asyncio.to_thread(_run_view, self._source)
            self._take(self._recorded)

    def _take(self, recorded: Recorded) -> None:
        self._recorded = recorded
        view = episode_view(
            recorded.trajectory,
            self.store,
            recorded=recorded.certificate,
            codec=self._codec,
            source=self._source if isinstance(self._source, (str, os.PathLike)) else (),
        )
        self.view = {
            **view,
            "index": recorded.index,
            "count": recorded.count,
            "run": self._run,
            "error": None,
        }


def _is_small(source: Source) -> bool:
    """Return whether the figures of a source are there within a second or so."""
    if not isinstance(source, (str, os.PathLike)):
        return True
    return trajectory_file(source).stat().st_size <= _AT_ONCE_BYTES


def _run_view(source: Source) -> dict[str, Any]:
    """Return the figures of a run and its episodes by group and tree, as JSON data.

    Raises:
        StorageError: The file cannot be read.
    """
    run = read_run([source] if isinstance(source, Trajectory) else source)
    found = {
        "facts": run_text.heading(run)[1],
        "notes": run_text.notes(run),
        "sections": [asdict(section) for section in run_text.sections(run)] if run.rows else [],
        "groups": [asdict(group) for group in run_text.groups(run)],
    }
    return cleaned(found)
