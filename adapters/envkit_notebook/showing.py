"""The widget that steps through recorded episodes."""

import asyncio
import os
from typing import Any, Final

from envkit.text import utf8
from envkit.tokens import ChatCodec
from envkit.trajectory.storage import trajectory_file
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.run import RunData, read_run
from envkit.viewer.run_text import groups, heading, notes, sections
from envkit_notebook.recorded import Recorded, Source, read_episode
from envkit_notebook.scene import episode_view
from envkit_notebook.widget import EpisodeWidget, number_in

_AT_ONCE_BYTES: Final = 16 << 20
"""A larger file is read only when a person asks for the figures."""


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
            recorded.trajectory, self.store, recorded=recorded.certificate, codec=self._codec
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
    if not run.rows:
        return {"title": "", "facts": "", "notes": list(map(utf8, run.notes)), "sections": []}
    title, facts = heading(run)
    return {
        "title": utf8(title),
        "facts": utf8(facts),
        "notes": list(map(utf8, notes(run))),
        "sections": [
            {
                "title": section.title,
                "note": section.note,
                "rows": [list(map(utf8, row)) for row in section.rows],
            }
            for section in sections(run)
        ],
        "groups": _groups(run),
    }


def _groups(run: RunData) -> list[dict[str, Any]]:
    return [
        {
            "task": utf8(group.task),
            "facts": group.facts,
            "members": [
                {
                    "index": member.number - 1,
                    "guide": member.guide,
                    "name": f"episode {member.number}",
                    "reward": member.reward,
                    "facts": utf8(member.facts),
                }
                for member in group.members
            ],
        }
        for group in groups(run)
    ]
