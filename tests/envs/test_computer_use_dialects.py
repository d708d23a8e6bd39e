"""The oracle in the words of every model family."""

from typing import Any

import pytest

from envkit.env import PolicyContext
from envkit.images import Image
from envkit_computer_use import FAMILIES, LEVELS, ComputerUseEnv, DesktopTasks
from envkit_computer_use.actions import FAMILIES as DIALECTS
from envkit_computer_use.desktop import Desktop
from envkit_computer_use.screen import Screen

PLAIN = Image.from_bytes(b"never looked at")


@pytest.fixture(autouse=True)
def blind_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing: the oracle reads the state."""

    def shoot(_screen: Screen, _desk: Desktop) -> Image:
        return PLAIN

    monkeypatch.setattr(Screen, "shoot", shoot)


def _task(family: str, level: int, index: int) -> dict[str, Any]:
    return DesktopTasks(families=[family], level=level, split="test").task(index)


def _check(env: ComputerUseEnv, family: str, level: int, index: int) -> None:
    env.reset(seed=index, options={"task": _task(family, level, index)})
    policy = env.oracle()
    for turn in range(env.max_turns):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=index)
        step = env.step(policy(context))
        assert not step.info["parse_error"], step.info
        if step.terminated or step.truncated:
            assert step.reward == 1.0, (family, level, index, env.task["goal"])
            return


@pytest.mark.parametrize("dialect", DIALECTS)
def test_oracle_solves_every_family_in_the_words_of_the_dialect(dialect: str) -> None:
    env = ComputerUseEnv(action=dialect)
    for at, family in enumerate(sorted(FAMILIES)):
        _check(env, family, LEVELS[at % len(LEVELS)], at)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_oracle_solves_4_seeds_of_every_level_in_the_words_of_the_dialect(
    dialect: str, family: str
) -> None:
    env = ComputerUseEnv(action=dialect)
    for level in LEVELS:
        for index in range(4):
            _check(env, family, level, index)
