#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Measure what seven policies earn in every built-in environment, family and level.

    .venv/bin/python scripts/baselines.py                    # everything; writes the page
    .venv/bin/python scripts/baselines.py --only geo3k-v0 -n 8

Each column is one `envkit eval` per environment, in `build/baselines/COLUMN/ENVIRONMENT`. An
interrupted script continues where it stopped. The columns:

- random: the environment's own policy "random", or else an oracle reply to another task, redrawn
  each turn.
- constant: the oracle's most frequent reply at that turn of other tasks.
- text: the oracle's reply at that turn of the other task with the most similar text so far, without
  images.
- model: the embedded engine's default model, greedy, on the tasks it was trained on.
- blank, swapped: the same model with every image replaced by a gray one or by one of another task.
- oracle: the environment's own oracle.

The table goes between the markers of docs/environments/baselines.md.
"""

import argparse
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import envkit
from envkit.agents import MultiAgentEnv, RoleEnv
from envkit.cli import main as envkit_command
from envkit.env import Env, PolicyContext
from envkit.errors import ConfigurationError
from envkit.messages import Message, text_of
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit_certify.audit.policies import most_similar

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "environments" / "baselines.md"
BEGIN, END = "<!-- baselines: begin -->", "<!-- baselines: end -->"
COLUMNS: Final = ("random", "constant", "text", "blank", "swapped", "model", "oracle")
WRAPPERS: Final = {"blank": "blank-image", "swapped": "swap-image"}
BLIND: Final = {"random": "random_reply", "constant": "constant", "text": "text_only"}
"""Columns of policies that see no image, with their functions."""
_LESSONS: Final = 500
"""Oracle episodes on other tasks."""
_LONGEST: Final = 64
_SIGNALLED: Final = 128
"""Exit codes above this come from signals."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An environment of the table."""

    env_id: str
    groups: int = 1
    """Number of families or their equivalent; each gets -n tasks."""
    by: tuple[str, ...] = ("family", "level")
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    has_model: bool = False
    """Whether the default model was trained on these tasks."""

    @property
    def name(self) -> str:
        """Name in the table."""
        if not self.arguments:
            return self.env_id
        return f"{self.env_id}, level {self.arguments['level']} of the model's families"


TARGETS: Final = (
    Target(env_id="canary-v0", groups=4, has_model=True),
    Target(env_id="geo3k-v0", groups=27),
    Target(env_id="computer-use-v0", groups=24),
    Target(
        env_id="computer-use-v0",
        groups=8,
        by=("family",),
        arguments={"level": 1, "families": ["move_window", "resize_window"]},
        has_model=True,
    ),
    Target(env_id="search-v0", by=("hops",), groups=4),
    Target(env_id="refine-v0", by=("level",), groups=4),
    Target(env_id="reasoning_gym/basic_arithmetic-v0", groups=4),
    Target(env_id="reasoning_gym/leg_counting-v0", groups=4),
    Target(env_id="gymnasium/FrozenLake-v1", groups=4),
    Target(env_id="gymnasium/Taxi-v4", groups=4),
)


# ---- the policies without a model


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """The oracle's reply at one turn of a task."""

    text: str
    """Text of the environment so far."""
    reply: str
    task: str


def constant(context: PolicyContext) -> str:
    """Return the oracle's most frequent reply at this turn of other tasks."""
    replies = Counter(lesson.reply for lesson in _lessons_at(context))
    return replies.most_common(1)[0][0] if replies else ""


def random_reply(context: PolicyContext) -> str:
    """Return a reply of the environment's random policy, or else a reply to another task."""
    env = context.env.unwrapped
    own = getattr(env, "policies", {})
    if "random" in own:
        return own["random"]()(context)
    replies = sorted(lesson.reply for lesson in _lessons_at(context))
    if not replies:
        return ""
    return replies[derive_seed("random reply", context.seed, context.turn) % len(replies)]


def text_only(context: PolicyContext) -> str:
    """Return the oracle's reply at this turn of the other task with the most similar text."""
    return _finder(_lessons_at(context))(_said(context.messages)) or ""


@cache
def _finder(lessons: tuple[Lesson, ...]) -> Callable[[str], str | None]:
    return most_similar([(lesson.text, lesson.reply) for lesson in lessons])


def _said(messages: Iterable[Message]) -> str:
    """Return the environment's text so far."""
    return "\n".join(text_of(one) for one in messages if one["role"] not in ("system", "assistant"))


def _lessons_at(context: PolicyContext) -> tuple[Lesson, ...]:
    """Return the oracle's lessons at the context's turn of other tasks."""
    env: Any = context.env.unwrapped
    role = env.role if isinstance(env, RoleEnv) else None
    joint: Any = env.joint_env if isinstance(env, RoleEnv) else env
    spec = joint.spec
    arguments = json.dumps(spec.kwargs, sort_keys=True, default=str)
    # asynchronous environments must not run inside a running event loop
    with ThreadPoolExecutor(1) as thread:
        learned = thread.submit(_learned, spec.id, arguments).result()
    turns = learned.get(role, [()])
    return _of_others(turns[min(context.turn, len(turns) - 1)], _task_text(context.task))


@cache
def _of_others(lessons: tuple[Lesson, ...], task: str) -> tuple[Lesson, ...]:
    others = tuple(lesson for lesson in lessons if lesson.task != task)
    return lessons if len(others) == len(lessons) else others


def _task_text(task: Task) -> str:
    return json.dumps(task, sort_keys=True, default=str)


@cache
def _learned(env_id: str, arguments: str) -> dict[str | None, list[tuple[Lesson, ...]]]:
    """Return the oracle's lessons by role and turn."""
    made: Any = envkit.make(env_id, **json.loads(arguments)).unwrapped
    env: Env = made
    found: defaultdict[str | None, defaultdict[int, list[Lesson]]]
    found = defaultdict(lambda: defaultdict(list))
    for number in range(_LESSONS):
        for role, turn, lesson in _oracle_lessons(env, derive_seed("baselines lesson", number)):
            found[role][turn].append(lesson)
    env.close()
    return {role: [tuple(turns[n]) for n in sorted(turns)] for role, turns in found.items()}


def _oracle_lessons(env: Env, seed: int) -> Iterator[tuple[str | None, int, Lesson]]:
    oracle = env.oracle()
    observation, _ = env.reset(seed=seed)
    task = _task_text(env.task)
    spoken: Counter[str | None] = Counter()
    messages = [env.format_observation(observation)]
    for turn in range(_LONGEST):
        text = oracle(
            PolicyContext(env=env, task=env.task, turn=turn, messages=messages, seed=seed)
        )
        heard: Mapping[str | None, Sequence[Message]] = {None: messages}
        if isinstance(env, MultiAgentEnv):
            heard = {**env.conversations}
        replies: dict[str | None, str] = {None: text} if None in heard else json.loads(text)
        for role, reply in replies.items():
            yield role, spoken[role], Lesson(text=_said(heard[role]), reply=reply, task=task)
            spoken[role] += 1
        step = env.step(text)
        messages.append(env.format_observation(step[0]))
        if step[2] or step[3]:
            return


# ---- the evaluations


def options_of(column: str, target: Target) -> list[str] | None:
    """Return the options of `envkit eval` for a cell; None if the table has none."""
    if column == "oracle" or column in BLIND:
        place = f"baselines:{BLIND[column]}" if column in BLIND else column
        needed = {"oracle", "random"} if column == "random" else {"oracle"}
        return ["--policy", place] if needed & _policies(target) else None
    if not target.has_model:
        return None
    greedy = ["--temperature", "0"]
    wrapper = WRAPPERS.get(column)
    return [*greedy, "--wrap", wrapper] if wrapper else greedy


@cache
def _policies(target: Target) -> frozenset[str]:
    env: Any = envkit.make(target.env_id).unwrapped
    known = set(getattr(env, "policies", {}))
    try:
        env.oracle()
        known.add("oracle")
    except ConfigurationError:
        known.discard("oracle")
    finally:
        env.close()
    return frozenset(known)


def evaluate(column: str, target: Target, folder: Path, *, tasks: int) -> list[dict[str, Any]]:
    """Play a cell, or its missing part, and return its lines; empty for no cell."""
    options = options_of(column, target)
    if options is None:
        return []
    out = folder / column / re.sub(r"\W+", "-", target.name)
    done = _read(out)
    if done is None or not _is_same(done, tasks * target.groups):
        for by in target.by:
            options += ["--by", by]
        for key, value in target.arguments.items():
            options += ["--env-kwargs", f"{key}={json.dumps(value)}"]
        count = str(tasks * target.groups)
        _run("eval", target.env_id, "-n", count, *options, "--out", str(out), "--overwrite")
    elif not done["is_complete"]:
        _run("eval", "--resume", str(out))
    found = _read(out)
    if found is None or not found["is_complete"]:
        raise SystemExit(f"{out} was not completed; run the script again to continue")
    return found["lines"]


def _run(*arguments: str) -> None:
    """Run `envkit` in this process, so torch is imported once instead of per cell."""
    started, code = time.monotonic(), 0
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            envkit_command([*arguments, "-q", "--json"])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    print(f"{time.monotonic() - started:7.1f} s  {' '.join(arguments)}", flush=True)
    if code > _SIGNALLED:
        raise SystemExit("stopped; run the script again to continue")


def _read(out: Path) -> dict[str, Any] | None:
    try:
        return json.loads((out / "eval.json").read_bytes())
    except (OSError, ValueError):
        return None


def _is_same(found: dict[str, Any], tasks: int) -> bool:
    """Whether an earlier evaluation has the same number of tasks and version."""
    runs = list(found.get("runs", {}).values())
    is_current = found.get("envkit") == envkit.__version__
    return is_current and bool(runs) and runs[0]["episodes"] == tasks


# ---- the table


def table(rows: Sequence[tuple[str, dict[str, str]]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        f"| environment | tasks | {' | '.join(COLUMNS)} |",
        f"| --- | ---: | {' | '.join('---' for _ in COLUMNS)} |",
    ]
    for name, cells in rows:
        values = " | ".join(cells.get(column, "") for column in COLUMNS)
        lines.append(f"| {name} | {cells['tasks']} | {values} |")
    return "\n".join(lines)


def rows_of(target: Target, found: dict[str, list[dict[str, Any]]]) -> Iterator[Any]:
    """Yield an environment's row, then the rows of its families and levels."""
    keys = [(line["tag"], line["value"]) for line in found.get("oracle", ())]
    for tag, value in dict.fromkeys((*keys, *_keys(found))):
        if tag == "role":
            continue
        cells = {
            column: cell(line)
            for column, lines in found.items()
            for line in lines
            if (line["tag"], line["value"]) == (tag, value)
        }
        tasks = max(
            (
                line["tasks"]
                for lines in found.values()
                for line in lines
                if (line["tag"], line["value"]) == (tag, value)
            ),
            default=0,
        )
        name = f"**{target.name}**" if tag is None else f"{tag} {value}"
        yield name, {**cells, "tasks": str(tasks)}


def _keys(found: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str | None, str | None]]:
    for lines in found.values():
        for line in lines:
            yield line["tag"], line["value"]


def cell(line: dict[str, Any]) -> str:
    """Return a mean reward and its interval, and how many episodes faulted if any did."""
    reward = line["reward"]
    if reward is None:
        return "-"
    text = f"{reward['mean']:.2f}"
    if reward["interval"] is not None:
        text += f" [{reward['interval']['low']:.2f}, {reward['interval']['high']:.2f}]"
    return f"{text} ({line['faulted']} faulted)" if line["faulted"] else text


def write_page(text: str, page: Path) -> None:
    """Write the table between the page's markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Play missing cells and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [target.env_id for target in TARGETS]
    parser.add_argument("--only", action="append", choices=known, help="repeatable")
    parser.add_argument("-n", type=int, default=16, help="tasks per family (default: 16)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "baselines")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.n < 1:
        parser.error(f"-n must be at least 1, got {options.n}")
    rows: list[tuple[str, dict[str, str]]] = []
    for target in TARGETS:
        if options.only and target.env_id not in options.only:
            continue
        found = {
            column: evaluate(column, target, options.folder, tasks=options.n) for column in COLUMNS
        }
        rows += rows_of(target, found)
    text = table(rows)
    print(text)
    if options.only:
        print("\nthe page is written only without --only")
    else:
        write_page(text, options.page)


if __name__ == "__main__":
    main()
