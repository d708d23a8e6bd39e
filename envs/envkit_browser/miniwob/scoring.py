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
    """1.0 for a raw reward of 1 only, else 0.0; the same except in tasks that pay for parts."""
    RAW = "raw"
    """The raw reward itself; an episode without an end counts -1, as with the time limit."""


def score(scoring: Scoring, raw: float | None) -> float:
    """Return the reward of an episode.

    Args:
        scoring: The rule.
        raw: What the page gave, before any decay over time; None if the task was not submitted.
    """
    given = UNFINISHED if raw is None else raw
    if scoring is Scoring.RAW:
        return max(-1.0, min(1.0, given))
    return float(given > 0) if scoring is Scoring.SUCCESS else float(given >= 1)
