"""Episodes of several agents, and their joint form: dialogue, rewards, limits, determinism."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.agents import BUDGET, GuessEnv, TalkEnv, guess_engine, slowly, speak
from fakes.budget import examples
from fakes.codecs import text_codec
from fakes.envs import EchoEnv
from fakes.faults import FaultyEngine
from fakes.playing import collected, play_all, play_roles
from fakes.virtual_time import skip
from fakes.waiting import until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import envkit
from envkit import rollout
from envkit.agents import MultiAgentEnv, credit
from envkit.env import Turn
from envkit.errors import ConfigurationError, ContractError
from envkit.faults import FaultPlan
from envkit.reply import FinishReason, Reply
from envkit.rollout import Backoff, RetryBudget, ScriptedEngine
from envkit.trajectory import (
    SegmentKind,
    StopReason,
    Trajectory,
    TrajectoryWriter,
    check_trajectory,
    verify_file,
)
from envkit.wrappers import InjectFaults, RescaleReward


def replies_of(trajectory: Trajectory) -> list[str]:
    return [turn.response_text for turn in trajectory.turns]


async def test_dialogue_gives_each_role_its_own_ledger_and_reward() -> None:
    played = await play_roles(GuessEnv(), guess_engine(), text_codec(), seed=3, group_id="g")

    asker, keeper = played["asker"], played["keeper"]
    number = asker.task["number"]
    assert replies_of(asker) == ["what is it?", str(number)]
    assert replies_of(keeper) == [f"it is {number}"]
    assert (asker.reward, keeper.reward) == (1.0, 0.5)
    assert [m["role"] for m in keeper.messages] == ["system", "user", "assistant"]
    assert {one.stop_reason for one in played.values()} == {StopReason.TERMINATED}
    assert rollout.rollout_id_of(asker) == rollout.rollout_id_of(keeper)
    assert [rollout.role_of(one) for one in played.values()] == ["asker", "keeper"]
    assert (asker.group_id, keeper.group_id) == ("g-asker", "g-keeper")
    assert asker.initial_observation_hash == keeper.initial_observation_hash
    assert all(check_trajectory(one) == () for one in played.values())


async def test_role_that_is_never_addressed_has_no_trajectory() -> None:
    engine = rollout.ScriptedEngine(text_codec(), lambda context: str(context.task["number"]))

    played = await play_roles(GuessEnv(), engine, text_codec(), seed=3)

    assert list(played) == ["asker"]
    assert played["asker"].reward == 1.0


async def test_late_reward_appears_in_turn_segment_and_row() -> None:
    keeper = (await play_roles(GuessEnv(), guess_engine(), text_codec(), seed=1))["keeper"]

    assert keeper.turns[-1].reward == 0.5
    assert keeper.segments[-1].reward == 0.5
    assert [row.reward for row in keeper.steps(merge=True)] == [0.5]


async def test_adjust_rewards_sees_all_roles_and_keeps_the_record_consistent() -> None:
    def share(played: Mapping[str, Trajectory]) -> Mapping[str, float]:
        total = sum(one.reward or 0.0 for one in played.values())
        return dict.fromkeys(played, total / 3)

    played = await play_roles(
        GuessEnv(), guess_engine(), text_codec(), seed=1, adjust_rewards=share
    )

    assert [one.reward for one in played.values()] == [0.5, 0.5]
    assert played["asker"].metadata["unadjusted_reward"] == 1.0
    assert "unadjusted_reward" not in played["keeper"].metadata
    assert all(check_trajectory(one) == () for one in played.values())


async def test_engines_and_samplings_go_by_role() -> None:
    codec = text_codec()
    liar = rollout.ScriptedEngine(codec, lambda context: "it is 99")

    played = await play_roles(
        GuessEnv(max_turns=4),
        guess_engine(),
        codec,
        engines={"keeper": liar},
        samplings={"asker": rollout.Sampling(max_new_tokens=64)},
        seed=1,
    )

    assert replies_of(played["keeper"])[0] == "it is 99"
    assert {one.stop_reason for one in played.values()} == {StopReason.ENV_TRUNCATED}
    with pytest.raises(ConfigurationError, match="kepeer"):
        await play_roles(GuessEnv(), guess_engine(), codec, engines={"kepeer": liar}, seed=1)


async def test_siblings_do_not_share_sampling_seeds() -> None:
    seeds: dict[str, int | None] = {}

    class Watching(rollout.ScriptedEngine):
        async def generate(self, request: rollout.GenerateRequest) -> rollout.Generation:
            seeds[request.session_id[-6:]] = request.sampling.seed
            return await super().generate(request)

    await play_roles(
        TalkEnv(count=3),
        Watching(text_codec(), speak),
        text_codec(),
        seed=5,
        sampling=rollout.Sampling(seed=0, max_new_tokens=64),
    )

    assert len(set(seeds.values())) == len(seeds) > 1


class ListeningEnv(GuessEnv):
    """Remembers what it was told."""

    heard: ClassVar[list[dict[str, str | None]]] = []

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        self.heard.append(dict(replies))
        return super().on_replies(replies)


async def test_limit_of_one_role_gives_the_environment_none_and_ends_that_role_alone() -> None:
    codec = text_codec()
    chatty = rollout.ScriptedEngine(codec, lambda context: "word " * 60)
    ListeningEnv.heard.clear()

    played = await play_roles(
        ListeningEnv,
        guess_engine(),
        codec,
        engines={"keeper": chatty},
        seed=1,
        limits=rollout.Limits(max_tokens_per_turn=20),
    )

    assert ListeningEnv.heard == [{"asker": "what is it?"}, {"keeper": None}]
    assert played["keeper"].stop_reason is StopReason.TURN_TOKENS
    assert played["asker"].stop_reason is StopReason.TERMINATED
    assert all(one.reward == 0.0 for one in played.values())
    assert all(check_trajectory(one) == () for one in played.values())


async def test_waiting_for_a_slow_sibling_does_not_count_as_a_step() -> None:
    codec = text_codec()

    def late(request: rollout.GenerateRequest) -> float:
        skip(60)
        return 0.0

    slow = rollout.ScriptedEngine(codec, GuessEnv().oracle(), latency=late)
    played = await play_roles(
        GuessEnv(),
        guess_engine(),
        codec,
        engines={"keeper": slow},
        seed=1,
        retries=rollout.RetryBudget(step_timeout_s=60, reset_timeout_s=60),
    )

    assert {one.stop_reason for one in played.values()} == {StopReason.TERMINATED}


async def test_interrupt_aborts_all_roles_without_a_reward() -> None:
    codec, interrupt = text_codec(), rollout.Interrupt()

    def interrupted(request: rollout.GenerateRequest) -> float:
        asyncio.get_running_loop().call_soon(interrupt.fire)
        return slowly(request)

    slow = rollout.ScriptedEngine(codec, GuessEnv().oracle(), latency=interrupted)
    played = await asyncio.wait_for(
        play_roles(
            GuessEnv(),
            guess_engine(),
            codec,
            engines={"keeper": slow},
            seed=1,
            interrupt=interrupt,
        ),
        timeout=120,
    )

    assert set(played) == {"asker", "keeper"}
    for one in played.values():
        assert one.stop_reason is StopReason.ABORTED
        assert one.reward is None
        assert check_trajectory(one) == ()
    with pytest.raises(ConfigurationError, match="siblings"):
        await rollout.resume(played["asker"], GuessEnv(), slow, codec)


async def test_cancellation_leaves_no_task_and_no_request() -> None:
    codec = text_codec()
    engine = FaultyEngine(codec, speak, FaultPlan(), latency=slowly)
    before = asyncio.all_tasks()
    task = asyncio.create_task(play_roles(TalkEnv(), engine, codec, seed=5))
    await until(lambda: bool(engine.running))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert engine.running == 0
    assert asyncio.all_tasks() == before


async def test_same_seed_gives_the_same_episode() -> None:
    async def once() -> list[tuple[object, ...]]:
        engine = rollout.ScriptedEngine(text_codec(), speak)
        played = await play_roles(TalkEnv(), engine, text_codec(), seed=11)
        return [
            (role, one.train_ids(), one.reward, [turn.info for turn in one.turns])
            for role, one in played.items()
        ]

    assert await once() == await once()


async def test_play_refuses_an_environment_with_several_agents() -> None:
    with pytest.raises(ConfigurationError, match=r"Player\.play"):
        await rollout.play(GuessEnv(), guess_engine(), text_codec(), seed=1)


async def test_player_gives_one_record_without_a_role_for_one_agent() -> None:
    engine = rollout.ScriptedEngine(text_codec(), EchoEnv().oracle())
    (one,) = await play_all(EchoEnv(), engine, text_codec(), seed=1)
    assert one.reward == 1.0
    assert not rollout.has_role(one)


async def test_collect_groups_the_episodes_of_a_role_and_passes_verify(tmp_path: Path) -> None:
    state = rollout.RolloutState()
    with TrajectoryWriter(tmp_path) as writer:
        async for one in collected(
            GuessEnv, guess_engine(), text_codec(), episodes=6, group_size=3, state=state
        ):
            writer.write(one)

    from envkit.trajectory import load

    stored = load(tmp_path / "trajectories.jsonl")
    assert verify_file(tmp_path).is_sound
    assert len({one.group_id for one in stored}) == 4  # two tasks, two roles
    assert len({rollout.rollout_id_of(one) for one in stored}) == 6
    assert (state.finished, state.faulted) == (6, 0)


async def test_drop_group_withholds_the_siblings_too() -> None:
    codec, state = text_codec(), rollout.RolloutState()
    # Not "permanent": 8 episodes that start with the same permanent fault correctly end a run.
    engine = FaultyEngine(codec, speak, FaultPlan(0.3, kinds=["timeout"], seed=4))

    out = [
        one
        async for one in collected(
            TalkEnv,
            engine,
            codec,
            episodes=12,
            group_size=2,
            state=state,
            on_fault=rollout.FaultPolicy.DROP_GROUP,
            retries=replace(BUDGET, max_engine_retries_per_turn=0),
        )
    ]

    assert state.dropped
    assert not any(one.is_faulted for one in out)
    assert not {rollout.rollout_id_of(o) for o in out} & {
        rollout.rollout_id_of(o) for o in state.dropped
    }


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 4),
    rounds=st.integers(1, 6),
    engine_rate=st.sampled_from([0.0, 0.0, 0.2]),
    world_rate=st.sampled_from([0.0, 0.3]),
    kinds=st.sampled_from([("transient", "crashed"), ("transient", "permanent")]),
    tokens=st.sampled_from([None, 6, 40, 90]),
    turns=st.sampled_from([None, 1, 2]),
)
def test_no_deadlock_no_lost_reply_and_replies_applied_once(
    seed: int,
    count: int,
    rounds: int,
    engine_rate: float,
    world_rate: float,
    kinds: tuple[str, ...],
    tokens: int | None,
    turns: int | None,
) -> None:
    built: list[TalkEnv] = []

    def build() -> TalkEnv:
        built.append(TalkEnv(plan, count=count, rounds=rounds))
        return built[-1]

    plan = FaultPlan({"engine": engine_rate, "world": world_rate}, seed=seed, kinds=kinds)

    async def once() -> tuple[Trajectory, ...]:
        engine = FaultyEngine(text_codec(), speak, plan)
        limits = rollout.Limits(max_response_tokens=tokens, max_turns=turns)
        player = rollout.Player(
            engine, text_codec(), rollout.RolloutConfig(retries=BUDGET, limits=limits)
        )
        before = asyncio.all_tasks()
        try:
            return await asyncio.wait_for(player.play(build, rollout.EpisodeSpec(seed=seed)), 120)
        finally:
            await player.aclose()
            assert asyncio.all_tasks() == before

    played = asyncio.run(once())

    assert len({one.is_faulted for one in played}) == 1
    for one in played:
        assert check_trajectory(one) == ()
        assert credit(one, 0.0) is one
        if one.is_faulted:
            assert one.reward is None
            assert not any(mask for row in one.steps(merge=True) for mask in row.loss_mask)
            continue
        told = [replies.get(rollout.role_of(one) or "") for replies in built[-1].heard]
        said = [turn.response_text for turn in one.turns if turn.observation_hash is not None]
        assert [reply for reply in told if reply is not None] == said
        model = [s.turn for s in one.segments if s.kind is SegmentKind.MODEL]
        assert len(model) == len(set(model))


class Scripted(MultiAgentEnv):
    """Returns what a test says."""

    roles = ("a", "b")

    def __init__(self, *answers: Any, late: Any = None) -> None:
        super().__init__(max_turns=4)
        self._answers, self._given = list(answers), late

    def on_reset(self, task: Mapping[str, Any]) -> Any:
        return self._answers.pop(0)

    def on_replies(self, replies: Mapping[str, str | None]) -> Any:
        return self._answers.pop(0)

    def on_end(self) -> Any:
        return self._given or {}


def play_rounds(env: MultiAgentEnv, count: int) -> None:
    env.reset(seed=0)
    for _ in range(count):
        env.step("reply")


BEGIN = {"a": Turn("begin")}


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        (({},), "address a role"),
        (({"c": Turn("x")},), "the roles are"),
        ((Turn("x"),), "a mapping of roles"),
        (({"a": "x"},), "envkit.Turn"),
        (({"a": Turn("x", reward=1.0)},), "has not spoken"),
        ((BEGIN, {"b": Turn("x", done=True)}), "has not spoken"),
        ((BEGIN, {"a": Turn("x", done=True), "b": Turn("x")}, {"a": Turn("y")}), "is done"),
    ],
)
def test_contract_of_the_hooks_is_checked(answers: tuple[Any, ...], word: str) -> None:
    with pytest.raises(ContractError, match=word):
        play_rounds(Scripted(*answers), len(answers) - 1)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(text='{"a": "yes", "b": null}', finish=FinishReason.LENGTH),
        Reply(text='{"a": "yes", "b": "no"}', opened="<think>"),
    ],
)
def test_joint_reply_that_was_cut_or_only_thought_is_nobodys(reply: Reply) -> None:
    begin = {"a": Turn("begin"), "b": Turn("begin")}
    env = Scripted(begin, begin)
    env.reset(seed=0)
    env.announce(reply)
    env.step(reply.text)

    assert [one and one.final for one in env.replies.values()] == ["", ""]


@pytest.mark.parametrize("late", [{"c": 1.0}, {"a": float("nan")}])
def test_rewards_of_the_end_are_checked(late: Any) -> None:
    env = Scripted(BEGIN, {}, late=late)
    env.reset(seed=0)
    with pytest.raises(ContractError):
        env.step("reply")


def test_joint_environment_passes_the_checker() -> None:
    report = envkit.check_env(GuessEnv(), factory=GuessEnv)
    assert {"determinism", "replay", "oracle", "replies"} <= set(report.passed)


def test_joint_reply_names_roles_and_null_leaves() -> None:
    env = Scripted(
        {"a": Turn("one"), "b": Turn("two")}, {"a": Turn("on", reward=0.5), "b": Turn("?")}, {}
    )
    observation, _ = env.reset(seed=0)
    assert json.loads(observation["text"]) == {"a": "one", "b": "two"}
    step = env.step('{"a": "yes", "b": null}')
    assert step.reward == 0.5
    assert env.addressed == ("a",)
    assert env.step("plain text").terminated


@given(st.text(max_size=60) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_any_reply_is_accepted(reply: str) -> None:
    env = TalkEnv(count=2)
    env.reset(seed=1)
    env.step(reply)
    assert set(env.heard[0].values()) <= {reply, None} or json.loads(reply)


async def test_faults_are_injected_around_the_shared_environment_and_recovered() -> None:
    plan = FaultPlan(0.4, seed=3, worst_attempts=2)
    engine = ScriptedEngine(text_codec(), GuessEnv().oracle())
    retries = RetryBudget(
        backoff=Backoff(initial_s=0.001, maximum_s=0.001),
        max_env_retries_per_turn=8,
        max_env_retries_per_episode=60,
    )
    for seed in range(6):
        played = await play_roles(
            lambda: InjectFaults(GuessEnv(), plan), engine, text_codec(), seed=seed, retries=retries
        )
        assert [one.reward for one in played.values()] == [1.0, 0.5]
        assert all(check_trajectory(one) == () for one in played.values())
    assert plan.injected.total() > 0


async def test_wrapper_that_changes_the_joint_reward_is_refused() -> None:
    engine = ScriptedEngine(text_codec(), GuessEnv().oracle())
    with pytest.raises(ConfigurationError, match="adjust_rewards"):
        await play_roles(lambda: RescaleReward(GuessEnv(), scale=3.0), engine, text_codec(), seed=1)
