"""Every environment can be played by its policy `random`, which repeats itself."""

from contextlib import closing
from typing import Any

import pytest
from fakes.needs import BROWSER, BUBBLEWRAP, DESKTOP, REASONING_GYM

import envkit
from envkit.env import PolicyContext
from envkit.random_replies import random_policy
from envkit.rollout import EnvSource
from envkit_isolation import isolated

FOREIGN = {"harbor-v0", "mcp-v0", "openenv-v0", "pettingzoo-v0", "textarena-v0", "verifiers-v0"}
"""They have no server and no library here; contract suites play them."""
NEEDS = {
    "computer-use-miniwob-v0": BROWSER,
    "computer-use-page-v0": BROWSER,
    "computer-use-linux-v0": DESKTOP,
    "terminal-v0": BUBBLEWRAP,
    "miniwob/click-button-v0": BROWSER,
    "reasoning_gym/gcd-v0": REASONING_GYM,
}
IDS = sorted(
    set(envkit.registry) - FOREIGN
    | {"gymnasium/CartPole-v1", "miniwob/click-button-v0", "reasoning_gym/gcd-v0"}
)
VALID = {
    "computer-use-linux-v0",
    "computer-use-miniwob-v0",
    "computer-use-page-v0",
    "computer-use-v0",
    "gymnasium-v0",
    "gymnasium/CartPole-v1",
    "miniwob/click-button-v0",
    "reasoning_gym/gcd-v0",
}
"""Environments with a space of actions or a format of answers: each random reply is valid."""
TURNS = 3


def played(env: Any, *, seed: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the replies of the start of an episode, and what came of them."""
    env.reset(seed=seed)
    policy, inner = random_policy(env), env.unwrapped
    replies, infos = list[str](), list[dict[str, Any]]()
    for turn in range(TURNS):
        context = PolicyContext(env=inner, task=inner.task, turn=turn, messages=(), seed=seed)
        replies.append(policy(context))
        *_, terminated, truncated, info = env.step(replies[-1])
        infos.append(info)
        if terminated or truncated:
            break
    return replies, infos


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")  # reasoning-gym
@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(env_id, marks=pytest.mark.slow)
        if env_id == "computer-use-linux-v0"
        else env_id
        for env_id in IDS
    ],
)
def test_random_policy_plays_every_environment_and_repeats_itself(env_id: str) -> None:
    if env_id in NEEDS:
        NEEDS[env_id].require()
    with closing(envkit.make(env_id)) as env:
        replies, infos = played(env, seed=5)
        again, _ = played(env, seed=5)
        others, _ = played(env, seed=6)
    assert replies == again
    assert replies != others
    if env_id in VALID:
        assert not [info["parse_error"] for info in infos if info["parse_error"]]


@pytest.mark.parametrize("env_id", ["canary-v0", "gymnasium-v0"])
def test_random_policy_of_an_environment_in_its_own_process_is_the_same(env_id: str) -> None:
    with closing(envkit.make(env_id)) as env, closing(isolated(EnvSource(env_id))()) as apart:
        assert played(apart, seed=5)[0] == played(env, seed=5)[0]
