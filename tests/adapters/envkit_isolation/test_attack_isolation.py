"""A worker's answers are its own: what it forks never answers in its place."""

import functools
import json

import gymnasium
import pytest
from fakes.envs import EchoEnv
from fakes.forking_env import Forking

import envkit
from envkit.errors import ConfigurationError
from envkit.rollout import EnvSource
from envkit_isolation import isolated


@pytest.mark.parametrize("fails", [False, True])
def test_isolated_child_that_returns_from_a_step_does_not_answer(fails: bool) -> None:
    env = isolated(functools.partial(Forking, fails=fails))()
    try:
        env.reset(seed=0)
        for turn in range(4):
            observation, reward, _, truncated, _ = env.step(f"reply {turn}")
            assert observation["text"] == f"turn {turn} after reply {turn}"
            assert (reward, truncated) == (1.0, turn == 3)
    finally:
        env.close()


def test_isolated_refuses_arguments_that_the_environment_does_not_take() -> None:
    if "envkit/attack-isolation-v0" not in gymnasium.registry:
        envkit.register("attack-isolation-v0", entry_point=EchoEnv)
    source = EnvSource("attack-isolation-v0", json.dumps({"no_such": 1}))
    with pytest.raises(ConfigurationError, match="cannot be built with"):
        isolated(source)()
