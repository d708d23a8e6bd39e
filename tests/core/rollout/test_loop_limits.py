"""Each limit of the loop at its value, one below and one above."""

import asyncio
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
from envkit.messages import text_of
from envkit.rollout import (
    FinishReason,
    Interrupt,
    Limits,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.rollout.player import Player
from envkit.rollout.setup import EpisodeSpec
from envkit.trajectory import SegmentKind, StopReason, Trajectory, check_trajectory


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
    assert len(said) == 3 + min(bad, 2)
    assert trajectory.stop_reason is StopReason.TERMINATED
