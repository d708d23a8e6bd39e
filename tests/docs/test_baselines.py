"""The script that measures baselines: its policies, and the table that it writes."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes.envs import EchoEnv, register_toys

import envkit
from envkit.env import Policy, PolicyContext, Turn
from envkit.tasks import ListSource, Task

ROOT = Path(__file__).parents[2]


@pytest.fixture
def baselines(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import baselines  # pyright: ignore[reportMissingImports, reportUnknownVariableType]  # a script

    register_toys()
    yield baselines
    del sys.modules["baselines"]


def at_start(env: Any, seed: int) -> PolicyContext:
    env.reset(seed=seed)
    return PolicyContext(env=env, task=env.unwrapped.task, turn=0, messages=(), seed=seed)


def test_blind_policies_say_what_the_oracle_said_to_other_tasks(baselines: Any) -> None:
    env = envkit.make("toy-echo-v0")
    words = {"alpha", "beta", "gamma", "delta", "épsilon", "七"}
    constants = {baselines.constant(at_start(env, seed)) for seed in range(6)}
    assert len(constants) <= 2  # the most frequent word, and the next one for that word's own task
    assert constants < words
    for policy in (baselines.constant, baselines.random_reply, baselines.text_only):
        for seed in range(12):
            context = at_start(env, seed)
            assert policy(context) != context.task["word"]
    drawn = {baselines.random_reply(at_start(env, seed)) for seed in range(30)}
    assert len(drawn) >= 4
    assert drawn <= words


class HintEnv(EchoEnv):
    """Asks twice: first the text says which way to go, then only an image would."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_turns=2, **options)
        self.tasks = ListSource([{"number": n, "way": ("left", "right")[n % 2]} for n in range(40)])

    def on_reset(self, task: Task) -> Turn:
        return Turn(f"Door {task['number']}: to the {task['way']}?")

    def on_turn(self, response_text: str) -> Turn:
        right = response_text == self._answer(self.turn)
        return Turn("Look.", reward=0.5 * right, done=self.turn == 1)

    def _answer(self, turn: int) -> str:
        return f"picture {self.task['number']}" if turn else self.task["way"]

    def oracle(self) -> Policy:
        return lambda context: self._answer(context.turn)


def test_text_only_policy_follows_texts_and_sees_nothing_else(baselines: Any) -> None:
    envkit.register("toy-hint-v0", entry_point=HintEnv)
    env = envkit.make("toy-hint-v0")
    asked: Any = env.unwrapped
    earned: Counter[int] = Counter()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        messages = [asked.format_observation(observation)]
        for turn in range(2):
            context = PolicyContext(
                env=env, task=asked.task, turn=turn, messages=tuple(messages), seed=seed
            )
            observation, reward, *_ = env.step(baselines.text_only(context))
            messages.append(asked.format_observation(observation))
            earned[turn] += float(reward) > 0
    assert earned == {0: 20, 1: 0}


def test_environment_with_a_random_policy_keeps_its_own(baselines: Any) -> None:
    env = envkit.make("computer-use-v0")
    context = at_start(env, 3)
    own: Any = env.unwrapped
    assert baselines.random_reply(context) == own.policies["random"]()(context)


def test_page_gets_the_table_between_its_markers_and_keeps_the_rest(
    baselines: Any, tmp_path: Path
) -> None:
    page = tmp_path / "baselines.md"
    page.write_text((ROOT / "docs" / "environments" / "baselines.md").read_text())
    before = page.read_text()
    reward = {"mean": 0.25, "interval": {"low": 0.1, "high": 0.4}, "tasks": 8}
    line = {"tag": None, "value": None, "tasks": 8, "reward": reward, "faulted": 0}
    level = {**line, "tag": "level", "value": "1", "faulted": 2}
    found = {"oracle": [line, level], "random": [line], "model": []}
    rows = list(baselines.rows_of(baselines.TARGETS[0], found))
    for _ in range(2):
        baselines.write_page(baselines.table(rows), page)
    text = page.read_text()
    assert "| **canary-v0** | 8 | 0.25 [0.10, 0.40] |  |  |  |  |  | 0.25 [0.10, 0.40] |" in text
    assert "| level 1 | 8 |  |  |  |  |  |  | 0.25 [0.10, 0.40] (2 faulted) |" in text
    assert text.startswith(before[: before.index(baselines.BEGIN)])
    assert text.endswith(before[before.index(baselines.END) :])
    assert text.count("**canary-v0**") == 1
