"""What a model family's dialect of actions consists of."""

from collections.abc import Sequence
from typing import Protocol

from envkit.tools import ToolSpec
from envkit_computer_use.actions.action import Action
from envkit_computer_use.actions.parsed import ParsedActions
from envkit_computer_use.actions.spaces import CoordinateSpace, SmartResize


class ActionFamily(Protocol):
    """One dialect: how actions are asked for, read and written. Instances hold no state."""

    @property
    def name(self) -> str:
        """Its key in `FAMILIES`."""
        ...

    def space(
        self,
        screen: tuple[int, int],
        *,
        sent: tuple[int, int] | None = None,
        resize: SmartResize | None = None,
    ) -> CoordinateSpace:
        """Return what the family counts in.

        Args:
            screen: Width and height of the environment's screen.
            sent: Of the screenshot as it is sent; None is the screen's.
            resize: What the model's processor does; None takes the family's usual one.

        Raises:
            ConfigurationError: A size or the resize is impossible.
        """
        ...

    def parse(self, reply: str, space: CoordinateSpace) -> ParsedActions:
        """Read a reply. Whatever is wrong with it becomes a problem; nothing is raised."""
        ...

    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return a reply that reads back as the actions, within the rounding of the space.

        An action at a place may be written as a move to it and the action at the cursor.

        Raises:
            InexpressibleActionError: The family has no words for an action.
        """
        ...

    def system_prompt(self, space: CoordinateSpace) -> str:
        """Return what the model must be told, in the family's conventions."""
        ...

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return the tools for the chat template; none where actions are text."""
        ...
