"""Prompts of the roles, and the form of the selector's choice."""

import re
from collections.abc import Sequence
from typing import Final

_CHOICE: Final = re.compile(r"judgment\s*:\s*[*\s]*(\d{1,6})", re.IGNORECASE)


def rewriter_prompt(problem: str, solutions: Sequence[str]) -> str:
    """Return the task of a rewriter."""
    return "\n\n".join(
        (
            f"Below are a problem and {_count(solutions)} of it, any of which may be wrong. Find "
            "out what is right in them and write a correct solution of your own. End it with the "
            "final answer in the form that the problem asks for.",
            f"Problem:\n{problem}",
            *_numbered(solutions),
        )
    )


def selector_prompt(problem: str, solutions: Sequence[str]) -> str:
    """Return the task of the selector."""
    return "\n\n".join(
        (
            f"Below are a problem and {_count(solutions)} of it. Compare their final answers, look "
            "for mistakes, and decide which solution is right.",
            f"Problem:\n{problem}",
            *_numbered(solutions),
            f"End your reply with exactly one line:\nJudgment: N\nwhere N is the number, 1 to "
            f"{len(solutions)}, of the best solution.",
        )
    )


def read_choice(reply: str, count: int) -> int | None:
    """Return the zero-based index of the chosen solution, or None if the reply names none.

    The last "Judgment: N" counts, since a reply may consider several before it decides; slime's
    example takes the first (examples/multi_agent/agent_system.py).
    """
    numbers = _CHOICE.findall(reply)
    chosen = int(numbers[-1]) - 1 if numbers else -1
    return chosen if 0 <= chosen < count else None


def _numbered(solutions: Sequence[str]) -> list[str]:
    return [f"Solution {n}:\n{solution}" for n, solution in enumerate(solutions, start=1)]


def _count(solutions: Sequence[str]) -> str:
    return f"{len(solutions)} solution{'s' * (len(solutions) > 1)}"
