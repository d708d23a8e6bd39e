"""Limits and budgets by themselves."""

import asyncio
import random
from dataclasses import asdict, fields
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.branching import SUMMARY, Screens, reply
from fakes.codecs import text_codec
from fakes.playing import play_one
from fakes.staged import Answering, Staged, TextEngine, first
from fakes.templates import make_codec
from hypothesis import given
from hypothesis import strategies as st

from envkit.env import PolicyContext
from envkit.errors import ConfigurationError
from envkit.messages import text_of
from envkit.rollout import (
    Backoff,
    FinishReason,
    Interrupt,
    Limits,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.rollout.limits import observation_stop, reply_budget
from envkit.rollout.player import Player
from envkit.rollout.setup import EpisodeSpec
from envkit.trajectory import SegmentKind, StopReason, Trajectory, check_trajectory

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
    room = reply_budget(
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
    room = reply_budget(Limits(**{name: BOUND}), requested=requested, **{**counts, used: own})
    assert (room.tokens, room.reason) == (BOUND - own, stop)


@given(at_limit(BOUND, least=1))
def test_limit_wins_a_tie_with_the_sampling_parameter(requested: int) -> None:
    room = reply_budget(
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
    room = reply_budget(
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
        with pytest.raises(
            ConfigurationError, match=rf"{name} must be (positive|at least 0), got {value}"
        ):
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
    for name in ("step_timeout_s", "engine_unavailable_s"):
        with pytest.raises(ConfigurationError, match=name):
            RetryBudget(**{name: NAN})  # pyright: ignore[reportArgumentType]


# ---- each limit of the loop at its value, one below and one above


def kinds_of(trajectory: Trajectory) -> list[str]:
    return [segment.kind.value for segment in trajectory.segments]


async def played(
    env: Any = Staged, engine: Any = None, *, turns: int = 3, **options: Any
) -> Trajectory:
    factory = (lambda: Staged(turns=turns)) if env is Staged else env
    trajectory = await play_one(factory, engine or Answering(), text_codec(), seed=3, **options)
    assert check_trajectory(trajectory) == ()
    return trajectory


@given(at_limit(3, least=1), st.booleans())
def test_turn_limit_ends_the_episode_after_its_last_turn(turns: int, truncates: bool) -> None:
    env = lambda: Staged(turns=turns, truncates=truncates)  # noqa: E731
    trajectory = asyncio.run(played(env, limits=Limits(max_turns=3)))
    own = StopReason.ENV_TRUNCATED if truncates else StopReason.TERMINATED
    assert trajectory.stop_reason is (own if turns <= 3 else StopReason.MAX_TURNS)
    assert len(trajectory.turns) == trajectory.reward == min(turns, 3)
    assert kinds_of(trajectory)[-1] == "model"
    assert trajectory.messages[-1]["content"] == f"Answer {min(turns, 3) - 1}."


@pytest.mark.parametrize("most", [3, 4, 5])
async def test_turn_limit_does_not_count_summary_turns(most: int) -> None:
    codec = make_codec("qwen3")
    engine = ScriptedEngine(codec, reply)
    trajectory = await play_one(
        Screens, engine, codec, seed=3, history=SUMMARY, limits=Limits(max_turns=most)
    )
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    purposes = [turn.purpose for turn in trajectory.turns]
    assert purposes.count(None) == trajectory.reward == most
    assert "summarise" in purposes[:most]  # which the limit would have counted


@pytest.mark.parametrize("most", [2, 3, 4])
async def test_resumed_episode_that_has_reached_the_turn_limit_ends_without_a_reply(
    most: int,
) -> None:
    codec, interrupt = make_codec("qwen3"), Interrupt()

    def policy(context: PolicyContext) -> str:
        if context.turn == 3 and "Summarise" not in text_of(context.messages[-1]):
            interrupt.fire()
        return reply(context)

    cut = await play_one(
        Screens, ScriptedEngine(codec, policy), codec, seed=3, history=SUMMARY, interrupt=interrupt
    )
    assert cut.stop_reason is StopReason.ABORTED
    stepped = [turn for turn in cut.turns if turn.observation_hash and turn.purpose is None]
    assert len(stepped) == 3
    assert len(cut.turns) > 4  # with a summary and the reply that was not stepped
    engine = Answering(policy=reply, codec=codec)
    player = Player(engine, codec, RolloutConfig(history=SUMMARY, limits=Limits(max_turns=most)))
    (whole,) = await player.resume(cut, Screens)
    await player.aclose()
    assert check_trajectory(whole) == ()
    assert whole.stop_reason is StopReason.MAX_TURNS
    assert engine.requests == []
    assert whole.reward == max(3, most)
    assert [turn.response_text for turn in whole.turns] == [
        turn.response_text for turn in cut.turns
    ]


def lengths_of(trajectory: Trajectory) -> dict[str, int]:
    """Return the length of the prompt, of a reply and of an observation."""
    prompt, model, observation = (len(one.train_ids) for one in trajectory.segments[:3])
    return {"prompt": prompt, "reply": model, "observation": observation}


@pytest.mark.parametrize("name", ["max_response_tokens", "max_context_tokens"])
async def test_token_limit_cuts_a_reply_and_never_an_observation(name: str) -> None:
    size = lengths_of(await played())
    stop = StopReason(name.removeprefix("max_"))
    reply, observation = size["reply"], size["observation"]
    base = size["prompt"] if name == "max_context_tokens" else 0
    two = base + 2 * reply + observation
    for bound, replies, last, finish in [
        (two - 1, 2, reply - 1, "length"),  # cut, and not stepped
        (two, 2, reply, "stop"),
        (two + 1, 2, reply, "stop"),
        (two + observation, 2, reply, "stop"),  # no room for a reply
        (two + observation + 1, 3, 1, "length"),
    ]:
        trajectory = await played(limits=Limits(**{name: bound}))
        assert trajectory.stop_reason is stop, bound
        models = [one for one in trajectory.segments if one.kind is SegmentKind.MODEL]
        assert trajectory.segments[-1] is models[-1]
        assert (len(models), len(models[-1].train_ids)) == (replies, last)
        assert models[-1].finish_reason == finish
        assert trajectory.reward == (replies if finish == "stop" else replies - 1)


async def test_prompt_that_fills_the_context_leaves_no_reply() -> None:
    prompt = lengths_of(await played())["prompt"]
    for bound, replies in ((prompt - 1, 0), (prompt, 0), (prompt + 1, 1)):
        trajectory = await played(limits=Limits(max_context_tokens=bound))
        assert trajectory.stop_reason is StopReason.CONTEXT_TOKENS
        assert len(trajectory.turns) == trajectory.sampled_token_count == replies
        assert trajectory.reward == 0.0


async def test_limit_of_sampled_tokens_does_not_count_observations() -> None:
    reply = lengths_of(await played())["reply"]
    for bound, replies, last in [
        (2 * reply - 1, 2, reply - 1),
        (2 * reply, 2, reply),
        (2 * reply + 1, 3, 1),
    ]:
        trajectory = await played(limits=Limits(max_sampled_tokens=bound))
        assert trajectory.stop_reason is StopReason.SAMPLED_TOKENS
        assert trajectory.sampled_token_count == bound
        assert len(trajectory.turns) == replies
        assert len(trajectory.segments[-1].train_ids) == last
        assert kinds_of(trajectory)[-1] == "model"


async def test_limit_per_turn_cuts_only_replies_that_exceed_it() -> None:
    reply = lengths_of(await played())["reply"]
    for bound in (reply - 1, reply, reply + 1):
        trajectory = await played(limits=Limits(max_tokens_per_turn=bound))
        is_cut = bound < reply
        assert trajectory.stop_reason is (
            StopReason.TURN_TOKENS if is_cut else StopReason.TERMINATED
        )
        assert trajectory.reward == (0.0 if is_cut else 3.0)


@pytest.mark.parametrize(
    ("count", "finish", "is_end"),
    [
        (3, FinishReason.LENGTH, True),
        (2, FinishReason.LENGTH, False),  # the engine's own limit
        (3, FinishReason.STOP, False),
        (2, FinishReason.STOP, False),
    ],
)
async def test_reply_ends_the_episode_only_if_it_was_cut_at_the_limit(
    count: int, finish: FinishReason, is_end: bool
) -> None:
    short = first(2, FinishReason.STOP)
    engine = Answering({0: first(count, finish), 1: short, 2: short})
    trajectory = await played(engine=engine, limits=Limits(max_tokens_per_turn=3))
    assert trajectory.stop_reason is (StopReason.TURN_TOKENS if is_end else StopReason.TERMINATED)


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP])
@pytest.mark.parametrize("most", [5, None])
async def test_text_ends_the_episode_only_if_it_was_cut_at_the_limit(
    finish: FinishReason, most: int | None
) -> None:
    engine = TextEngine({1: first(0, finish)})
    trajectory = await play_text(engine, limits=Limits(max_tokens_per_turn=most))
    is_end = finish is FinishReason.LENGTH and most is not None
    assert trajectory.stop_reason is (StopReason.TURN_TOKENS if is_end else StopReason.TERMINATED)
    assert trajectory.reward == (1.0 if is_end else 3.0)
    assert [turn.prompt_tokens for turn in trajectory.turns] == [7] * len(trajectory.turns)
    assert [one["role"] for one in trajectory.messages[:4]] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert {turn.response_text for turn in trajectory.turns} == {"go go go go"}
    assert {turn.response_tokens for turn in trajectory.turns} == {4}


async def play_text(engine: TextEngine, env: Any = Staged, **options: Any) -> Trajectory:
    player = Player(engine, None, RolloutConfig(**options))
    (trajectory,) = await player.play(env, EpisodeSpec(seed=3))
    await player.aclose()
    return trajectory


@given(at_limit(2))
def test_resamples_stay_within_their_budget(bad: int) -> None:
    said: list[str] = []

    def policy(context: PolicyContext) -> str:
        said.append("bad bad bad" if len(said) < bad else "good")
        return said[-1]

    engine = Answering(policy=policy)
    budget = RetryBudget(resample_on_parse_error=2)
    trajectory = asyncio.run(played(engine=engine, retries=budget))
    assert trajectory.turns[0].resamples == min(bad, 2)
    assert [turn.resamples for turn in trajectory.turns[1:]] == [0, 0]
    kept = "bad bad bad" if bad > 2 else "good"
    assert trajectory.turns[0].response_text == kept
    assert trajectory.turns[0].response_tokens == len(trajectory.segments[1].train_ids)
    assert trajectory.turns[0].info["said"] == [kept]
    assert [one["content"] for one in trajectory.messages[1::2]] == [kept, "good", "good"]
    assert len(said) == 3 + min(bad, 2)
    assert trajectory.stop_reason is StopReason.TERMINATED
