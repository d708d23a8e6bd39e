"""`ShapeReward` and `RescaleReward`: rewards change as stated, and nothing else does."""

import math
from typing import Any, cast

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.envs import DotsEnv, EchoEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import envkit
from envkit.env import Env
from envkit.errors import ConfigurationError, ContractError, EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import Backoff, RetryBudget, ScriptedEngine, play
from envkit.wrappers import InjectFaults, RescaleReward, ShapeReward


def solved(env: Env) -> float:
    """Potential: how many images were counted rightly."""
    return float(cast(DotsEnv, env)._solved)


async def rewards(env: Any, reply: Any = None) -> list[float]:
    codec = vision_codec()
    engine = ScriptedEngine(codec, reply or DotsEnv().oracle())
    trajectory = await play(env, engine, codec, seed=2)
    return [turn.reward or 0.0 for turn in trajectory.turns]


async def test_each_turn_is_credited_for_its_progress() -> None:
    assert await rewards(ShapeReward(DotsEnv(), solved)) == [1.0, 1.0, 1.0 - 2.0]
    assert await rewards(ShapeReward(DotsEnv(), solved, gamma=0.5)) == [0.5, 0.0, 1.0 - 2.0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=5, max_size=5))
def test_the_return_changes_by_the_potential_of_the_start_alone(replies: list[int]) -> None:
    plain = DotsEnv()
    env = ShapeReward(DotsEnv(), lambda env: solved(env) * 3 + 7)
    plain.reset(seed=1)
    env.reset(seed=1)
    total = shaped = 0.0
    for reply in replies:
        step, other = plain.step(str(reply)), env.step(str(reply))
        total += step.reward
        shaped += other[1]
        assert math.isclose(sum(other[4]["reward_terms"].values()), other[1] - step.reward)
        if step.terminated or step.truncated:
            break

    assert math.isclose(shaped, total - 7)


async def test_a_recovered_episode_gets_the_rewards_of_an_undisturbed_one() -> None:
    plan = FaultPlan(schedule={("step", 2, n, 0): "transient" for n in range(3)})
    shaken = ShapeReward(InjectFaults(DotsEnv(), plan), solved)
    codec = vision_codec()
    retries = RetryBudget(backoff=Backoff(initial_s=0.001, maximum_s=0.002))

    trajectory = await play(
        shaken, ScriptedEngine(codec, DotsEnv().oracle()), codec, seed=2, retries=retries
    )

    assert plan.injected == {"transient": 1}  # the next attempts have other numbers
    assert [turn.reward for turn in trajectory.turns] == [1.0, 1.0, -1.0]


def test_a_potential_must_be_finite() -> None:
    env = ShapeReward(EchoEnv(), lambda _: math.nan)
    env.reset(seed=1)
    with pytest.raises(ContractError, match="finite number, got nan"):
        env.step("x")


def test_rewards_are_scaled_then_bounded_and_the_terms_add_up() -> None:
    env = RescaleReward(EchoEnv(), scale=4.0, shift=-0.5, low=-0.25, high=2.0)
    env.reset(seed=1)
    wrong = env.step("wrong")
    right = env.step(env.unwrapped.task["word"])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    assert wrong[1] == -0.25
    assert wrong[4]["reward_terms"] == {"rescaled": -0.25}
    assert right[1] == 2.0
    assert right[4]["reward_terms"] == {"exact": 1.0, "rescaled": 1.0}


async def test_a_fault_stays_a_fault() -> None:
    class Broken(EchoEnv):
        def on_turn(self, response_text: str) -> Any:
            raise EnvFault("the judge is gone", kind=FaultKind.GRADER)

    codec = text_codec()
    env = RescaleReward(Broken(), shift=1.0)
    trajectory = await play(env, ScriptedEngine(codec, lambda _: "x"), codec, seed=1)

    assert trajectory.reward is None


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="gamma must be 0 to 1"):
        ShapeReward(EchoEnv(), solved, gamma=1.5)
    with pytest.raises(ConfigurationError, match="low must not be above high"):
        RescaleReward(EchoEnv(), low=1.0, high=0.0)
    with pytest.raises(ConfigurationError, match="finite"):
        RescaleReward(EchoEnv(), scale=math.inf)


def test_wrapped_environments_pass_the_check() -> None:
    env = RescaleReward(ShapeReward(envkit.make("canary-v0"), lambda env: env.turn / 3))
    assert envkit.check_env(env).passed
