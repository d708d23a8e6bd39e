"""Problems that rules find, with each mistake reported once.

One mistake may fail several rules: an error in `on_turn` stops every rule that plays. Problems with
the same cause are one mistake, reported in the words of the rule that checks for it.
"""

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import envkit
from envkit.errors import describe

_OWN: Final = str(Path(envkit.__file__).parent)
NOT_REPEATABLE: Final = "not repeatable"
"""Cause of a play that is not repeatable, for all rules that compare plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem that a rule found."""

    text: str
    cause: str
    """Problems with the same cause are one mistake."""
    stops_rule: bool = False
    """Whether an error ended the rule. Another rule describes the same cause better."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a rule that passes went by; the report prints it."""

    text: str


def raised(error: Exception, what: str = "", *, stops_rule: bool = False) -> Problem:
    """Return the problem for an error. Its cause is the line of the author's code that raised it.

    Args:
        error: What the environment raised.
        what: Beginning of the message.
        stops_rule: As in `Problem`.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OWN) and "gymnasium" not in Path(frame.filename).parts
    ]
    text = f"{what}{describe(error)[:300]}"
    if not frames:
        return Problem(text=text, cause=describe(error), stops_rule=stops_rule)
    last = frames[-1]
    cause = f"{type(error).__name__} {last.filename}:{last.lineno}"
    text += f" ({last.name}, line {last.lineno})"
    return Problem(text=text, cause=cause, stops_rule=stops_rule)


def mistakes(found: Iterable[tuple[str, Problem]]) -> list[str]:
    """Return a line per mistake: its rule, its text, and the other rules it broke.

    Args:
        found: Pairs of a rule's name and a problem, in the order found.
    """
    by_cause: dict[str, list[tuple[str, Problem]]] = {}
    for rule, problem in found:
        by_cause.setdefault(problem.cause, []).append((rule, problem))
    return [_line(same) for same in by_cause.values()]


def _line(same: list[tuple[str, Problem]]) -> str:
    rule, problem = min(same, key=lambda one: one[1].stops_rule)  # prefer a specific message
    again = sum(1 for other, _ in same if other == rule) - 1
    others = dict.fromkeys(other for other, _ in same if other != rule)
    more = [f"{again} more like it"] if again else []
    more += [f"also breaks: {', '.join(others)}"] if others else []
    return f"{rule}: {problem.text}" + (f" [{'; '.join(more)}]" if more else "")
