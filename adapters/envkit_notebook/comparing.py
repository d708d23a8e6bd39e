"""The widget that continues a recorded episode from another reply, and shows both branches."""

import asyncio
from dataclasses import dataclass
from typing import Any

from envkit.errors import EnvkitError
from envkit.messages import text_of
from envkit.rollout.engine import Engine, Sampling
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.rollout.limits import Limits
from envkit.text import utf8
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_notebook.branching import check_branch, rerun
from envkit_notebook.game import Game
from envkit_notebook.playing import game_view, play_wish
from envkit_notebook.scene import episode_view
from envkit_notebook.widget import EpisodeWidget, number_in, require_loop, text_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Player and environment for the rest of a branch."""

    env: AnyEnv | EnvFactory
    engine: Engine | None = None
    """None lets a person play."""
    codec: ChatCodec | None = None
    limits: Limits | None = None
    sampling: Sampling | None = None


class BranchWidget(EpisodeWidget):
    """A recorded episode next to a branch with another reply."""

    def __init__(self, trajectory: Trajectory, turn: int, reply: str | None, rest: Rest) -> None:
        """Show the episode, and play the branch if a reply is given.

        Raises:
            ConfigurationError: The episode cannot be branched there, or no event loop runs.
        """
        check_branch(trajectory, turn)
        require_loop("branching")
        self.recorded, self._rest = trajectory, rest
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
        left = episode_view(trajectory, self.store, codec=rest.codec)
        self.view = {
            "title": left["title"],
            "left": left,
            "right": None,
            "replies": [utf8(text) for text in said[: len(trajectory.turns)]],
            "turn": turn,
            "edit": None if reply is None else utf8(reply),
            "by_hand": rest.engine is None,
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

    async def act(self, wish: dict[str, Any]) -> None:
        """Branch, or handle a button of the hand-played branch."""
        if self.view.get("is_busy"):
            return
        self._settled.clear()
        self.error, fill = None, None
        self.view = {**self.view, "is_busy": True, "error": None}
        try:
            if wish.get("do") == "branch":
                await self._branch(number_in(wish, "turn"), text_in(wish, "text"))
            elif self.game is not None:
                fill = await play_wish(self.game, wish)
        except EnvkitError as error:
            self.error = error
        finally:
            self._refresh()
            self._settled.set()
        if self.error is not None:
            self.complain(self.error)
        elif fill is not None:
            self.send({"fill": utf8(fill)})

    async def _branch(self, turn: int, reply: str) -> None:
        check_branch(self.recorded, turn)
        await self._drop()
        self.view = {**self.view, "turn": turn}
        rest = self._rest
        if rest.engine is not None and rest.codec is not None:
            self.trajectory = await rerun(
                self.recorded,
                turn=turn,
                reply=reply,
                engine=rest.engine,
                codec=rest.codec,
                env=rest.env,
                limits=rest.limits,
                sampling=rest.sampling,
            )
            return
        task = dict(self.recorded.task) or None
        game = Game(rest.env, seed=self.recorded.seed, task=task)
        try:
            await game.follow(self.recorded, turn)
            await game.reply(reply)
        except EnvkitError:
            await game.close()
            raise
        self.game = game

    async def _drop(self) -> None:
        game, self.game, self.trajectory = self.game, None, None
        if game is not None:
            await game.close()

    def _refresh(self) -> None:
        right: dict[str, Any] | None = None
        if self.trajectory is not None:
            right = episode_view(self.trajectory, self.store, codec=self._rest.codec)
        elif self.game is not None:
            right = game_view(self.game, self.store, title=self.recorded.env_id)
        self.view = {**self.view, "right": right, "is_busy": False}
