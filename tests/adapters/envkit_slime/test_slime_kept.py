"""Kept trajectories, masks and the engine; slime itself is not needed."""

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.envs import DotsEnv, EchoEnv

from envkit import rollout
from envkit.errors import StorageError
from envkit.trajectory import StopReason, Trajectory, whole_row
from envkit_slime import from_state, to_state
from envkit_slime.engine import CURRENT, Call, in_call
from envkit_slime.writer import Earlier


@dataclass
class State:
    aborted: bool = False
    tokenizer: Any = None
    processor: Any = None


def make_call(state: State, interrupt: rollout.Interrupt) -> Call:
    return Call(state=state, interrupt=interrupt)


async def played(codec: Any, env: Any) -> Trajectory:
    engine = rollout.ScriptedEngine(codec, lambda _: "wrong")
    return await rollout.play(env, engine, codec, seed=3)


async def test_slime_a_kept_trajectory_comes_back_equal_and_its_changes_are_seen() -> None:
    trajectory = await played(vision_codec(), DotsEnv(max_turns=2))
    state = pickle.loads(pickle.dumps(to_state(trajectory)))
    again = from_state(state)
    assert again.segments == trajectory.segments
    assert again.images() == trajectory.images()
    state["record"]["segments"][1]["logprobs"][0] = -9.0
    with pytest.raises(StorageError, match="changed"):
        from_state(state)
    bare = {"record": to_state(trajectory)["record"], "images": {}}
    with pytest.raises(StorageError, match="missing"):
        from_state(bare)
    with pytest.raises(StorageError):
        from_state("nonsense")


async def test_slime_zeros_of_an_earlier_part_stay_and_new_tokens_count() -> None:
    trajectory = await played(text_codec(), EchoEnv(max_turns=2))
    row = whole_row(trajectory, filler_id=0)
    tokens = (*row.prompt_ids, *row.response_ids)
    cut = len(row.prompt_ids) + 2
    earlier = Earlier(tokens=tokens[:cut], response_length=2, loss_mask=(0, 0))
    assert earlier.masked(row) == [0, 0, *row.loss_mask[2:]]
    other = Earlier(tokens=(*tokens[: cut - 1], -1), response_length=2, loss_mask=(0, 0))
    assert other.masked(row) == list(row.loss_mask)
    unmasked = Earlier(tokens=tokens[:cut], response_length=2, loss_mask=None)
    assert unmasked.masked(row) == list(row.loss_mask)


class Counting(rollout.ScriptedEngine):
    calls = 0

    async def generate(self, request: rollout.GenerateRequest) -> rollout.Generation:
        Counting.calls += 1
        return await super().generate(request)


class InCall(Counting):
    """Asks as slime's engine does."""

    async def generate(self, request: rollout.GenerateRequest) -> rollout.Generation:
        return await in_call(super().generate, request)


async def test_slime_an_episode_resumes_at_the_step_an_abort_postponed() -> None:
    codec, state, interrupt = text_codec(), State(), rollout.Interrupt()

    def script(context: Any) -> str:
        state.aborted = context.turn == 1
        return "wrong"

    Counting.calls = 0
    engine = InCall(codec, script)
    call = make_call(state, interrupt)
    player = rollout.Player(engine, codec)
    token = CURRENT.set(call)
    try:
        spec = rollout.EpisodeSpec(seed=3)
        (cut,) = await player.play(EchoEnv(max_turns=3), spec, interrupt=interrupt)
        assert cut.stop_reason is StopReason.ABORTED
        assert [turn.reward for turn in cut.turns] == [0.0, None]
        assert cut.segments[-1].finish_reason == "stop"
        state.aborted = False
        call.interrupt = rollout.Interrupt()
        (whole,) = await player.resume(from_state(to_state(cut)), EchoEnv(max_turns=3))
    finally:
        CURRENT.reset(token)
        await player.aclose()
    assert Counting.calls == 3  # the whole reply was not sampled again
    assert [turn.reward for turn in whole.turns] == [0.0, 0.0, 0.0]
    uninterrupted = await played(codec, EchoEnv(max_turns=3))
    assert whole.train_ids() == uninterrupted.train_ids()
    assert whole.stop_reason is uninterrupted.stop_reason


async def test_slime_engine_asks_nothing_once_the_flag_is_up() -> None:
    codec, interrupt = text_codec(), rollout.Interrupt()
    Counting.calls = 0
    player = rollout.Player(InCall(codec, lambda _: "x"), codec)
    state = State(aborted=True)
    call = make_call(state, interrupt)
    token = CURRENT.set(call)
    try:
        (trajectory,) = await asyncio.wait_for(player.play(EchoEnv(), interrupt=interrupt), 120)
    finally:
        CURRENT.reset(token)
        await player.aclose()
    assert (Counting.calls, trajectory.stop_reason) == (0, StopReason.ABORTED)
    assert interrupt.reason is StopReason.ABORTED
