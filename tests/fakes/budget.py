"""How many examples a property test draws, by the profile that the run was started with."""

from hypothesis import settings

LEAST = 5
FULL = 100
"""Examples of a test that names no number, under the thorough profile."""


def examples(thorough: int) -> int:
    """Return the share of a test's full number of examples that this run's profile draws."""
    share = settings().max_examples / FULL
    return min(thorough, max(LEAST, round(thorough * share)))
