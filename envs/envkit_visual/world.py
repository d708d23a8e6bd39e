"""What an author of a visual environment writes: states, a picture, actions, and a plan.

A `World` has no state of its own: every method is a pure function of a frozen state. `VisualEnv`
plays any of them.
"""

import inspect
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform

from envkit.errors import ConfigurationError
from envkit.marks import Mark
from envkit_visual.canvas import Canvas, Look

S = TypeVar("S")
Q = TypeVar("Q", bound="Asked")

LEVELS: Final = (1, 2, 3, 4)
_BETWEEN_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of states and of their parts, which are frozen dataclasses with keyword-only fields."""

    def __init_subclass__(cls) -> None:
        """Make a dataclass."""
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)


Domain = StrEnum(
    "Domain", ["GRIDS", "BOARDS", "GRAPHS", "CHARTS", "WARPS", "SCENES", "SCREENS", "PAGES"]
)
"""A family of worlds that share an engine."""


LOOK: Final = "The picture shows what the move did."
"""Feedback where saying more would replace a look."""


def plain(text: str) -> str:
    """Return a choice without capitals and without commas between its parts."""
    return " ".join(text.casefold().replace(",", " ").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[S]):
    """The result of one action."""

    state: S
    text: str = ""
    """Feedback, one sentence. It never tells what only the picture shows."""
    error: str | None = None
    """Why this is not an action of the world. The state is then unchanged, and a move is used."""
    mark: Mark | None = None
    """The action for viewers, with coordinates in units of the canvas; None shows its text."""


class World(ABC, Generic[S]):
    """One environment. `S` is a frozen dataclass of JSON data, with tuples for lists.

    A world is described where it is written. The paragraphs of its docstring are its summary, its
    rules, and optionally what an action is. Its name is that of its class unless it gives another,
    and its domain is that of its package.
    """

    name: ClassVar[str]
    domain: ClassVar[Domain]
    summary: ClassVar[str]
    """One line for listings."""
    rules: ClassVar[str]
    """The rules and the goal, for the system prompt."""
    actions: ClassVar[str]
    """How an action is written, completing "An action is ..."."""
    difficulty: ClassVar[tuple[str, int, int, int, int]]
    """What gets harder, such as "side of the maze", and its value at levels 1 to 4."""
    knob: ClassVar[str]
    levels: ClassVar[tuple[int, int, int, int]]
    options: ClassVar[Sequence[str]]
    """The choices, if they are the same in every state."""
    refusal: ClassVar[str]
    """The error for a text that is not an action."""
    question: ClassVar[str] = ""
    """The task in words, if it is the same in every state."""
    moves_per_reply: ClassVar[int] = 1
    """Actions that one reply may give, separated by commas."""
    is_multi_turn: ClassVar[bool] = True
    chance: ClassVar[float] = 0.0
    """Success rate of the best policy that does not see."""

    def __init_subclass__(cls) -> None:
        """Read the description of a world, which is a class with a difficulty."""
        super().__init_subclass__()
        if "difficulty" in vars(cls):
            if cls.__doc__ is None:
                raise ConfigurationError(
                    "the visual worlds are described in docstrings, which python -OO removes: run "
                    "Python without -OO"
                )
            paragraphs = inspect.cleandoc(cls.__doc__).split("\n\n")
            cls.summary, cls.rules, *actions = (" ".join(text.split()) for text in paragraphs)
            for text in actions:
                cls.actions = text.removeprefix("An action is ").removesuffix(".")
            cls.knob, cls.levels = cls.difficulty[0], cls.difficulty[1:]
            cls.domain = Domain(cls.__module__.split(".")[1])
            cls.name = vars(cls).get("name") or _BETWEEN_WORDS.sub("-", cls.__name__).lower()

    @classmethod
    def describe(cls) -> str:
        """Return the line for listings: domain, turns, levels and summary."""
        turns = "multi-turn" if cls.is_multi_turn else "one turn"
        values = ", ".join(map(str, cls.levels))
        return f"{cls.summary} ({cls.domain}; {turns}; levels by {cls.knob}: {values})"

    @classmethod
    def state_type(cls) -> type[Any]:
        """Return the class of the states, which is what `create` returns."""
        return cls.create.__annotations__["return"]

    @abstractmethod
    def create(self, rng: random.Random, size: int) -> S:
        """Draw a task.

        Args:
            rng: The only source of chance.
            size: The knob's value.
        """

    @abstractmethod
    def draw(self, state: S, canvas: Canvas, look: Look) -> None:
        """Draw everything that is needed to act well."""

    @abstractmethod
    def tell(self, state: S) -> str:
        """Say in words what the picture shows, as its text twin."""

    @abstractmethod
    def act(self, state: S, action: str) -> Outcome[S]:
        """Apply an action; `action` is any text of one line, stripped."""

    @abstractmethod
    def is_solved(self, state: S) -> bool:
        """Return whether the goal is reached."""

    @abstractmethod
    def plan(self, state: S) -> list[str]:
        """Return the fewest actions that solve the task, from any state that can be reached.

        An empty list where it is solved or lost.
        """

    def choices(self, state: S) -> Sequence[str]:
        """Return the actions that someone who does not see would try, in a fixed order."""
        return self.options

    def is_over(self, state: S) -> bool:
        """Return whether nothing can change the result any more."""
        return self.is_solved(state)

    def progress(self, state: S) -> float:
        """Return the part of the task that is done, from 0 to 1."""
        return float(self.is_solved(state))

    def ask(self, state: S) -> str:
        """Return the task in words, where the rules do not say it."""
        return self.question

    def goal(self, state: S) -> S | None:
        """Return the solved state, where a picture of it may be shown; None if there is none."""
        return None


class Staged(World[S]):
    """A world that is solved exactly where its progress is 1."""

    @abstractmethod
    def progress(self, state: S) -> float:
        """Return the part of the task that is done, from 0 to 1."""

    def is_solved(self, state: S) -> bool:
        """Return whether all of the task is done."""
        return self.progress(state) == 1


class ChoiceWorld(Staged[S]):
    """A world in which every action is one of the choices, whatever its capitals and commas."""

    def act(self, state: S, action: str) -> Outcome[S]:
        """Play a choice."""
        named = plain(action)
        for choice in self.choices(state):
            if plain(choice) == named:
                return self.play(state, choice)
        return Outcome(state=state, error=self.refusal)

    @abstractmethod
    def play(self, state: S, choice: str) -> Outcome[S]:
        """Apply one of the choices."""


class Asked(Record):
    """Base of a question's states."""

    given: str | None = None
    """The answer; None before it."""


class Question(World[Q]):
    """A world of one turn: a picture, a question and an answer."""

    is_multi_turn = False

    @abstractmethod
    def answer(self, state: Q) -> str:
        """Return the right answer."""

    def read(self, text: str) -> object:
        """Return what an answer means, equal for equal answers; None if it is not an answer."""
        return text.casefold()

    def is_right(self, state: Q, given: str) -> bool:
        """Return whether an answer is right."""
        return self.read(given) == self.read(self.answer(state))

    def mark(self, state: Q, given: str) -> Mark | None:
        """Return an answer's mark; None shows its text."""
        return None

    def act(self, state: Q, action: str) -> Outcome[Q]:
        """Take the answer, even a text that is not one, such as words for a number."""
        answered = replace(state, given=action)
        if self.read(action) is None:
            return Outcome(state=answered, error=self.refusal)
        verdict = "Right." if self.is_right(state, action) else "Wrong."
        return Outcome(state=answered, text=verdict, mark=self.mark(state, action))

    def is_solved(self, state: Q) -> bool:
        """Return whether the right answer was given."""
        given = state.given
        return given is not None and self.read(given) is not None and self.is_right(state, given)

    def is_over(self, state: Q) -> bool:
        """Return whether an answer was given."""
        return state.given is not None

    def plan(self, state: Q) -> list[str]:
        """Return the right answer."""
        return [] if state.given is not None else [self.answer(state)]
