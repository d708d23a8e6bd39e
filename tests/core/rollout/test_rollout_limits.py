"""Limits and budgets by themselves."""

import random
from dataclasses import asdict, fields
from typing import Any

import pytest
from fakes.boundaries import at_limit
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


BOUND = 100


@pytest.mark.parametrize(
    ("name", "used", "stop"),
    [
        ("max_tokens_per_turn", "already", StopReason.TURN_TOKENS),
        ("max_response_tokens", "response_tokens", StopReason.RESPONSE_TOKENS),
        ("max_sampled_tokens", "sampled_tokens", StopReason.SAMPLED_TOKENS),
        ("max_context_tokens", "context_tokens", StopReason.CONTEXT_TOKENS),
    ],
)
@given(at_limit(BOUND), at_limit(BOUND))
def test_each_limit_counts_only_its_own_tokens(
    name: str, used: str, stop: StopReason, own: int, others: int
) -> None:
    counts = dict.fromkeys(
        ("already", "response_tokens", "sampled_tokens", "context_tokens"), others
    )
    requested = 2 * BOUND + others
    room = room_for_reply(Limits(**{name: BOUND}), requested=requested, **{**counts, used: own})
    assert (room.tokens, room.reason) == (BOUND - own, stop)


@given(at_limit(BOUND, least=1))
def test_limit_wins_a_tie_with_the_sampling_parameter(requested: int) -> None:
    room = room_for_reply(
        Limits(max_tokens_per_turn=BOUND),
        requested=requested,
        already=0,
        response_tokens=0,
        sampled_tokens=0,
        context_tokens=0,
    )
    is_own = requested < BOUND
    assert room.tokens == min(requested, BOUND)
    assert room.reason is (None if is_own else StopReason.TURN_TOKENS)


@pytest.mark.parametrize(
    ("name", "used", "stop"),
    [
        ("max_response_tokens", "response_tokens", StopReason.RESPONSE_TOKENS),
        ("max_context_tokens", "context_tokens", StopReason.CONTEXT_TOKENS),
        ("max_images", "images", StopReason.MAX_IMAGES),
    ],
)
@given(at_limit(BOUND), at_limit(BOUND))
def test_each_limit_of_an_observation_counts_only_its_own_use(
    name: str, used: str, stop: StopReason, own: int, others: int
) -> None:
    counts = dict.fromkeys(("response_tokens", "context_tokens", "images"), others)
    found = observation_stop(Limits(**{name: BOUND}), **{**counts, used: own})
    most = BOUND if name == "max_images" else BOUND - 1  # one token is left for the reply
    assert found is (stop if own > most else None)


@given(
    st.none() | st.just(BOUND),
    st.none() | st.just(BOUND),
    st.none() | st.just(4),
    at_limit(BOUND),
    at_limit(BOUND),
    at_limit(4),
)
def test_an_observation_is_appended_exactly_if_it_leaves_room_for_a_token(
    response: int | None,
    context: int | None,
    most_images: int | None,
    response_tokens: int,
    context_tokens: int,
    images: int,
) -> None:
    limits = Limits(
        max_response_tokens=response, max_context_tokens=context, max_images=most_images
    )
    stop = observation_stop(
        limits, response_tokens=response_tokens, context_tokens=context_tokens, images=images
    )
    room = room_for_reply(
        limits,
        requested=10,
        already=0,
        response_tokens=response_tokens,
        sampled_tokens=0,
        context_tokens=context_tokens,
    )
    reached = [
        reason
        for reason, is_reached in (
            (StopReason.RESPONSE_TOKENS, response is not None and response_tokens >= BOUND),
            (StopReason.CONTEXT_TOKENS, context is not None and context_tokens >= BOUND),
            (StopReason.MAX_IMAGES, most_images is not None and images > 4),
        )
        if is_reached
    ]
    assert stop is (reached[0] if reached else None)
    assert (room.tokens >= 1) == (stop in (None, StopReason.MAX_IMAGES))


@pytest.mark.parametrize("name", [entry.name for entry in fields(Limits)])
@pytest.mark.parametrize("value", [-1, 0, 1])
def test_limits_refuse_bounds_that_leave_nothing(name: str, value: int) -> None:
    if value > 0 or (value == 0 and name == "max_images"):
        assert getattr(Limits(**{name: value}), name) == value
    else:
        with pytest.raises(ConfigurationError, match=f"{name} must be positive .* got {value}"):
            Limits(**{name: value})
    assert getattr(Limits(**{name: None}), name) is None


def test_limit_in_seconds_may_be_small() -> None:
    assert Limits(episode_timeout_s=1e-12).episode_timeout_s == 1e-12


POSITIVE = ("step_timeout_s", "reset_timeout_s")


@pytest.mark.parametrize(
    "name", [entry.name for entry in fields(RetryBudget) if entry.name != "backoff"]
)
@pytest.mark.parametrize("value", [-1, 0, 1])
def test_retry_budget_refuses_negative_numbers(name: str, value: int) -> None:
    settings: dict[str, Any] = {name: value}
    if value > 0 or (value == 0 and name not in POSITIVE):
        assert getattr(RetryBudget(**settings), name) == value
    else:
        with pytest.raises(ConfigurationError, match=f"{name} must be .* got {value}"):
            RetryBudget(**settings)


@pytest.mark.parametrize("name", [*POSITIVE, "engine_unavailable_s"])
def test_retry_budget_may_wait_forever(name: str) -> None:
    settings: dict[str, Any] = {name: None}
    assert getattr(RetryBudget(**settings), name) is None


@pytest.mark.parametrize("name", [entry.name for entry in fields(Backoff)])
@pytest.mark.parametrize("value", [-1, 0, 1, 1.5])
def test_backoff_refuses_negative_numbers_and_a_jitter_above_1(name: str, value: float) -> None:
    if value < 0 or (value > 1 and name == "jitter"):
        with pytest.raises(ConfigurationError, match=f"{name} must be .* got {value}"):
            Backoff(**{name: value})
    else:
        assert getattr(Backoff(**{name: value}), name) == value


def test_budgets_have_their_documented_defaults() -> None:
    assert RetryBudget() == RetryBudget(
        max_env_retries_per_turn=2,
        max_env_retries_per_episode=6,
        max_engine_retries_per_turn=2,
        engine_unavailable_s=600,
        max_episode_restarts=1,
        resample_on_parse_error=0,
        step_timeout_s=120,
        reset_timeout_s=300,
        backoff=Backoff(initial_s=0.2, factor=2, maximum_s=10, jitter=0.2),
    )
    assert set(asdict(Limits()).values()) == {None}


@given(at_limit(4), st.sampled_from([0.0, 0.25, 1.0]), st.floats(0, 1, exclude_max=True))
def test_backoff_grows_to_its_maximum_and_loses_at_most_its_jitter(
    attempt: int, jitter: float, drawn: float
) -> None:
    class Drawn(random.Random):
        def random(self) -> float:
            return drawn

    backoff = Backoff(initial_s=0.5, factor=2, maximum_s=8, jitter=jitter)
    longest = {0: 0.5, 3: 4.0, 4: 8.0, 5: 8.0}[attempt]
    assert backoff.delay(attempt, Drawn()) == longest * (1 - jitter * drawn)


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
