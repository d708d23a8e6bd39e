"""Convert replies to actions and back."""

from collections.abc import Sequence

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

    @property
    def wait_seconds(self) -> float | None:
        """How long every wait lasts; None if a wait says how long."""
        return self._family.wait_seconds

    def read(self, reply: str) -> ParsedActions:
        """Read a reply; never raises."""
        return self._family.parse(reply, self._space)

    def write(self, actions: Sequence[Action]) -> str:
        """Return a reply that reads back as the actions.

        Raises:
            InexpressibleActionError: The family cannot express an action.
        """
        return self._family.write(actions, self._space)

    def write_click(self, x: int, y: int) -> str:
        """Return a reply that clicks at a pixel of the screen."""
        return self.write([Action(kind=ActionKind.CLICK, x=x, y=y)])
