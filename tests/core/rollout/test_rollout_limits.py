"""Limits and budgets by themselves."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.rollout import Backoff, Limits, RetryBudget
from envkit.rollout.limits import observation_stop, room_for_reply
from envkit.trajectory import StopReason

bounds = st.none() | st.integers(1, 200)


@given(bounds, bounds, bounds, bounds, st.integers(1, 200), st.integers(0, 50), st.integers(0, 250))
def test_room_is_the_tightest_bound_and_names_it(
    turn: int | None,
    response: int | None,
    sampled: int | None,
    context: int | None,
    asked: int,
    already: int,
    used: int,
) -> None:
    limits = Limits(
        max_tokens_per_turn=turn,
        max_response_tokens=response,
        max_sampled_tokens=sampled,
        max_context_tokens=context,
    )
    room = room_for_reply(
        limits,
        requested=asked,
        already=already,
        response_tokens=used,
        sampled_tokens=used - 5,
        context_tokens=used + 10,
    )
    left = {
        StopReason.TURN_TOKENS: None if turn is None else turn - already,
        StopReason.RESPONSE_TOKENS: None if response is None else response - used,
        StopReason.SAMPLED_TOKENS: None if sampled is None else sampled - used + 5,
        StopReason.CONTEXT_TOKENS: None if context is None else context - used - 10,
    }
    assert room.tokens == min(v for v in (asked - already, *left.values()) if v is not None)
    if room.reason is not None:
        assert left[room.reason] == room.tokens
    else:
        assert room.tokens not in left.values()


@given(bounds, bounds, st.integers(0, 300), st.integers(0, 300), st.integers(0, 9))
def test_an_observation_always_leaves_room_for_a_token(
    response: int | None,
    context: int | None,
    response_tokens: int,
    context_tokens: int,
    images: int,
) -> None:
    limits = Limits(max_response_tokens=response, max_context_tokens=context, max_images=4)
    stop = observation_stop(
        limits, response_tokens=response_tokens, context_tokens=context_tokens, images=images
    )
    if stop is None:
        room = room_for_reply(
            limits,
            requested=10,
            already=0,
            response_tokens=response_tokens,
            sampled_tokens=0,
            context_tokens=context_tokens,
        )
        assert room.tokens >= 1
        assert images <= 4


@pytest.mark.parametrize("name", ["max_turns", "max_context_tokens", "episode_timeout_s"])
def test_limits_refuse_bounds_that_leave_nothing(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Limits(**{name: 0})
    Limits(max_images=0)


def test_retry_budget_refuses_negative_numbers() -> None:
    with pytest.raises(ConfigurationError, match="max_env_retries_per_turn"):
        RetryBudget(max_env_retries_per_turn=-1)
    with pytest.raises(ConfigurationError, match="step_timeout_s"):
        RetryBudget(step_timeout_s=0)


@given(st.integers(0, 60), st.integers(0, 9))
def test_backoff_grows_to_its_maximum_and_stays_positive(attempt: int, seed: int) -> None:
    backoff = Backoff(initial_s=0.5, factor=2, maximum_s=8, jitter=0.25)
    delay = backoff.delay(attempt, random.Random(seed))
    longest = min(8.0, 0.5 * 2**attempt)
    assert 0.75 * longest <= delay <= longest


@given(st.lists(st.tuples(bounds, bounds, bounds), min_size=1, max_size=4))
def test_tightest_limits_are_the_smallest_that_are_given(
    given_bounds: list[tuple[int | None, int | None, int | None]],
) -> None:
    names = ("max_turns", "max_images", "max_context_tokens")
    first, *others = (Limits(**dict(zip(names, one, strict=True))) for one in given_bounds)
    found = first.tightest(*others)
    for place, name in enumerate(names):
        known = [bound for one in given_bounds if (bound := one[place]) is not None]
        assert getattr(found, name) == min(known, default=None)
    assert found.max_response_tokens is None


NAN = float("nan")


def test_budgets_refuse_nan() -> None:
    with pytest.raises(ConfigurationError, match="episode_timeout_s"):
        Limits(episode_timeout_s=NAN)
    with pytest.raises(ConfigurationError, match="step_timeout_s"):
        RetryBudget(step_timeout_s=NAN)
