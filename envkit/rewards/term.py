"""One term of a reward: a name, a score, a weight and a gate."""

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from envkit import errors
from envkit.grading import UngradedError, is_unreachable
from envkit.messages import Message
from envkit.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """A finished episode, or the scored part of it."""

    task: Task
    answer: str
    """The final answer without calls and thinking; empty if the episode ended without one."""
    messages: Sequence[Message] = ()
    """The conversation so far, including the last reply."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other values from the environment, whose documentation lists the keys."""


Score = Callable[[RewardContext], float | Awaitable[float]]
"""Computes a term's value before its weight; synchronous or asynchronous."""
OpenGate = Callable[[RewardContext], bool]
"""Decides whether a term's score is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Opens when an earlier term's score is high enough. A closed term never opens a gate."""

    term: str
    at_least: float = 1.0
    """Threshold on the score, before its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A named part of a reward."""

    name: str
    score: Score
    weight: float = 1.0
    """Factor of the score; negative for a penalty."""
    gate: Gate | OpenGate | None = None
    """If it is closed, the term is 0.0 and its score is not computed. None means always open."""
    timeout_s: float = 50.0
    """Seconds after which a synchronous score counts as failed in `Rewards.ascore`. Twice as long
    should fit into a step. An asynchronous score sets its own deadline."""

    def __post_init__(self) -> None:
        """Check the name and the numbers.

        Raises:
            ConfigurationError: The name is empty, a number is not finite, or there is no time.
        """
        if not self.name:
            raise errors.ConfigurationError("a reward term needs a name, got ''")
        if not math.isfinite(self.weight):
            raise errors.ConfigurationError(
                f"reward term {self.name!r}: the weight must be finite, got {self.weight}"
            )
        if not self.timeout_s > 0:
            raise errors.ConfigurationError(
                f"reward term {self.name!r}: timeout_s must be above 0, got {self.timeout_s}"
            )
        if isinstance(self.gate, Gate) and math.isnan(self.gate.at_least):
            raise errors.ConfigurationError(f"reward term {self.name!r}: at_least must be a number")

    @property
    def is_async(self) -> bool:
        """Whether the score must be awaited."""
        call: Any = getattr(self.score, "__call__", None)  # noqa: B004  # an object with async __call__
        return inspect.iscoroutinefunction(self.score) or inspect.iscoroutinefunction(call)

    def checked(self, score: object) -> float:
        """Return a score that the function returned, as a finite float.

        Raises:
            ContractError: It is not finite; a NaN would poison the advantages of a whole group.
        """
        if isinstance(score, Real):
            with suppress(OverflowError):  # an integer beyond any float
                if math.isfinite(number := float(score)):
                    return number
        raise errors.ContractError(
            f"reward term {self.name!r} must return a finite number, got {errors.shown(score)}"
        )

    def failure(self, error: BaseException, part: Score | OpenGate) -> Exception:
        """Return the error to raise for a score or a gate that failed.

        Returns:
            `TermFailure` if what the policy did may have caused it; otherwise envkit's own error,
            or a GRADER fault if a server failed.
        """
        if isinstance(error, errors.EnvkitError) and not isinstance(
            error, UngradedError | errors.ContractError
        ):
            return error
        reason = f"reward term {self.name!r} failed: {errors.describe(error)}"
        if is_unreachable(error):
            return errors.EnvFault(reason, kind=errors.FaultKind.GRADER)
        return TermFailure(reason, term=self, part=part)


class TermFailure(UngradedError):
    """A term's score or gate could not be computed for one episode."""

    def __init__(self, reason: str, *, term: Term, part: Score | OpenGate) -> None:
        super().__init__(reason)
        self.term = term
        self.part = part
        """The function that failed."""
