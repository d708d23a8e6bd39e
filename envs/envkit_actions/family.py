"""What a model family's dialect of actions consists of."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from envkit.smart_resize import SmartResize
from envkit.tools import ToolSpec
from envkit_actions.action import Action
from envkit_actions.parsed import ParsedActions
from envkit_actions.spaces import CoordinateSpace, SpaceKind


class ActionFamily(ABC):
    """One dialect: how actions are asked for, read and written. Instances hold no state."""

    def __init__(
        self,
        name: str,
        *,
        counts: SpaceKind = SpaceKind.SCREEN,
        resize: SmartResize | None = None,
    ) -> None:
        """Note what the family counts in.

        Args:
            name: Its key in `FAMILIES`.
            counts: What its coordinates are.
            resize: What its models' processors usually do; None if they keep the size.
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
        """Return what the family counts in.

        Args:
            screen: Width and height of the environment's screen.
            sent: Of the screenshot as it is sent; None is the screen's.
            resize: What the model's processor does; None takes the family's usual one.

        Raises:
            ConfigurationError: A size or the resize is impossible.
        """
        return CoordinateSpace.of(self._counts, screen, sent=sent, resize=resize or self._resize)

    @abstractmethod
    def parse(self, reply: str, space: CoordinateSpace) -> ParsedActions:
        """Read a reply. Whatever is wrong with it becomes a problem; nothing is raised."""

    @abstractmethod
    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return a reply that reads back as the actions, within the rounding of the space.

        An action at a place may be written as a move to it and the action at the cursor.

        Raises:
            InexpressibleActionError: The family has no words for an action.
        """

    @abstractmethod
    def system_prompt(self, space: CoordinateSpace) -> str:
        """Return what the model must be told, in the family's conventions."""

    @abstractmethod
    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return the tools for the chat template; none where actions are text."""
