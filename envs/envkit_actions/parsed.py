"""The result of parsing a reply, and the collector that parsers fill."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from envkit_actions.action import Action
from envkit_actions.malformed import MalformedActionError
from envkit_actions.spaces import CoordinateSpace

MAX_ACTIONS: Final = 50
"""Maximum actions per reply."""
_MAX_WARNINGS: Final = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedActions:
    """A parsed reply."""

    actions: tuple[Action, ...] = ()
    """In order, up to the first problem: later actions were planned on the broken one's effect."""
    problems: tuple[str, ...] = ()
    """What could not be read, one sentence each, to show to the model. Empty if all was read."""
    warnings: tuple[str, ...] = ()
    """What was read but is probably a mistake, such as a point outside the screen."""
    out_of_range: int = 0
    """Points outside the screen that were clamped to its edge."""
    thought: str = ""
    """Text before the actions, hidden thinking first."""

    @property
    def info(self) -> dict[str, Any]:
        """Return what `info` of a turn says about the reply."""
        return {
            "parse_error": self.problems[0] if self.problems else None,
            "out_of_range": self.out_of_range,
            "actions": len(self.actions),
        }


def feedback(sentences: Sequence[str]) -> str:
    """Return what a model reads after its actions: the first sentences, or that all is done."""
    return "\n".join(sentence[:300] for sentence in sentences[:6]) or "Done."


class Reading:
    """Collects the actions of one reply."""

    def __init__(self, space: CoordinateSpace) -> None:
        self.space = space
        self._actions: list[Action] = []
        self._problems: list[str] = []
        self._warnings: list[str] = []
        self._out_of_range = 0

    def point(self, x: float, y: float) -> tuple[int, int]:
        """Return the screen pixel; a point outside is clamped, counted and reported."""
        point = self.space.to_screen(x, y)
        if not point.is_inside:
            self._out_of_range += 1
            if len(self._warnings) < _MAX_WARNINGS:
                extent = self.space.extent
                self._warnings.append(
                    f"the point ({x:.10g}, {y:.10g}) lies outside of {extent.width}x{extent.height}"
                    " and was moved to the nearest edge"
                )
        return point.x, point.y

    def add(self, *actions: Action) -> None:
        """Add actions.

        Raises:
            MalformedActionError: There are too many.
        """
        if len(self._actions) + len(actions) > MAX_ACTIONS:
            raise MalformedActionError(f"one reply may hold at most {MAX_ACTIONS} actions")
        self._actions.extend(actions)

    def problem(self, sentence: str) -> None:
        """Record what could not be read."""
        self._problems.append(sentence)

    def each(self, values: Iterable[T], read: Callable[[T], None]) -> None:
        """Read values in order until one is malformed; that one becomes the problem."""
        try:
            for value in values:
                read(value)
        except MalformedActionError as error:
            self.problem(str(error))

    def finish(self, thought: str = "") -> ParsedActions:
        """Return the result; a reply with neither action nor problem gets a problem."""
        if not self._actions and not self._problems:
            self.problem("the reply holds no action")
        return ParsedActions(
            actions=tuple(self._actions),
            problems=tuple(self._problems),
            warnings=tuple(self._warnings),
            out_of_range=self._out_of_range,
            thought=thought,
        )
