"""The widget of an episode that a person plays."""

from typing import Any

from envkit.errors import ConfigurationError, EnvkitError
from envkit.text import utf8
from envkit_notebook.game import Game
from envkit_notebook.scene import game_view
from envkit_notebook.widget import EpisodeWidget, number_in, require_loop, text_in


async def play_wish(game: Game, wish: dict[str, Any]) -> str | None:
    """Handle a button of a game; return a text for the reply box, or None.

    Args:
        game: The episode.
        wish: Foreign JSON data.

    Raises:
        ConfigurationError: The wish is unknown, or the environment cannot do it.
        EnvFault: The environment failed.
    """
    match wish.get("do"):
        case "reply":
            await game.reply(text_in(wish, "text"))
        case "oracle":
            return game.oracle()
        case "click":
            return game.click(number_in(wish, "x"), number_in(wish, "y"))
        case "undo":
            await game.rewind(game.turn - 1)
        case "give_up":
            game.is_over = True
        case "start":
            await game.start()
        case unknown:
            raise ConfigurationError(f"a widget asked for {unknown!r}, which no button does")
    return None


class PlayingWidget(EpisodeWidget):
    """A widget whose buttons play: one at a time, and an error is shown."""

    async def act(self, wish: dict[str, Any]) -> None:
        """Handle a button, and show the result."""
        if self.view.get("is_busy") and wish.get("do") != "start":
            return  # a second press before the first was handled
        self.view = {**self.view, "is_busy": True, "error": None}
        error, text = None, None
        try:
            text = await self.handle(wish)
        except EnvkitError as raised:
            error = raised
        finally:
            self.refresh()
        if error is not None:
            self.complain(error)
        elif text is not None:
            self.send({"fill": utf8(text)})

    async def handle(self, wish: dict[str, Any]) -> str | None:
        """Handle a button; return a text for the reply box, or None.

        Raises:
            EnvkitError: It could not be done.
        """
        raise NotImplementedError

    def refresh(self) -> None:
        """Show the current state, and take the next button."""
        raise NotImplementedError


class PlayWidget(PlayingWidget):
    """Plays an environment by hand. `game` is the episode; code may play it too."""

    def __init__(self, game: Game, *, title: str) -> None:
        """Start the episode.

        Raises:
            ConfigurationError: No event loop runs.
        """
        require_loop("playing")
        self.game = game
        self._title = title
        super().__init__("play", {"title": title, "steps": [], "is_busy": True})
        self.spawn(self.act({"do": "start"}))

    async def handle(self, wish: dict[str, Any]) -> str | None:
        """Handle a button; return a text for the reply box, or None.

        Raises:
            EnvkitError: The wish is unknown, or the environment cannot do it or failed.
        """
        return await play_wish(self.game, wish)

    def refresh(self) -> None:
        """Refresh the view, such as after a reply from code."""
        view = game_view(self.game, self.store, title=self._title)
        self.view = {**view, "is_busy": False}

    async def close_game(self) -> None:
        """Close the environment, if it was created here."""
        await self.game.close()
        self.refresh()
