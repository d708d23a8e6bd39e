"""The joint form of environments with several agents, their contract, and wrappers around them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from fakes.agents import GuessEnv, TalkEnv
from fakes.codecs import text_codec
from fakes.playing import play_roles
from hypothesis import given
from hypothesis import strategies as st

import envkit
from envkit.agents import MultiAgentEnv
from envkit.env import Turn
from envkit.errors import ConfigurationError, ContractError
from envkit.faults import FaultPlan
from envkit.reply import FinishReason, Reply
from envkit.rollout import Backoff, RetryBudget, ScriptedEngine
from envkit.trajectory import check_trajectory
from envkit.wrappers import InjectFaults, RescaleReward


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
