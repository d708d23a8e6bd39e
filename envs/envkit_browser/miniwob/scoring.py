"""From the page's own reward to the reward of the environment."""

from enum import StrEnum
from typing import Final

UNFINISHED: Final = -1.0
"""The page's reward for an episode that it did not see the end of: what its time limit gives."""


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
        raw: What the page gave, before any decay over time; None if the task was not handed in.
    """
    given = UNFINISHED if raw is None else raw
    if scoring is Scoring.RAW:
        return max(-1.0, min(1.0, given))
    return float(given > 0) if scoring is Scoring.SUCCESS else float(given >= 1)
