"""Aborting an episode at any moment and going on with it later."""

import asyncio
import gc
import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.faults import CountingEnv, FragileEnv, ReplayEnv, World, say_turn
from fakes.playing import play_one

from envkit.env import Capabilities, Env, Turn
from envkit.errors import ConfigurationError
from envkit.faults import FaultPlan
from envkit.images import Image
from envkit.rollout import (
    EpisodeSpec,
    GenerateRequest,
    Interrupt,
    Player,
    RetryBudget,
    ScriptedEngine,
    play,
    resume,
)
from envkit.tasks import Task
from envkit.trajectory import (
    SegmentKind,
    StopReason,
    Trajectory,
    check_trajectory,
    load,
    save,
    verify_file,
)


class Pictures(Env):
    """Four turns with a new image each."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, snapshot=True, replay_safe=True, deterministic=True
    )

    def __init__(self) -> None:
        super().__init__(max_turns=9)
        self._said: list[str] = []

    def on_reset(self, task: Task) -> Turn:
        self._said = []
        return Turn("Look.", images=self._picture())

    def on_turn(self, response_text: str) -> Turn:
        self._said.append(response_text)
        done = len(self._said) == 4
        info = {"said": list(self._said)}
        return Turn(f"Seen {len(self._said)}.", self._picture(), reward=0.5, done=done, info=info)

    def get_state(self) -> dict[str, Any]:
        return {"said": self._said}

    def set_state(self, state: dict[str, Any]) -> None:
        self._said = list(state["said"])

    def _picture(self) -> tuple[Image, ...]:
        level = 20 * len(self._said) + int(self.np_random.integers(10))
        return (Image.from_array(np.full((56, 56, 3), level, np.uint8)),)


class Replayed(Pictures):
    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)


class Neither(Pictures):
    capabilities: ClassVar[Capabilities] = Capabilities()


async def aborted_at(
    env: type[Pictures], turn: int, *, sampling: bool
) -> tuple[Trajectory, ScriptedEngine]:
    """Abort while the reply of a turn is sampled, or while the environment steps on it."""
    codec, interrupt = vision_codec(), Interrupt()

    def latency(request: GenerateRequest) -> float:
        assert request.context is not None
        if interrupt.reason is not None or request.context.turn != turn:
            return 0.0
        if sampling:
            asyncio.get_running_loop().call_later(0.01, interrupt.fire)
            return 30.0
        interrupt.fire()
        return 0.0

    engine = ScriptedEngine(codec, say_turn, latency=latency)
    return await play_one(env, engine, codec, seed=11, interrupt=interrupt), engine


@pytest.mark.parametrize("env", [Pictures, Replayed])
@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("sampling", [True, False])
async def test_resume_completes_an_episode_aborted_anywhere(
    env: type[Pictures], turn: int, sampling: bool
) -> None:
    codec = vision_codec()
    partial, engine = await aborted_at(env, turn, sampling=sampling)
    assert partial.stop_reason is StopReason.ABORTED
    assert partial.reward is None
    whole = await resume(partial, env, engine, codec)
    assert whole.stop_reason is StopReason.TERMINATED
    assert whole.reward == 2.0
    assert whole.episode_id == partial.episode_id
    assert [turn.turn for turn in whole.turns] == [0, 1, 2, 3]
    assert len(whole.images()) == 4
    assert check_trajectory(partial) == check_trajectory(whole) == ()
    assert whole.train_ids()[: len(partial.train_ids())] == partial.train_ids()
    assert whole.turns[-1].info["said"] == [turn.response_text for turn in whole.turns]


@pytest.mark.parametrize("sampling", [True, False])
async def test_resume_that_is_aborted_at_once_keeps_the_turn_of_its_cut_reply(
    sampling: bool,
) -> None:
    codec, interrupt = vision_codec(), Interrupt()
    partial, engine = await aborted_at(Pictures, 1, sampling=sampling)
    interrupt.fire()
    player = Player(engine, codec)
    (again,) = await player.resume(partial, Pictures, interrupt=interrupt)
    await player.aclose()
    assert again.stop_reason is StopReason.ABORTED
    assert check_trajectory(again) == ()
    assert [turn.response_text for turn in again.turns] == [
        turn.response_text for turn in partial.turns
    ]
    assert again.messages == partial.messages
    whole = await resume(again, Pictures, engine, codec)
    assert whole.reward == 2.0


async def test_resume_continues_a_reply_in_its_middle_with_both_parts_trained() -> None:
    codec = vision_codec()
    partial, engine = await aborted_at(Pictures, 1, sampling=True)
    assert partial.segments[-1].finish_reason == "abort"
    cut = partial.segments[-1]
    whole = await resume(partial, Pictures, engine, codec)
    parts = [s for s in whole.segments if s.kind is SegmentKind.MODEL and s.turn == cut.turn]
    assert parts[0].train_ids == cut.train_ids
    assert len(parts) == 2
    assert all(set(part.loss_mask) == {1} for part in parts)
    assert (
        codec.decode(sum((p.train_ids for p in parts), ())) == whole.turns[cut.turn].response_text
    )


async def test_resume_of_an_untouched_run_equals_the_run_that_was_never_aborted() -> None:
    codec = vision_codec()
    straight = await play(Pictures, ScriptedEngine(codec, say_turn), codec, seed=11)
    partial, _ = await aborted_at(Pictures, 1, sampling=False)
    whole = await resume(partial, Pictures, ScriptedEngine(codec, say_turn), codec)
    assert whole.train_ids() == straight.train_ids()
    assert [t.observation_hash for t in whole.turns] == [t.observation_hash for t in straight.turns]


@pytest.mark.parametrize("kind", [ReplayEnv, FragileEnv])
async def test_resume_never_applies_a_step_key_of_an_earlier_life(kind: type[CountingEnv]) -> None:
    world, codec, lives = World(), text_codec(), 3
    found: Trajectory | None = None
    for life in range(lives):
        interrupt = Interrupt()

        def latency(
            request: GenerateRequest, at: int = life + 1, stop: Interrupt = interrupt
        ) -> float:
            assert request.context is not None
            if request.context.turn == at < lives:
                stop.fire()
            return 0.0

        player = Player(ScriptedEngine(codec, say_turn, latency=latency), codec)
        spec, env = EpisodeSpec(seed=5, episode_id="e"), partial(kind, world, FaultPlan(0.0))
        if found is None:
            (found,) = await player.play(env, spec, interrupt=interrupt)
        else:
            (found,) = await player.resume(found, env, interrupt=interrupt)
        await player.aclose()
    assert found is not None
    assert found.stop_reason is StopReason.TERMINATED, found.fault
    assert set(world.steps.values()) == {1}
    assert len({episode for episode, _, _ in world.steps}) == lives


async def test_resume_refuses_an_environment_that_cannot_be_brought_back() -> None:
    codec = vision_codec()
    partial, engine = await aborted_at(Neither, 1, sampling=True)
    whole = await resume(
        partial, Neither, engine, codec, retries=RetryBudget(max_episode_restarts=0)
    )
    assert whole.stop_reason is StopReason.ENV_FAULT
    assert whole.fault is not None
    assert "replay_safe" in whole.fault.message


async def test_resume_restarts_an_environment_that_cannot_be_brought_back() -> None:
    codec = vision_codec()
    partial, engine = await aborted_at(Neither, 1, sampling=True)
    whole = await resume(partial, Neither, engine, codec)
    assert whole.stop_reason is StopReason.TERMINATED
    assert whole.env_restarts == 1
    assert [turn.turn for turn in whole.turns] == [0, 1, 2, 3]
    assert check_trajectory(whole) == ()


async def test_resume_refuses_a_finished_trajectory() -> None:
    codec = vision_codec()
    engine = ScriptedEngine(codec, say_turn)
    done = await play(Pictures, engine, codec, seed=1)
    with pytest.raises(ConfigurationError, match="only an aborted trajectory"):
        await resume(done, Pictures, engine, codec)


async def test_resume_continues_a_stored_trajectory(tmp_path: Path) -> None:
    codec = vision_codec()
    partial, engine = await aborted_at(Pictures, 2, sampling=True)
    save(partial, tmp_path / "partial.jsonl")
    (stored,) = load(tmp_path / "partial.jsonl")
    assert not any(segment.features for segment in stored.segments)
    whole = await resume(stored, Pictures, engine, codec)
    assert whole.reward == 2.0
    assert len(whole.tensors()["image_grid_thw"]) == 4
    save(whole, tmp_path / "whole.jsonl")
    report = verify_file(tmp_path / "whole.jsonl")
    assert report.is_sound, report


@pytest.mark.parametrize("steps", range(8))
async def test_resume_cancelled_before_it_starts_leaves_no_unawaited_coroutine(steps: int) -> None:
    partial, engine = await aborted_at(Pictures, 0, sampling=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = asyncio.ensure_future(resume(partial, Pictures, engine, vision_codec()))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
    assert [str(one.message) for one in caught] == []
