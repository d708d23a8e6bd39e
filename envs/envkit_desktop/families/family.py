"""Base classes of task families, also of those that end when a button submits them."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from envkit_actions.action import Action
from envkit_desktop import layout, moves
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.moves import Control, Value
from envkit_desktop.widgets import Button, Check, Slider, Spinner, Window

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


class SubmittedTask(Family):
    """A window "main" whose first button submits the task; Cancel ends it without submitting."""

    submit = "OK"

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """End the task by either button or by closing the window."""
        if event.window.name == "main" and (
            event.kind == "closing" or (event.kind == "clicked" and event.source.name in self._ends)
        ):
            desk.model |= {"sent": event.source.name == self.submit, OVER: True}
            return True
        return False

    def finish(self, desk: Desktop, window: Window, data: Data, rng: random.Random) -> None:
        """Add the two buttons to the built window, and the clutter around it."""
        layout.buttons(window, (self.submit, "Cancel"), desk.type_pixels)
        layout.clutter(desk, rng, data["clutter"])

    @property
    def _ends(self) -> tuple[str, ...]:
        return self.submit, "Cancel"

    def press_submit(self, desk: Desktop) -> Iterator[Action]:
        """Press the first button."""
        yield from moves.press(desk, desk.find(Button, "main", self.submit))

    def sent(self, desk: Desktop) -> bool:
        """Return whether the task was submitted."""
        return desk.model.get("sent") is True


class Form(SubmittedTask):
    """A window "main" whose controls must have given values when it is submitted."""

    @abstractmethod
    def wanted(self, data: Data) -> Iterator[tuple[type[Control], str, Value]]:
        """Yield the kind and the name of each control, and its value at the end."""

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each control whether it is right, and whether the task was submitted."""
        pairs = ((desk.find(kind, "main", name), value) for kind, name, value in self.wanted(data))
        return [_value(control) == value for control, value in pairs] + [self.sent(desk)]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Set each control, then submit."""
        for kind, name, value in self.wanted(data):
            yield from moves.set_control(desk, desk.find(kind, "main", name), value)
        yield from self.press_submit(desk)


def _value(control: Control) -> Value:
    if isinstance(control, Check):
        return control.checked
    return control.value if isinstance(control, Slider | Spinner) else control.text
