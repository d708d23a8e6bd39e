"""Base class of task families."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from envkit_actions.action import Action
from envkit_desktop.desktop import Desktop, Event

OVER: Final = "over"
"""Key of the desktop's model: True once the task was submitted."""
ANSWER: Final = "answer"
"""Key of the desktop's model: the text of the action that answers."""
ANSWER_FIELD: Final = "Answer"
"""Name of a text field for answers, for models without an answer action."""

Data = dict[str, Any]
"""Data of one task: JSON data with at least "goal", a sentence."""

_INFEASIBLE: Final = 0.03
"""Fraction of infeasible tasks at levels that have any.

A policy that always reports failure earns this much, so it must stay below the 5% limit for blind
policies.
"""
_LEAST_LEVEL: Final = 3
"""First level with infeasible tasks."""
OR_FAIL: Final = " If that is impossible, end the task with failure."
"""Sentence of goals at these levels, feasible or not."""


def is_feasible(rng: random.Random, level: int) -> bool:
    """Draw whether a task is feasible."""
    return level < _LEAST_LEVEL or rng.random() >= _INFEASIBLE


def or_fail(level: int) -> str:
    """Return the sentence that goals of a level end with."""
    return OR_FAIL if level >= _LEAST_LEVEL else ""


class Family(ABC):
    """Tasks of one kind at five levels. Instances hold no state."""

    name: ClassVar[str]

    @abstractmethod
    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw a task.

        Data with `"feasible": False` marks an infeasible task, solved when the agent reports
        failure.
        """

    @abstractmethod
    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the windows of the task. `rng` affects only looks."""

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """React to an event as the windows' program; True keeps a window open on "closing"."""
        return False

    @abstractmethod
    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether each subgoal is reached; all must be to solve the task."""

    @abstractmethod
    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Yield the next action of a solution, or nothing when only ending the task remains."""
