"""The environment of the contests for envkit: another room after every reply."""

from typing import Any, ClassVar

from contest import ANSWER, QUESTION, screenshot

from envkit.env import Capabilities, Env, Turn
from envkit.images import Image
from envkit.registration import register
from envkit.tasks import Task
from envkit.tools import tool


@tool
def look(place: str) -> str:
    """Look somewhere.

    Args:
        place: Where to look.
    """
    return place


class RoomsEnv(Env):
    """Shows another room after every reply; the task selects the episode's rooms."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, replay_safe=True, deterministic=True
    )
    tools = (look,)

    def __init__(
        self, *, max_turns: int = 1000, role: str = "tool", render_mode: str | None = None
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.role: Any = role

    def on_reset(self, task: Task) -> Turn:
        """Show the first room."""
        return Turn(QUESTION, images=(self._room(0),))

    def on_turn(self, response_text: str) -> Turn:
        """Show the next room."""
        return Turn(ANSWER, images=(self._room(self.turn + 1),), role=self.role)

    def _room(self, number: int) -> Image:
        return Image.from_bytes(screenshot(int(self.task["episode"]), number))


class PlainRoomsEnv(RoomsEnv):
    """The same without tools, for loops without tool support."""

    tools = ()


def register_rooms() -> None:
    """Register both."""
    register("rooms-v0", RoomsEnv)
    register("plain-rooms-v0", PlainRoomsEnv)
