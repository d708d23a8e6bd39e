"""The widget that continues a recorded episode from another reply, and shows both branches."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from envkit.errors import EnvkitError
from envkit.messages import text_of
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.text import utf8
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_notebook.branching import check_branch
from envkit_notebook.game import Game
from envkit_notebook.playing import PlayingWidget, play_wish
from envkit_notebook.scene import episode_view, game_view
from envkit_notebook.widget import number_in, require_loop, text_in

Rerun = Callable[..., Awaitable[Trajectory]]
"""`rerun` with everything but the trajectory, the turn and the reply."""


class BranchWidget(PlayingWidget):
    """A recorded episode next to a branch with another reply."""

    def __init__(
        self,
        trajectory: Trajectory,
        turn: int,
        reply: str | None,
        *,
        env: AnyEnv | EnvFactory,
        codec: ChatCodec | None,
        rerun: Rerun | None,
    ) -> None:
        """Show the episode, and play the branch if a reply is given.

        Args:
            trajectory: The recorded episode.
            turn: Index of the reply to change.
            reply: The new reply; None waits for the user to write it.
            env: Plays a person's branch.
            codec: Shows tokens as text; None shows their ids.
            rerun: Plays the branch; None lets a person play.

        Raises:
            ConfigurationError: The episode cannot be branched there, or no event loop runs.
        """
        check_branch(trajectory, turn)
        require_loop("branching")
        self.recorded, self._env, self._codec, self._rerun = trajectory, env, codec, rerun
        self.trajectory: Trajectory | None = None
        """The branch that an engine played; None before, and if a person plays."""
        self.game: Game | None = None
        """The branch that a person plays; None before, and if an engine does."""
        self.error: EnvkitError | None = None
        """Why the last branch could not be played; None if it was."""
        self._settled = asyncio.Event()
        self._settled.set()
        super().__init__("branch", {})
        said = [text_of(m) for m in trajectory.messages if m["role"] == "assistant"]
        left = episode_view(trajectory, self.store, codec=codec)
        self.view = {
            "title": left["title"],
            "left": left,
            "right": None,
            "replies": [utf8(text) for text in said[: len(trajectory.turns)]],
            "turn": turn,
            "edit": None if reply is None else utf8(reply),
            "by_hand": rerun is None,
            "is_busy": False,
            "error": None,
        }
        if reply is not None:
            self._settled.clear()
            self.spawn(self.act({"do": "branch", "turn": turn, "text": reply}))

    async def settled(self) -> "BranchWidget":
        """Wait until the engine has played the branch, and return the widget.

        Raises:
            EnvkitError: It could not be played.
        """
        await self._settled.wait()
        if self.error is not None:
            raise self.error
        return self

    async def handle(self, wish: dict[str, Any]) -> str | None:
        """Branch, or handle a button of the hand-played branch.

        Raises:
            EnvkitError: It could not be done.
        """
        self._settled.clear()
        self.error = None
        try:
            if wish.get("do") == "branch":
                await self._branch(number_in(wish, "turn"), text_in(wish, "text"))
            elif self.game is not None:
                return await play_wish(self.game, wish)
        except EnvkitError as error:
            self.error = error
            raise
        return None

    def refresh(self) -> None:
        """Show the branch."""
        right: dict[str, Any] | None = None
        if self.trajectory is not None:
            right = episode_view(self.trajectory, self.store, codec=self._codec)
        elif self.game is not None:
            right = game_view(self.game, self.store, title=self.recorded.env_id)
        self.view = {**self.view, "right": right, "is_busy": False}
        self._settled.set()

    async def _branch(self, turn: int, reply: str) -> None:
        check_branch(self.recorded, turn)
        game, self.game, self.trajectory = self.game, None, None
        if game is not None:
            await game.close()
        self.view = {**self.view, "turn": turn}
        if self._rerun is not None:
            self.trajectory = await self._rerun(self.recorded, turn=turn, reply=reply)
            return
        task = dict(self.recorded.task) or None
        game = Game(self._env, seed=self.recorded.seed, task=task)
        try:
            await game.follow(self.recorded, turn)
            await game.reply(reply)
        except EnvkitError:
            await game.close()
            raise
        self.game = game
