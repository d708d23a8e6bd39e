"""The widget that steps through recorded episodes."""

import asyncio
from typing import Any

from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_notebook.recorded import Recorded, Source, read_episode
from envkit_notebook.run_view import is_small, run_view
from envkit_notebook.scene import episode_view
from envkit_notebook.widget import EpisodeWidget, number_in


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
        if recorded.count > 1 and is_small(source):
            self._run = run_view(source)
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
            self._run = await asyncio.to_thread(run_view, self._source)
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
