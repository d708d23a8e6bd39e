"""A game by hand, and a branch by an engine: the recorded start token for token."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.trajectories import example

import envkit
from envkit import AsyncEnv, Capabilities, Env, EnvFault, Turn
from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, EpisodeStateError, UnknownNameError
from envkit.messages import text_of
from envkit.rollout import ScriptedEngine, play
from envkit.rollout import play as roll
from envkit.trajectory import SegmentKind, StopReason, Trajectory, check_trajectory
from envkit_notebook import Game, rerun
from envkit_notebook.game import factory_for


class CountEnv(Env):
    """Add up numbers; three turns."""

    capabilities = Capabilities(replay_safe=True, deterministic=True)

    def __init__(self, *, step_size: int = 1, **kwargs: int) -> None:
        super().__init__(max_turns=kwargs.get("max_turns", 3))
        self.step_size, self.total = step_size, 0

    def on_reset(self, task: object) -> Turn:
        self.total = 0
        return Turn("start")

    def on_turn(self, response_text: str) -> Turn:
        self.total += self.step_size * len(response_text)
        return Turn(f"total {self.total}", reward=1.0, info={"reward_terms": {"step": 1.0}})


class SnapshotEnv(CountEnv):
    capabilities = Capabilities(snapshot=True)

    def get_state(self) -> dict[str, int]:
        return {"total": self.total}

    def set_state(self, state: dict[str, int]) -> None:
        self.total = state["total"]


class ForgetfulEnv(CountEnv):
    """Can neither be restored nor replayed."""

    capabilities = Capabilities()


class WaitingEnv(AsyncEnv):
    async def on_areset(self, task: object) -> Turn:
        await asyncio.sleep(0)
        return Turn("start")

    async def on_aturn(self, response_text: str) -> Turn:
        await asyncio.sleep(0)
        return Turn("", reward=1.0, done=True)


class BlockingEnv(CountEnv):
    """A step ends when the loop says so, which a blocked loop cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.was_freed = False

    def on_turn(self, response_text: str) -> Turn:
        self.has_begun.set()
        self.was_freed = self.may_end.wait(120)
        return super().on_turn(response_text)


async def started(env: Env, seed: int = 3) -> Game:
    game = Game(lambda: env, seed=seed)
    await game.start()
    return game


async def recorded(env: Env) -> Trajectory:
    codec = text_codec()
    return await roll(env, ScriptedEngine(codec, lambda c: "ab"[: c.turn + 1]), codec, seed=3)


async def test_game_plays_an_episode_reply_by_reply() -> None:
    game = await started(CountEnv())

    outcomes = [await game.reply("ab") for _ in range(3)]

    assert [outcome.truncated for outcome in outcomes] == [False, False, True]
    assert game.reward == 3.0
    assert [text_of(m) for m in game.messages if m["role"] == "user"][-1] == "total 6"
    assert [turn.info["reward_terms"] for turn in game.turns] == [{"step": 1.0}] * 3
    with pytest.raises(EpisodeStateError, match="start it again"):
        await game.reply("ab")
    await game.close()


async def test_game_plays_an_asynchronous_environment_on_this_loop() -> None:
    game = await started(WaitingEnv())

    await game.reply("go")

    assert (game.is_over, game.reward) == (True, 1.0)
    await game.close()


async def test_game_never_blocks_the_event_loop() -> None:
    env = BlockingEnv()
    game = await started(env)

    reply = asyncio.create_task(game.reply("a"))
    while not env.has_begun.is_set():
        await asyncio.sleep(0.005)
    env.may_end.set()
    await reply
    await game.close()

    assert env.was_freed


@pytest.mark.parametrize("env_class", [CountEnv, SnapshotEnv])
async def test_game_goes_back_by_replay_and_by_snapshot(env_class: type[CountEnv]) -> None:
    env = env_class()
    game = await started(env)
    for reply in ("a", "bb"):
        await game.reply(reply)

    await game.rewind(1)
    assert (env.total, game.replies, game.is_over) == (1, ("a",), False)
    await game.reply("ccc")

    assert text_of(game.messages[-1]) == "total 4"
    await game.close()


async def test_game_says_that_an_environment_cannot_go_back() -> None:
    game = await started(ForgetfulEnv())
    await game.reply("a")
    await game.reply("b")

    with pytest.raises(EnvFault, match="not replay_safe"):
        await game.rewind(1)
    assert game.is_over
    await game.start()
    assert not game.is_over
    await game.close()


async def test_game_follows_a_recorded_episode() -> None:
    trajectory = await recorded(CountEnv())
    env = CountEnv()
    game = Game(lambda: env, seed=trajectory.seed)

    await game.follow(trajectory, 2)

    assert (game.turn, env.total) == (2, 3)
    assert game.messages == list(trajectory.messages[:5])
    await game.close()


async def test_game_refuses_a_replay_with_another_outcome() -> None:
    trajectory = await recorded(CountEnv())
    game = Game(lambda: CountEnv(step_size=2), seed=trajectory.seed)

    with pytest.raises(EnvFault, match="a different outcome at turn 0"):
        await game.follow(trajectory, 2)
    assert game.is_over
    await game.close()


async def test_game_refuses_another_start() -> None:
    trajectory = await recorded(CountEnv())
    game = Game(WaitingEnv, seed=trajectory.seed)
    other = replace(trajectory, initial_observation_hash="elsewhere")

    with pytest.raises(EnvFault, match="started from a different observation"):
        await game.follow(other, 0)
    await game.close()


async def test_game_asks_the_oracle_and_writes_clicks() -> None:
    canary = Game(factory_for("canary-v0"), seed=7)
    await canary.start()
    assert canary.has_oracle
    assert (await canary.reply(canary.oracle())).reward == pytest.approx(1 / 3)
    assert not canary.takes_clicks
    with pytest.raises(ConfigurationError, match="takes no clicks"):
        canary.click(1, 2)
    await canary.close()

    desktop = Game(factory_for("computer-use-v0", level=1), seed=7)
    await desktop.start()
    assert desktop.click(30, 40) == '{"action": "click", "x": 30, "y": 40}'
    assert (await desktop.reply(desktop.click(30, 40))).info["parse_error"] is None
    await desktop.close()


def test_unknown_environment_is_named_at_once() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'canary-v0'"):
        factory_for("canry-v0")
    with pytest.raises(ConfigurationError, match="go with an environment's id"):
        factory_for(envkit.make("canary-v0"), turns=2)


async def test_wrong_arguments_are_a_fault_of_the_start() -> None:
    game = Game(factory_for("canary-v0", turns=0), seed=1)
    with pytest.raises(ConfigurationError, match="turns must be at least 1"):
        await game.start()
    await game.close()


def engine_of(env: envkit.Env) -> ScriptedEngine:
    return ScriptedEngine(vision_codec(), env.oracle())


async def recorded_canary() -> Trajectory:
    env = envkit.make("canary-v0")
    return await play(env, engine_of(env), vision_codec(), seed=7)


async def branched(trajectory: Trajectory, turn: int, reply: str) -> Trajectory:
    engine = engine_of(envkit.make("canary-v0"))
    return await rerun(trajectory, turn=turn, reply=reply, engine=engine, codec=vision_codec())


@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_branch_keeps_the_recorded_start_and_plays_on(turn: int) -> None:
    trajectory = await recorded_canary()

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
    branch = await branched(await recorded_canary(), 1, "WRNG")

    models = [segment for segment in branch.segments if segment.kind is SegmentKind.MODEL]
    assert [any(segment.loss_mask) for segment in models] == [True, False, True]
    assert models[1].wire_ids == vision_codec().encode_reply("WRNG")
    (row,) = branch.steps(merge=True)
    assert sum(row.loss_mask) == sum(sum(segment.loss_mask) for segment in models)


async def test_branch_can_be_branched_again() -> None:
    once = await branched(await recorded_canary(), 1, "WRNG")

    twice = await branched(once, 2, "ALSO")

    assert twice.reward == pytest.approx(1 / 3)
    assert check_trajectory(twice) == ()


async def test_replay_with_another_outcome_is_refused() -> None:
    trajectory = await recorded_canary()
    first = replace(trajectory.turns[0], observation_hash="0" * 64)
    forged = replace(trajectory, turns=(first, *trajectory.turns[1:]))

    with pytest.raises(EnvFault, match=r"could not be played again up to turn 1: .* at turn 0"):
        await branched(forged, 1, "WRNG")


async def test_other_start_is_refused() -> None:
    trajectory = await recorded_canary()
    with pytest.raises(EnvFault, match="started from a different observation"):
        await branched(replace(trajectory, initial_observation_hash="0" * 64), 1, "WRNG")


async def test_other_system_prompt_is_refused() -> None:
    trajectory = await recorded_canary()
    other = replace(
        trajectory, messages=({"role": "system", "content": "Be rude."}, *trajectory.messages[1:])
    )
    with pytest.raises(ConfigurationError, match="another system prompt"):
        await branched(other, 1, "WRNG")


async def test_codec_of_another_model_is_refused() -> None:
    trajectory = await recorded_canary()
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
