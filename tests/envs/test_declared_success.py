"""The built-in environments declare success, and wrong answers never have it."""

from importlib.util import find_spec
from typing import Any

import gymnasium
import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.playing import collected, play_one

import envkit
from envkit import registration
from envkit.env import Policy, PolicyContext
from envkit.registration import members
from envkit.rollout import Limits, ScriptedEngine
from envkit.trajectory import Trajectory, success_of, threshold_of

WHOLE = (
    "canary-v0", "dialogue-v0", "geo3k-v0", "search-v0", "terminal-v0", "computer-use-v0",
    "computer-use-linux-v0", "computer-use-miniwob-v0",
)  # fmt: skip
"""Environments that pay 1.0 for the whole task."""


def _says(text: str) -> Policy:
    return lambda context: text


async def played(env_id: str, policy: Any, episodes: int, **arguments: Any) -> list[Trajectory]:
    def build() -> Any:
        return envkit.make(env_id, **arguments)

    codec = vision_codec() if env_id.startswith(("canary", "geo3k", "computer")) else text_codec()
    engine = ScriptedEngine(codec, policy)
    runs = collected(build, engine, codec, episodes=episodes, seed=1, limits=Limits(max_turns=12))
    return [one async for one in runs]


@pytest.mark.parametrize("env_id", WHOLE)
def test_environment_that_pays_for_whole_tasks_declares_it(env_id: str) -> None:
    assert envkit.spec(env_id).reward_threshold == 1.0


@pytest.mark.parametrize("env_id", ["verifiers-v0", "openenv-v0", "mcp-v0", "computer-use-page-v0"])
def test_environment_of_foreign_rewards_declares_nothing(env_id: str) -> None:
    assert envkit.spec(env_id).reward_threshold is None


def test_members_of_gymnasium_keep_their_thresholds() -> None:
    listed = members("gymnasium")
    for env_id, found in listed.items():
        theirs = gymnasium.registry[env_id.removeprefix("gymnasium/")].reward_threshold
        assert found.reward_threshold == theirs
    assert listed["gymnasium/CartPole-v1"].reward_threshold == 475.0
    assert listed["gymnasium/Acrobot-v1"].reward_threshold == -100.0
    assert listed["gymnasium/Pendulum-v1"].reward_threshold is None
    made = envkit.make("gymnasium-v0", env="CartPole-v1")
    assert made.reward_threshold == 475.0
    assert envkit.make("gymnasium-v0", env="CartPole-v1", reward_threshold=9).reward_threshold == 9


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), "1"])
def test_foreign_threshold_that_is_no_number_is_none(threshold: Any) -> None:
    """Gymnasium takes anything; one odd registration must not hide the others."""
    cart_pole = gymnasium.registry["CartPole-v1"]
    for name in ("Odd-v0", "envkit/odd-v0"):
        point: Any = cart_pole.entry_point
        gymnasium.register(name, point, reward_threshold=threshold)
    try:
        assert members("gymnasium")["gymnasium/Odd-v0"].reward_threshold is None
        assert envkit.registry()["odd-v0"].reward_threshold is None
        assert envkit.make("gymnasium-v0", env="Odd-v0").reward_threshold is None
    finally:
        for name in ("Odd-v0", "envkit/odd-v0"):
            del gymnasium.registry[name]
        gymnasium.registry.pop("gymnasium/Odd-v0", None)
        registration._registered.pop("gymnasium/Odd-v0", None)


async def test_random_cart_pole_earns_a_reward_and_no_success() -> None:
    env: Any = envkit.make("gymnasium/CartPole-v1").unwrapped
    policy = env.policies["random"]()
    found = await played("gymnasium/CartPole-v1", policy, 2, view="state")
    assert all((one.reward or 0) > 0 for one in found)
    assert {success_of(one) for one in found} == {False}


@pytest.mark.parametrize(("bonus", "solved"), [(0.0, False), (100.0, False)])
async def test_bonus_for_the_end_does_not_reach_the_threshold(bonus: float, solved: bool) -> None:
    env: Any = envkit.make(
        "gymnasium/CartPole-v1", view="state", termination_reward=bonus, reward_threshold=90
    )
    codec = text_codec()
    policy = env.unwrapped.policies["random"]()
    one = await play_one(env, ScriptedEngine(codec, policy), codec, seed=3)
    assert ((one.reward or 0) >= 90) is (bonus > 0)
    assert success_of(one) is solved


async def test_one_right_code_of_several_is_no_success() -> None:
    oracle = envkit.make("canary-v0").oracle()

    def first_only(context: PolicyContext) -> str:
        return oracle(context) if context.turn == 0 else "nothing"

    some = await played("canary-v0", first_only, 4)
    assert all(0 < (one.reward or 0) < 1 for one in some)
    assert {success_of(one) for one in some} == {False}
    every = await played("canary-v0", oracle, 4)
    assert {success_of(one) for one in every} == {True}


@pytest.mark.parametrize("turns", [3, 7, 10])
async def test_every_right_code_is_success_whatever_their_number(turns: int) -> None:
    oracle = envkit.make("canary-v0").oracle()
    (one,) = await played("canary-v0", oracle, 1, turns=turns)
    assert success_of(one) is True


@pytest.mark.parametrize("reward", ["exact", "f1", "format", {"searches": 1.0, "answered": 5.0}])
async def test_search_counts_right_answers_whatever_it_pays(reward: Any) -> None:
    def wrong(context: PolicyContext) -> str:
        return "<think>x</think><answer>zzz</answer>"

    found = await played("search-v0", wrong, 3, reward=reward)
    assert {success_of(one) for one in found} == {False}
    oracle = envkit.make("search-v0", reward=reward).oracle()
    assert {success_of(one) for one in await played("search-v0", oracle, 3, reward=reward)} == {
        True
    }


@pytest.mark.slow
async def test_shaped_desktop_pays_for_progress_and_counts_whole_tasks() -> None:
    oracle = envkit.make("computer-use-v0").oracle()
    for shaping, policy, solved in ((9.0, _says("?"), False), (9.0, oracle, True)):
        found = await played("computer-use-v0", policy, 2, shaping=shaping)
        assert {success_of(one) for one in found} == {solved}


async def test_penalties_of_geometry_do_not_undo_a_right_answer() -> None:
    env = envkit.make("geo3k-v0")
    oracle = env.oracle()

    def late(context: PolicyContext) -> str:
        return "no call" if context.turn == 0 else oracle(context)

    found = await played("geo3k-v0", late, 3)
    assert {success_of(one) for one in found} == {True}
    penalised = await played("geo3k-v0", late, 3, format_penalty=0.5)
    assert all((one.reward or 0) < 1 for one in penalised)
    assert {success_of(one) for one in penalised} == {True}
    wrong = await played("geo3k-v0", _says("no call"), 3, format_penalty=0.5)
    assert {success_of(one) for one in wrong} == {False}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
@pytest.mark.filterwarnings("ignore:reasoning-gym's grader of:RuntimeWarning")
async def test_wrong_answers_that_graders_pay_for_are_no_success() -> None:
    wrong = "<answer>zzz</answer>"
    for name in ("fraction_simplification", "gcd", "leg_counting"):
        found = await played(f"reasoning_gym/{name}-v0", _says(wrong), 3)
        assert {success_of(one) for one in found} == {False}
    paid = {"coin_flip": "0", "game_of_life_halting": "zzz", "puzzle24": "6*(10/2 - 1)"}
    for name, answer in paid.items():
        reply = f"<answer>{answer}</answer>"
        found = await played(f"reasoning_gym/{name}-v0", _says(reply), 3)
        assert max(one.reward or 0 for one in found) == 1.0
        assert {(threshold_of(one), success_of(one)) for one in found} == {(None, None)}
