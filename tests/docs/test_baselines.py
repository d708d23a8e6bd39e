"""The script that measures baselines: its policies, and the table that it writes."""

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes.envs import EchoEnv, register_toys
from fakes.needs import REASONING_GYM

import envkit
from envkit.env import Policy, PolicyContext, Turn
from envkit.seeds import derive_seed
from envkit.tasks import ListSource, Task
from envkit.trajectory import read_trajectories

ROOT = Path(__file__).parents[2]


@pytest.fixture
def baselines(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import baselines  # pyright: ignore[reportMissingImports, reportUnknownVariableType]  # a script

    register_toys()
    yield baselines
    for name in ("baselines", "baseline_policies"):
        del sys.modules[name]


def at_start(env: Any, seed: int) -> PolicyContext:
    env.reset(seed=seed)
    return PolicyContext(env=env, task=env.unwrapped.task, turn=0, messages=(), seed=seed)


def test_blind_policies_say_what_the_oracle_said_to_other_tasks(baselines: Any) -> None:
    env = envkit.make("toy-echo-v0")
    words = {"alpha", "beta", "gamma", "delta", "épsilon", "七"}
    policies = baselines.policies
    constants = {policies.constant(at_start(env, seed)) for seed in range(6)}
    assert len(constants) <= 2  # the most frequent word, and the next one for that word's own task
    assert constants < words
    blind = (policies.constant, policies.random_reply, policies.repeating, policies.text_only)
    for policy in blind:
        for seed in range(12):
            context = at_start(env, seed)
            assert policy(context) != context.task["word"]
    drawn = {baselines.policies.random_reply(at_start(env, seed)) for seed in range(30)}
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
            observation, reward, *_ = env.step(baselines.policies.text_only(context))
            messages.append(asked.format_observation(observation))
            earned[turn] += float(reward) > 0
    assert earned == {0: 20, 1: 0}


def test_environment_with_a_random_policy_keeps_its_own(baselines: Any) -> None:
    env = envkit.make("computer-use-v0")
    context = at_start(env, 3)
    own: Any = env.unwrapped
    assert baselines.policies.random_reply(context) == own.policies["random"]()(context)


def test_repeating_policy_says_one_reply_at_every_turn(baselines: Any) -> None:
    envkit.register("toy-hint-v0", entry_point=HintEnv)
    env = envkit.make("toy-hint-v0")
    said: set[str] = set()
    for seed in range(12):
        context = at_start(env, seed)
        replies = {baselines.policies.repeating(replace(context, turn=turn)) for turn in range(4)}
        assert len(replies) == 1
        said |= replies
    assert said == {"left", "right"}  # first replies only


class SumEnv(EchoEnv):
    """One reply in tags, which holds many answers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_turns=1, **options)
        self.tasks = ListSource([{"sum": number} for number in range(100)])

    def on_reset(self, task: Task) -> Turn:
        return Turn("Guess.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("", reward=float(str(self.task["sum"]) in response_text), done=True)

    def oracle(self) -> Policy:
        return lambda context: f"<answer>{context.task['sum']}</answer>"


def test_all_answers_have_the_form_of_one_reply_and_hold_the_right_one(baselines: Any) -> None:
    envkit.register("toy-sum-v0", entry_point=SumEnv)
    env = envkit.make("toy-sum-v0")
    places: set[int] = set()
    for seed in range(8):
        context = at_start(env, seed)
        reply = baselines.policies.all_answers(context)
        assert reply.startswith("<answer>")
        assert reply.endswith("</answer>")
        answers = reply.removeprefix("<answer>").removesuffix("</answer>").split(", ")
        assert len(answers) == len(set(answers)) == baselines.policies.MOST_ANSWERS
        places.add(answers.index(str(context.task["sum"])))
    assert len(places) > 1


def test_all_answers_of_an_environment_with_choices_are_its_choices(baselines: Any) -> None:
    env: Any = envkit.make("geo3k-v0")
    context = at_start(env, 0)
    hooks = env.unwrapped.certification_hooks()
    expected = "\n".join(hooks.reply(choice) for choice in hooks.choices(context.task))
    assert baselines.policies.all_answers(context) == expected


@pytest.mark.parametrize("length", [1, 2, 3, 40, 129, 400])
def test_cut_reply_ends_in_the_middle_of_the_oracles(
    baselines: Any, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    right = "".join(chr(ord("a") + n % 26) for n in range(length))

    def say(_: object) -> str:
        return right

    def oracle(_: object) -> Policy:
        return say

    monkeypatch.setattr(EchoEnv, "oracle", oracle)
    text = baselines.policies.cut(at_start(envkit.make("toy-echo-v0"), 0))
    codec = baselines.policies._codec()
    ids = codec.encode_reply(text)
    most = baselines.policies.CUT_AT
    assert len(ids) > most
    sampled = codec.decode_all(ids[:most]).lstrip("~")
    assert right.startswith(sampled)
    assert len(sampled) < length


@pytest.mark.parametrize("limit", [0.0, 0.05, 0.4, 1.0])
def test_mean_is_above_chance_by_the_lower_end_of_its_interval(
    baselines: Any, limit: float
) -> None:
    for count in (1, 5, 32):
        for solved in range(count + 1):
            tail = sum(
                math.comb(count, n) * limit**n * (1 - limit) ** (count - n)
                for n in range(solved, count + 1)
            )
            values = [1.0] * solved + [0.0] * (count - solved)
            assert baselines.is_above(values, limit) is (tail < 0.0005), (solved, count)


def test_partial_rewards_are_above_chance_if_resampled_means_are(baselines: Any) -> None:
    assert not baselines.is_above([], 0.0)
    assert baselines.is_above([0.25] * 8, 0.2)
    assert not baselines.is_above([0.25] * 8, 0.25)
    spread = [n / 32 for n in range(33)]
    assert baselines.is_above(spread, 0.2)
    assert not baselines.is_above(spread, 0.49)


@pytest.mark.slow
def test_baselines_mark_a_useless_policy_above_chance(
    baselines: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    envkit.register("toy-sum-v0", entry_point=SumEnv)
    targets = [baselines.Target(env_id=f"toy-{name}-v0") for name in ("sum", "echo")]
    monkeypatch.setattr(baselines, "targets", lambda: iter(targets))
    monkeypatch.setattr(baselines, "USELESS", ("empty", "cut", "all"))
    monkeypatch.setattr(baselines, "COLUMNS", ("empty", "cut", "all", "oracle"))
    page = tmp_path / "page.md"
    page.write_text(f"{baselines.BEGIN}{baselines.END}")
    arguments = [
        "baselines.py",
        "-n",
        "24",
        "--folder",
        str(tmp_path / "runs"),
        "--page",
        str(page),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    played: list[float] = []
    for _ in range(2):
        started = len(list((tmp_path / "runs").glob("*/*/*/trajectories.jsonl")))
        assert baselines.main() == 1
        played.append(started)
        said = capsys.readouterr().out
        assert re.findall("above chance: (.*)", said) == ["toy-sum-v0: all (reward)"]
    assert played == [0, 8]
    sums, echoes = page.read_text().splitlines()[4:6]
    assert sums.count("**") == 4  # the name and one cell
    assert echoes.count("**") == 2
    cut = next((tmp_path / "runs" / "cut" / "toy-echo-v0").glob("*/trajectories.jsonl"))
    for trajectory in read_trajectories(cut):
        assert {turn.finish_reason for turn in trajectory.turns} == {"length"}


def committed() -> dict[str, dict[str, str]]:
    """Return the environment rows of the page."""
    text = (ROOT / "docs" / "environments" / "baselines.md").read_text()
    lines = text.partition("<!-- baselines: begin")[2].splitlines()
    head, *rows = [
        [one.strip() for one in line.split("|")[1:-1]] for line in lines if line.startswith("| ")
    ]
    found = [dict(zip(head, row, strict=True)) for row in rows if row[0].startswith("**")]
    return {row["environment"].strip("*"): row for row in found}


def eighth() -> list[str]:
    """Return an eighth of the rows of the collections; the others take minutes each."""
    slow = "futoshiki", "knight_swap", "puzzle24", "countdown", "intermediate_integration"
    names = [name for name in committed() if "/" in name and not any(one in name for one in slow)]
    return sorted(names, key=lambda name: derive_seed("eighth", name))[: math.ceil(len(names) / 8)]


@pytest.mark.slow
@REASONING_GYM.mark
@pytest.mark.filterwarnings("ignore")  # those of foreign graders and datasets
@pytest.mark.parametrize("name", eighth())
def test_row_of_useless_policies_is_as_committed(baselines: Any, tmp_path: Path, name: str) -> None:
    target = next(one for one in baselines.targets() if one.name == name)
    row = committed()[name]
    columns = [column for column in baselines.USELESS if row[column]]
    assert columns
    for column in columns:
        count = int(row["tasks"]) // target.groups
        lines = baselines.evaluate(column, target, tmp_path, tasks=count)
        is_above = baselines.above_chance(target, baselines.place_of(column, target, tmp_path))
        shown = baselines.cell(lines[0])
        assert row[column] == (f"**{shown}**" if is_above else shown), column


def test_page_gets_the_table_between_its_markers_and_keeps_the_rest(
    baselines: Any, tmp_path: Path
) -> None:
    page = tmp_path / "baselines.md"
    page.write_text((ROOT / "docs" / "environments" / "baselines.md").read_text())
    before = page.read_text()
    reward = {"mean": 0.25, "interval": {"low": 0.1, "high": 0.4}, "tasks": 8}
    line = {
        "tag": None, "value": None, "tasks": 8, "reward": reward, "success": reward, "faulted": 0,
    }  # fmt: skip
    level = {**line, "tag": "level", "value": "1", "faulted": 2}
    solved = {**line, "success": {**reward, "mean": 0.125}}
    undefined = {**line, "success": None}
    found = {"oracle": [line, level], "random": [solved], "empty": [undefined], "model": []}
    rows = list(baselines.rows_of(baselines.BUILT_IN[0], found, ["random"]))
    for _ in range(2):
        baselines.write_page(baselines.table(rows), page)
    text = page.read_text()
    interval = "0.25 [0.10, 0.40]"
    first = f"| **canary-v0** | 8 | 0.00 | **12%; {interval}** |  | ?; {interval} |"
    assert first in text
    assert f"| {interval} |\n| level 1 | 8 |{'  |' * 11} {interval} (2 faulted) |" in text
    assert text.startswith(before[: before.index(baselines.BEGIN)])
    assert text.endswith(before[before.index(baselines.END) :])
    assert text.count("**canary-v0**") == 1
