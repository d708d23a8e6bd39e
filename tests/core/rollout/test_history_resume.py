"""Aborted episodes with a rewritten history: resumed, they end as the whole one does."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.branching import SUMMARY, TURNS, Screens, reply
from fakes.policy_runs import (
    LAST_TWO,
    Long,
    assert_played,
    assert_sound,
    assert_verifies,
    run,
    setting_of,
)
from fakes.templates import make_codec

from envkit.env import Observation, PolicyContext, Turn
from envkit.messages import Message, message
from envkit.rollout import (
    EpisodeSpec,
    FinishReason,
    GenerateRequest,
    Generation,
    HistoryView,
    Interrupt,
    Limits,
    Player,
    Question,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.trajectory import StopReason, Trajectory, check_trajectory, load, save, verify_file


class Aborting(ScriptedEngine):
    """Stops the run in the middle of one reply."""

    def __init__(self, *arguments: Any, interrupt: Interrupt, at: int) -> None:
        super().__init__(*arguments)
        self._interrupt, self._at = interrupt, at
        self._requests = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        answer = await super().generate(request)
        self._requests += 1
        if self._requests != self._at:
            return answer
        self._interrupt.fire()
        return Generation(
            token_ids=answer.token_ids[:1],
            logprobs=answer.logprobs[:1],
            finish_reason=FinishReason.ABORT,
            prompt_tokens=answer.prompt_tokens,
        )


@pytest.mark.parametrize("at", range(1, 14))
async def test_resumed_episode_continues_its_rewritten_history(at: int, tmp_path: Path) -> None:
    history = {"summarise": {"at_tokens": 150, "max_tokens": 20}}
    whole = await run(history, env=Screens(max_turns=12))
    env, interrupt = Screens(max_turns=12), Interrupt()
    codec = make_codec("qwen3")
    engine = Aborting(codec, reply, interrupt=interrupt, at=at)
    player = Player(engine, codec, RolloutConfig(history=history))
    (cut,) = await player.play(env, EpisodeSpec(seed=3), interrupt=interrupt)
    assert cut.stop_reason is StopReason.ABORTED, cut.fault
    save(cut, tmp_path / "cut.jsonl")
    assert verify_file(tmp_path / "cut.jsonl").is_sound
    (stored,) = load(tmp_path / "cut.jsonl")
    (resumed,) = await player.resume(stored, env)
    await player.aclose()
    assert resumed.fault is None, resumed.fault
    assert check_trajectory(resumed) == ()
    assert resumed.reward == whole.reward
    assert [turn.purpose for turn in resumed.turns].count("summarise") >= 1
    rows = resumed.steps(merge=True)
    assert sum(sum(row.loss_mask) for row in rows) == resumed.sampled_token_count


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


async def resumed(setting: str, folder: Path) -> Trajectory:
    """Resume the stored trajectory of a folder and check the whole episode."""
    (stored,) = load(folder / "stored.jsonl")
    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(history=setting))
    (whole,) = await player.resume(stored, Screens())
    await player.aclose()
    assert_played(whole, folder)
    return whole


async def test_abort_while_a_policy_runs_leaves_an_episode_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt = Interrupt(grace_s=0.1)
    calls: list[int] = []

    def slow(view: HistoryView) -> None:
        calls.append(view.turn)
        if len(calls) == 3:
            loop.call_soon_threadsafe(interrupt.fire)
            time.sleep(30)

    loop = asyncio.get_running_loop()
    setting = setting_of(monkeypatch, slow)
    async with asyncio.timeout(20):
        trajectory = await run(setting, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.ABORTED, trajectory.fault
    assert_verifies(trajectory, tmp_path)
    await resumed(setting, tmp_path)
    assert calls == [1, 2, 3, 3, 4, 5]


async def test_abort_while_an_answer_is_used_leaves_an_episode_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt = Interrupt(grace_s=0.1)
    rewrites: list[str] = []

    def ask(view: HistoryView) -> Question | None:
        def rewrite(text: str) -> Sequence[Message]:
            rewrites.append(text)
            if len(rewrites) == 1:
                loop.call_soon_threadsafe(interrupt.fire)
                time.sleep(30)
            return [*view.opening, message("user", text)]

        return (
            Question(text="Summarise.", max_tokens=20, rewrite=rewrite) if view.turn == 3 else None
        )

    loop = asyncio.get_running_loop()
    setting = setting_of(monkeypatch, ask)
    trajectory = await run(setting, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.ABORTED, trajectory.fault
    assert_verifies(trajectory, tmp_path)
    whole = await resumed(setting, tmp_path)
    assert rewrites == ["I saw screens."] * 2
    assert [turn.purpose for turn in whole.turns].count("ask") == 1


class Stubborn(Long):
    """Cannot say it shorter."""

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        return None


@pytest.mark.parametrize("history", ["keep", LAST_TWO, {"summarise": {"at_tokens": 60}}], ids=str)
@pytest.mark.parametrize("env", [Long, Stubborn])
@pytest.mark.slow
async def test_resumed_episode_ends_where_the_whole_one_does(
    env: type[Long], history: Any, tmp_path: Path
) -> None:
    interrupt, limits = Interrupt(), Limits(max_context_tokens=320)
    loop = asyncio.get_running_loop()

    class Aborting(env):
        def on_turn(self, response_text: str) -> Turn:
            if self.turn == 3 and interrupt.reason is None:
                loop.call_soon_threadsafe(interrupt.fire)
                time.sleep(0.2)
            return super().on_turn(response_text)

    whole = await run(history, env=env(), limits=limits)
    cut = await run(history, env=Aborting(), limits=limits, interrupt=interrupt)
    assert cut.stop_reason is StopReason.ABORTED
    codec = make_codec("qwen3")
    config = RolloutConfig(history=history, limits=limits)
    player = Player(ScriptedEngine(codec, reply), codec, config)
    (resumed,) = await player.resume(cut, env())
    await player.aclose()
    assert_verifies(resumed, tmp_path)
    assert resumed.stop_reason is whole.stop_reason
    assert resumed.reward == whole.reward
    assert resumed.messages == whole.messages
    assert [one.train_ids for one in resumed.segments] == [one.train_ids for one in whole.segments]
