"""What a family of tasks consists of."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from envkit_actions.action import Action
from envkit_desktop.desktop import Desktop, Event

OVER: Final = "over"
"""Key of the desktop's model: True once a task that is handed in was handed in."""
ANSWER: Final = "answer"
"""Key of the desktop's model: the text of the action that answers."""
ANSWER_FIELD: Final = "Answer"
"""Name of a text field that takes an answer as well, for models that have no such action."""

Data = dict[str, Any]
"""What a family draws for one task: JSON data with at least "goal", a sentence."""

_INFEASIBLE: Final = 0.03
"""Share of tasks that can't be done, of a level if there are such. Giving up at once earns as
much, which must stay below the 5% that a policy without eyes may earn."""
_LEAST_LEVEL: Final = 3
"""From which on some tasks can't be done."""
OR_FAIL: Final = " If that is impossible, end the task with failure."
"""What such goals say at these levels, whether it is possible or not."""


def is_feasible(rng: random.Random, level: int) -> bool:
    """Draw whether a task can be done."""
    return level < _LEAST_LEVEL or rng.random() >= _INFEASIBLE


def or_fail(level: int) -> str:
    """Return the sentence that the goal needs at a level."""
    return OR_FAIL if level >= _LEAST_LEVEL else ""


class Family(ABC):
    """Tasks of one kind at five levels. Instances hold no state."""

    name: ClassVar[str]

    @abstractmethod
    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw what is asked for.

        Data with `"feasible": False` is a task that can't be done; it ends rightly when the agent
        says so.
        """

    @abstractmethod
    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the windows of the task. `rng` is for looks only."""

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Be the program behind the windows; True for a "closing" that was dealt with."""
        return False

    @abstractmethod
    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each part of the goal whether it is reached; the task is solved by all."""

    @abstractmethod
    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Yield the next action of a solution, or nothing when only the end must be said."""
