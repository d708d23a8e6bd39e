"""Convert the page's reward to the environment's reward."""

from enum import StrEnum
from typing import Final

UNFINISHED: Final = -1.0
"""Raw reward of an unfinished episode, the same as at the page's time limit."""


class Scoring(StrEnum):
    """How the raw reward of a page, -1 to 1, becomes the environment's."""

    FULL = "full"
    """1.0 if the task is solved, else 0.0: the raw reward is at least the task's own
    `TaskEntry.full`, which is 1 for all but six tasks."""
    SUCCESS = "success"
    """1.0 if the raw reward is above 0, else 0.0: the success rate that BrowserGym reports. It
    counts partial answers of the tasks in `PARTIAL` as solved."""
    RAW = "raw"
    """The raw reward itself; an unfinished episode counts as -1, as at the time limit."""


def score(scoring: Scoring, raw: float | None, full: float = 1.0) -> float:
    """Return the reward of an episode.

    Args:
        scoring: The rule.
        raw: The page's reward before any decay over time; None if the task was not submitted.
        full: Raw reward from which the task is solved.
    """
    given = UNFINISHED if raw is None else raw
    if scoring is Scoring.RAW:
        return max(-1.0, min(1.0, given))
    return float(given > 0) if scoring is Scoring.SUCCESS else float(given >= full)
