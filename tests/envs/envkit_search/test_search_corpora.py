"""The search environment over the corpora that ship with it."""

import pytest

import envkit
from envkit.env import PolicyContext
from envkit_search import SearchEnv


def solve(env: SearchEnv, seed: int) -> tuple[float, bool]:
    """Play the oracle; return its reward, and whether its searches showed the answer."""
    env.reset(seed=seed)
    policy = env.oracle()
    for turn in range(env.max_turns):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=seed)
        step = env.step(policy(context))
        if step.terminated:
            return step.reward, step.info["verdict"]["has_gold"]
    raise AssertionError("the oracle never answered")


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["world", "facts"])
def test_search_oracle_finds_every_answer_by_searching(corpus: str) -> None:
    env = SearchEnv(corpus=corpus, reward="format", max_turns=16)
    outcomes = [solve(env, seed) for seed in range(200)]
    assert outcomes == [(1.0, True)] * 200


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["world", "facts"])
@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_search_passes_the_checker_over_its_corpora(corpus: str, protocol: str) -> None:
    report = envkit.check_env(envkit.make("search-v0", corpus=corpus, protocol=protocol))
    assert {"determinism", "snapshot", "replay", "oracle"} <= set(report.passed)


def test_search_makes_its_own_small_world() -> None:
    env = envkit.make("search-v0", corpus_options={"seed": 3, "size": 200}, hops=2)
    assert isinstance(env, SearchEnv)
    for seed in range(5):
        assert solve(env, seed)[0] == 1.0
        assert env.task["hops"] == 2
        assert env.task["world"]["size"] == 200


def test_search_answers_a_task_from_the_corpus_that_it_was_made_for() -> None:
    small = {"seed": 4, "size": 200}
    task = SearchEnv(corpus_options=small).tasks.task(0)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    env = SearchEnv(corpus_options={"seed": 5, "size": 200})
    env.reset(options={"task": task})
    step = env.step(f"<search>{task['gold_titles'][0]}</search>")
    assert step.info["titles"][0] == task["gold_titles"][0]
