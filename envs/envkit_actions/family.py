"""Base class of a model family's action dialect."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from envkit.reply import Reply
from envkit.smart_resize import SmartResize
from envkit.tools import ToolSpec
from envkit_actions.action import Action
from envkit_actions.closing import DONE, FAIL
from envkit_actions.malformed import InexpressibleActionError
from envkit_actions.parsed import MAX_ACTIONS, ParsedActions
from envkit_actions.spaces import CoordinateSpace, SpaceKind
from envkit_actions.writing import Writing

Part = Any
"""What a family writes of an action: a line of text, or JSON."""


class ActionFamily(ABC):
    """One dialect: how actions are prompted for, read and written. Stateless."""

    prompt: str
    """The instructions, with `{width}`, `{height}`, `{done}` and `{fail}` where needed."""
    wait_seconds: float | None = None
    """How long every wait lasts; None if a wait says how long."""

    def __init__(
        self,
        name: str,
        *,
        counts: SpaceKind = SpaceKind.SCREEN,
        resize: SmartResize | None = None,
    ) -> None:
        """Set the family's coordinates.

        Args:
            name: Its key in `FAMILIES`.
            counts: Kind of its coordinates.
            resize: Usual resize of its models' processors; None if they keep the size.
        """
        self.name: Final = name
        self._counts, self._resize = counts, resize

    def space(
        self,
        screen: tuple[int, int],
        *,
        sent: tuple[int, int] | None = None,
        resize: SmartResize | None = None,
    ) -> CoordinateSpace:
        """Return the coordinate space for a screen.

        Args:
            screen: Width and height of the environment's screen.
            sent: Size of the screenshot as sent; None means the screen's.
            resize: Resize of the model's processor; None uses the family's usual one.

        Raises:
            ConfigurationError: A size or the resize is impossible.
        """
        return CoordinateSpace.of(self._counts, screen, sent=sent, resize=resize or self._resize)

    @abstractmethod
    def parse(self, reply: Reply | str, space: CoordinateSpace) -> ParsedActions:
        """Read a reply; a string is a whole one. Errors become problems; nothing is raised."""

    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return a reply that reads back as the actions, within the rounding of the space.

        An action at a place may be written as a move to it and the action at the cursor.

        Raises:
            InexpressibleActionError: The family cannot express an action, or there are none or too
                many.
        """
        if not 1 <= len(actions) <= MAX_ACTIONS:
            raise InexpressibleActionError(
                f"{self.name} writes 1 to {MAX_ACTIONS} actions a reply, got {len(actions)}"
            )
        parts: list[Part] = []
        at = 0
        while at < len(actions):
            more, count = self._write_next(actions[at:], space)
            parts += more
            at += count
        return self._joined(parts)

    def system_prompt(self, space: CoordinateSpace) -> str:
        """Return instructions for the model, in the family's conventions."""
        width, height = space.extent
        return self.prompt.format(width=width, height=height, done=DONE, fail=FAIL)

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return the tools for the chat template; none if actions are text."""
        return ()

    def _write_next(
        self, actions: Sequence[Action], space: CoordinateSpace
    ) -> tuple[Sequence[Part], int]:
        """Return what says the first actions, and how many it says."""
        return self._write(Writing(self.name, actions[0], space)), 1

    @abstractmethod
    def _write(self, writing: Writing) -> Sequence[Part]:
        """Return what says an action."""

    def _joined(self, parts: Sequence[Part]) -> str:
        """Return the reply of these parts."""
        return "\n".join(parts)
