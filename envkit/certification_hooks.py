"""Optional hooks with which an environment describes itself to `envkit certify`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.tasks import Task
from envkit.turns import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificationHooks:
    """Guessing and grading functions. Each is optional and adds a check."""

    choices: Callable[[Task], Sequence[str]] | None = None
    """Candidate answers that need no solving: the options of a question, the numbers in its text.
    Adds a random choice, and all choices in one reply."""
    answer: Callable[[str], str] | None = None
    r"""Writes the reply for an answer, such as `\boxed{...}`; None uses the answer itself."""
    ask: Callable[[str], str] | None = None
    """Writes a reply that scores an answer without ending the episode, such as a tool call. With
    `choices` and `confirms_guess` it adds guessing with the scorer."""
    confirms_guess: Callable[[Step], bool] | None = None
    """Whether a step reports that the guess was right."""
    closed_book: Callable[[Task], str] | None = None
    """Answers from the question alone, without the image, search or tool that the task requires. It
    must not read the task's answer."""
    grade: Callable[[Task, str], float] | None = None
    """The grader: the reward of an answer."""
    second_grade: Callable[[Task, str], float] | None = None
    """Another implementation of the grader, for comparison."""
    answers: Callable[[Task], Sequence[str]] | None = None
    """Answers for comparing the graders: correct ones in other forms, near misses, garbage."""
    shows: Callable[[Task, Sequence[Image]], bool] | None = None
    """Whether the first observation's images show this task: reads them, or renders the task again
    and compares. Detects an image that is blank or belongs to another task."""
    best_return: float | None = None
    """Mean return of a solver, for an environment without an oracle."""

    def __post_init__(self) -> None:
        comparing = (self.grade, self.second_grade, self.answers)
        if any(comparing) and not all(comparing):
            raise ConfigurationError(
                "grade, second_grade and answers go together: give all three, or none"
            )
        if self.ask is not None and (self.choices is None or self.confirms_guess is None):
            raise ConfigurationError(
                "guessing with the scorer needs choices and confirms_guess in addition to ask"
            )

    def reply(self, answer: str) -> str:
        """Return the reply that gives an answer."""
        return answer if self.answer is None else self.answer(answer)


@runtime_checkable
class StatesHooks(Protocol):
    """An environment with certification hooks."""

    def certification_hooks(self) -> CertificationHooks:
        """Return the hooks."""
        ...


@runtime_checkable
class StatesChance(Protocol):
    """An environment that states the reward of blind guessing."""

    @property
    def chance_level(self) -> float:
        """Mean episode reward of the best blind policy."""
        ...
