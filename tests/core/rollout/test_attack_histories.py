"""Histories under attack: odd policies, templates and limits; each token keeps one owner."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from fakes.branching import IMAGES, SUMMARY, Screens, reply
from fakes.codecs import vision_codec
from fakes.templates import make_codec

from envkit.env import Capabilities, PolicyContext, Turn
from envkit.messages import Message
from envkit.rollout import (
    EpisodeSpec,
    HistoryView,
    Interrupt,
    Limits,
    Player,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.rollout.history import HistoryPolicy, history_policy
from envkit.trajectory import StopReason, Trajectory, check_trajectory

TURNS: Mapping[str, Any] = {"keep_last_turns": {"keep": 1, "drop_at": 2}}


class Tools(Screens):
    """Answers in messages of tools."""

    def on_turn(self, response_text: str) -> Turn:
        return Turn(f"Result {self.turn}.", role="tool", reward=1.0)


class Picky(Screens):
    """Understands every second attempt only."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)
    attempts: ClassVar[dict[int, int]] = {}

    def on_turn(self, response_text: str) -> Turn:
        if response_text.startswith("Bad"):
            return Turn("What?", reward=0.0, info={"parse_error": "bad"})
        return super().on_turn(response_text)


class Wavering:
    """Says something that does not parse at the first attempt of each turn."""

    def __init__(self) -> None:
        self.last = -1

    def __call__(self, context: PolicyContext) -> str:
        text = reply(context)
        if context.turn == self.last or text.startswith("I saw"):
            return text
        self.last = context.turn
        return f"Bad {text}"


async def run(
    history: Any,
    *,
    env: Any = None,
    template: str | None = "qwen3",
    script: Any = reply,
    **options: Any,
) -> Trajectory:
    codec = vision_codec() if template is None else make_codec(template)
    config = RolloutConfig(history=history, sanity_share=1.0, **options)
    player = Player(ScriptedEngine(codec, script), codec, config)
    try:
        (trajectory,) = await player.play(
            env or Screens(images=template is None), EpisodeSpec(seed=3)
        )
    finally:
        await player.aclose()
    return trajectory


def assert_sound(trajectory: Trajectory) -> None:
    assert trajectory.fault is None, trajectory.fault
    assert check_trajectory(trajectory) == ()
    rows = trajectory.steps(merge=True)
    assert sum(sum(row.loss_mask) for row in rows) == trajectory.sampled_token_count


@pytest.mark.parametrize("history", [SUMMARY, TURNS], ids=["summarise", "turns"])
@pytest.mark.parametrize("env", [Screens, Tools])
@pytest.mark.parametrize("template", ["gemma3", "mistral-7b", "qwen2.5", "qwen3"])
async def test_rewrites_fit_templates(template: str, env: type[Screens], history: Any) -> None:
    trajectory = await run(history, env=env(), template=template)
    assert_sound(trajectory)
    assert trajectory.branches
    assert trajectory.reward == 6.0


def twice(view: HistoryView) -> list[Message] | None:
    """Show the same message object twice."""
    if len(view.messages) < 6:
        return None
    return [
        *view.opening,
        view.messages[-2],
        view.messages[-1],
        view.messages[-2],
        view.messages[-1],
    ]


async def test_policy_may_show_one_message_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(_: str) -> HistoryPolicy:
        return twice

    monkeypatch.setattr(history_policy.__module__ + "._imported", imported)
    trajectory = await run("mine:policy", template="qwen3")
    assert_sound(trajectory)
    assert trajectory.branches


@pytest.mark.parametrize("history", [SUMMARY, TURNS], ids=["summarise", "turns"])
async def test_resampled_replies_survive_a_rewrite(history: Any) -> None:
    trajectory = await run(
        history,
        env=Picky(),
        script=Wavering(),
        retries=RetryBudget(resample_on_parse_error=1),
    )
    assert_sound(trajectory)
    assert trajectory.branches
    assert trajectory.reward == 6.0
    assert sum(turn.resamples for turn in trajectory.turns) == 6


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_max_images_counts_what_the_model_sees(limit: int) -> None:
    trajectory = await run(IMAGES, template=None, limits=Limits(max_images=limit))
    assert_sound(trajectory)
    ended = StopReason.MAX_IMAGES if limit == 1 else StopReason.ENV_TRUNCATED
    assert trajectory.stop_reason is ended


@pytest.mark.parametrize("history", [SUMMARY, TURNS], ids=["summarise", "turns"])
@pytest.mark.parametrize("stop", range(1, 9))
async def test_abort_between_turns_resumes_a_rewritten_history(stop: int, history: Any) -> None:
    codec, interrupt, calls = make_codec("qwen3"), Interrupt(), 0

    def script(context: PolicyContext) -> str:
        nonlocal calls
        calls += 1
        if calls == stop:
            interrupt.fire()
        return reply(context)

    player = Player(ScriptedEngine(codec, script), codec, RolloutConfig(history=history))
    (cut,) = await player.play(Screens(), EpisodeSpec(seed=3), interrupt=interrupt)
    if cut.stop_reason is StopReason.ABORTED:
        assert check_trajectory(cut) == ()
        (cut,) = await player.resume(cut, Screens())
    await player.aclose()
    whole = await run(history)
    assert_sound(cut)
    assert cut.reward == 6.0
    assert [turn.purpose for turn in cut.turns] == [turn.purpose for turn in whole.turns]
    assert [s.train_ids for s in cut.segments] == [s.train_ids for s in whole.segments]
