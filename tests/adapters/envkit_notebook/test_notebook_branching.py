"""A branch by an engine: the recorded start token for token, another reply, the one loop behind."""

from dataclasses import replace
from typing import Any

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.trajectories import example

import envkit
from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, EnvFault
from envkit.messages import text_of
from envkit.rollout import ScriptedEngine, play
from envkit.trajectory import SegmentKind, StopReason, Trajectory, check_trajectory
from envkit_notebook import rerun


def engine_of(env: envkit.Env) -> ScriptedEngine:
    return ScriptedEngine(vision_codec(), env.oracle())


async def recorded() -> Trajectory:
    env = envkit.make("canary-v0")
    return await play(env, engine_of(env), vision_codec(), seed=7)


async def branched(trajectory: Trajectory, turn: int, reply: str) -> Trajectory:
    engine = engine_of(envkit.make("canary-v0"))
    return await rerun(trajectory, turn=turn, reply=reply, engine=engine, codec=vision_codec())


@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_branch_keeps_the_recorded_start_and_plays_on(turn: int) -> None:
    trajectory = await recorded()

    branch = await branched(trajectory, turn, "WRNG")

    kept = 2 * turn + 1  # prompt, then a reply and an observation for each turn
    assert branch.segments[:kept] == trajectory.segments[:kept]
    replies = [text_of(m) for m in branch.messages if m["role"] == "assistant"]
    right = [text_of(m) for m in trajectory.messages if m["role"] == "assistant"]
    assert replies == [*right[:turn], "WRNG", *right[turn + 1 :]]
    assert branch.reward == pytest.approx(2 / 3)
    assert branch.stop_reason is StopReason.TERMINATED
    assert check_trajectory(branch) == ()
    assert branch.metadata["branch"] == {"of": trajectory.episode_id, "turn": turn}


async def test_changed_reply_is_not_trained() -> None:
    branch = await branched(await recorded(), 1, "WRNG")

    models = [segment for segment in branch.segments if segment.kind is SegmentKind.MODEL]
    assert [any(segment.loss_mask) for segment in models] == [True, False, True]
    assert models[1].wire_ids == vision_codec().encode_reply("WRNG")
    (row,) = branch.steps(merge=True)
    assert sum(row.loss_mask) == sum(sum(segment.loss_mask) for segment in models)


async def test_branch_can_be_branched_again() -> None:
    once = await branched(await recorded(), 1, "WRNG")

    twice = await branched(once, 2, "ALSO")

    assert twice.reward == pytest.approx(1 / 3)
    assert check_trajectory(twice) == ()


async def test_replay_with_another_outcome_is_refused() -> None:
    trajectory = await recorded()
    first = replace(trajectory.turns[0], observation_hash="0" * 64)
    forged = replace(trajectory, turns=(first, *trajectory.turns[1:]))

    with pytest.raises(EnvFault, match=r"could not be played again up to turn 1: .* at turn 0"):
        await branched(forged, 1, "WRNG")


async def test_other_start_is_refused() -> None:
    trajectory = await recorded()
    with pytest.raises(EnvFault, match="started from a different observation"):
        await branched(replace(trajectory, initial_observation_hash="0" * 64), 1, "WRNG")


async def test_other_system_prompt_is_refused() -> None:
    trajectory = await recorded()
    other = replace(
        trajectory, messages=({"role": "system", "content": "Be rude."}, *trajectory.messages[1:])
    )
    with pytest.raises(ConfigurationError, match="another system prompt"):
        await branched(other, 1, "WRNG")


async def test_codec_of_another_model_is_refused() -> None:
    trajectory = await recorded()
    turns = [replace(turn, response_text="ZZZZ") for turn in trajectory.turns]
    with pytest.raises(ConfigurationError, match="load the codec of the model"):
        await branched(replace(trajectory, turns=tuple(turns)), 1, "WRNG")


@pytest.mark.parametrize(
    ("overrides", "turn", "message"),
    [
        ({}, 3, "0 to 2, got 3"),
        ({}, -1, "0 to 2, got -1"),
        ({"seed": None}, 0, "without a seed"),
        ({"metadata": {"role": "solver"}}, 0, "siblings"),
    ],
)
async def test_episode_that_cannot_be_branched_is_refused(
    overrides: dict[str, Any], turn: int, message: str
) -> None:
    def never(_: PolicyContext) -> str:
        raise AssertionError

    codec = text_codec()
    with pytest.raises(ConfigurationError, match=message):
        await rerun(
            example(**overrides),
            turn=turn,
            reply="x",
            engine=ScriptedEngine(codec, never),
            codec=codec,
        )
