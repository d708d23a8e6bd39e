"""The oracle in the words of every model family."""

from typing import Any

import pytest

from envkit.env import PolicyContext
from envkit.images import Image
from envkit_actions import FAMILIES as DIALECTS
from envkit_actions.random_clicks import random_clicks
from envkit_desktop import FAMILIES, LEVELS, ComputerUseEnv, DesktopTasks
from envkit_desktop.desktop import Desktop
from envkit_desktop.screen import Screen

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


HARD = [
    # A grid of 1000 cannot hit the pixel that a window was to be moved to.
    ("qwen3-vl", (1280, 720), "toggle_checks", 3),
    ("ui-tars-1.0", (1920, 1080), "change_settings", 6),
    # The arrow of the scroll bar lies under another window.
    ("ui-tars-1.0", (800, 600), "look_up", 3),
    ("ui-tars-1.5", (672, 448), "look_up", 88),
]


@pytest.mark.parametrize(("dialect", "size", "family", "seed"), HARD)
def test_oracle_solves_tasks_it_once_repeated_forever(
    dialect: str, size: tuple[int, int], family: str, seed: int
) -> None:
    env = ComputerUseEnv(action=dialect, width=size[0], height=size[1])
    _check(env, family, LEVELS[seed % len(LEVELS)], seed)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_oracle_solves_every_family_in_the_words_of_the_dialect(dialect: str) -> None:
    env = ComputerUseEnv(action=dialect)
    for at, family in enumerate(sorted(FAMILIES)):
        _check(env, family, LEVELS[at % len(LEVELS)], at)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_random_policy_acts_in_the_words_of_the_dialect(dialect: str) -> None:
    env = ComputerUseEnv(action=dialect, max_turns=200)
    policy = random_clicks()
    for seed in range(40):
        env.reset(seed=seed)
        context = PolicyContext(env=env, task=env.task, turn=0, messages=(), seed=seed)
        assert not env.step(policy(context)).info["parse_error"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(672, 448), (800, 600), (1280, 720), (1344, 896), (1920, 1080)])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_oracle_solves_10_seeds_of_every_family_at_every_size(
    dialect: str, size: tuple[int, int]
) -> None:
    env = ComputerUseEnv(action=dialect, width=size[0], height=size[1])
    # A grid of 1000 skips pixels there, and a phone has no arrow keys for the values between.
    is_coarse = dialect == "autoglm-phone" and size[0] > 1000
    for family in sorted(set(FAMILIES) - {"set_sliders"} if is_coarse else FAMILIES):
        for seed in range(10):
            _check(env, family, LEVELS[seed % len(LEVELS)], seed)
