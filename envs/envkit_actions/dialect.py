"""Convert replies to actions and back."""

import math
from collections.abc import Sequence
from dataclasses import replace

from envkit.reply import Reply
from envkit.tools import ToolSpec
from envkit_actions import Action, ActionKind, ParsedActions, find_family


class Dialect:
    """The actions of one model family, for a screen of one size."""

    def __init__(self, name: str, width: int, height: int) -> None:
        """Choose the family.

        Args:
            name: A key of `FAMILIES`.
            width: Screen width in pixels; screenshots are sent at full size.
            height: Screen height in pixels.

        Raises:
            UnknownNameError: There is no such family.
        """
        self.size = (width, height)
        """Screen size, in pixels."""
        self._family = find_family(name)
        self._space = self._family.space((width, height))

    @property
    def prompt(self) -> str:
        """Instructions for the model."""
        return self._family.system_prompt(self._space)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools for the chat template; empty for families whose actions are text."""
        return self._family.tools(self._space)

    def waits(self, action: Action) -> list[Action]:
        """Return a wait, or several of the dialect's only length that last at least as long."""
        seconds = self._family.wait_seconds
        if seconds is None:
            return [action]
        return [replace(action, seconds=seconds)] * max(1, math.ceil(action.seconds / seconds))

    def read(self, reply: Reply | str) -> ParsedActions:
        """Read a reply, such as `Env.reply`; a string is a whole one. Never raises."""
        return self._family.parse(reply, self._space)

    def answers(self, action: Action, cursor: tuple[int, int]) -> list[str]:
        """Return what the next observation answers to an action: where the cursor is, if asked.

        Args:
            action: An action that was carried out.
            cursor: Where the cursor is, in pixels of the screen.
        """
        if action.kind is not ActionKind.CURSOR_POSITION:
            return []
        x, y = self._space.from_screen(*cursor)
        return [f"X={x},Y={y}"]

    def write(self, actions: Sequence[Action]) -> str:
        """Return a reply that reads back as the actions.

        Raises:
            InexpressibleActionError: The family cannot express an action.
        """
        return self._family.write(actions, self._space)

    def write_click(self, x: int, y: int) -> str:
        """Return a reply that clicks at a pixel of the screen."""
        return self.write([Action(kind=ActionKind.CLICK, x=x, y=y)])
