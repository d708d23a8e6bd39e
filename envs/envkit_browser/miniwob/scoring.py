"""Convert the page's reward to the environment's reward."""

from enum import StrEnum
from typing import Final

UNFINISHED: Final = -1.0
"""Raw reward of an unfinished episode, the same as at the page's time limit."""


class Scoring(StrEnum):
    """How the raw reward of a page, -1 to 1, becomes the environment's."""

    SUCCESS = "success"
    """1.0 if the raw reward is above 0, else 0.0: the success rate that BrowserGym reports."""
    FULL = "full"
    """1.0 only for a raw reward of 1, else 0.0; differs from SUCCESS only in tasks with partial
    credit."""
    RAW = "raw"
    """The raw reward itself; an unfinished episode counts as -1, as at the time limit."""


def score(scoring: Scoring, raw: float | None) -> float:
    """Return the reward of an episode.

    Args:
        scoring: The rule.
        raw: The page's reward before any decay over time; None if the task was not submitted.
    """
    given = UNFINISHED if raw is None else raw
    if scoring is Scoring.RAW:
        return max(-1.0, min(1.0, given))
    return float(given > 0) if scoring is Scoring.SUCCESS else float(given >= 1)
