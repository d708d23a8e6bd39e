"""Checks of chosen values."""

import math
from enum import StrEnum

import pytest

from envkit.errors import ConfigurationError
from envkit.ranges import at_least, one_of, positive, within


class _Pace(StrEnum):
    SLOW = "slow"
    FAST = "fast"


def test_choice_is_returned_and_a_wrong_one_shows_all() -> None:
    assert one_of("pace", "fast", _Pace) == _Pace.FAST
    assert one_of("level", None, (1, 2, None)) is None
    with pytest.raises(ConfigurationError, match="one of 'slow', 'fast', got 'odd'"):
        one_of("pace", "odd", _Pace)
    with pytest.raises(ConfigurationError, match=r"got \[1\]$"):
        one_of("level", [1], {1, 2})  # type: ignore[arg-type]


def test_ranges_allow_the_limit_and_none() -> None:
    at_least(1, turns=1, tokens=None)
    positive(wait_s=1e-9, limit_s=None)
    within(0, 1, low=0, high=1, share=None)


@pytest.mark.parametrize("value", [0, -1, math.nan, -math.inf])
def test_ranges_refuse_what_is_below_the_limit(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^turns must be at least 1, got "):
        at_least(1, tokens=2, turns=value)
    with pytest.raises(ConfigurationError, match=r"^wait_s must be positive, got "):
        positive(limit_s=1, wait_s=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_ranges_refuse_what_is_outside(value: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^share must be 0 to 1, got "):
        within(0, 1, size=1, share=value)
