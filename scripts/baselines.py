#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Measure what policies earn in every built-in environment and collection.

    .venv/bin/python scripts/baselines.py                    # everything; writes the page
    .venv/bin/python scripts/baselines.py --only geo3k-v0 -n 8

Each column is one `envkit eval` per environment, in `build/baselines/COLUMN/ENVIRONMENT`; members
of collections are played without tokens. An interrupted script continues where it stopped. The
columns:

- random: the environment's own policy "random", or else an oracle reply to another task, redrawn
  each turn.
- constant: the oracle's most frequent reply at that turn of other tasks.
- empty: nothing.
- cut: the oracle's reply, cut in its middle by the limit on new tokens.
- all: all answers in one reply: the choices, or else the oracle's replies to other tasks.
- repeating: the oracle's first reply to another task, at every turn.
- text: the oracle's reply at that turn of the other task with the most similar text so far, without
  images.
- model: the embedded engine's default model, greedy, on the tasks it was trained on.
- blank, swapped: the same model with every image replaced by a gray one or by one of another task.
- oracle: the environment's own oracle.

The first six are useless: none may earn more than the environment's chance level. If one does, its
cell is bold and the exit code is 1. Where there is no oracle, they learn from the policy "random".

The table goes between the markers of docs/environments/baselines.md.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import baseline_policies as policies

import envkit
from envkit.cli import main as envkit_command
from envkit.env import Env, Policy, PolicyContext
from envkit.errors import EnvFault, EnvkitError
from envkit.messages import message
from envkit.metrics.intervals import mean_interval, share_interval
from envkit.registration import members
from envkit.reply import FinishReason, Reply
from envkit.seeds import derive_seed
from envkit.success import own_reward, reaches, verdict_in
from envkit.trajectory import read_trajectories
from envkit_eval import Estimate
from envkit_eval.samples import Sample, episodes_of, problems_of

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "environments" / "baselines.md"
BEGIN, END = "<!-- baselines: begin -->", "<!-- baselines: end -->"
USELESS: Final = ("random", "constant", "empty", "cut", "all", "repeating")
"""Columns that may not earn more than chance."""
COLUMNS: Final = (*USELESS, "text", "blank", "swapped", "model", "oracle")
WRAPPERS: Final = {"blank": "blank-image", "swapped": "swap-image"}
FUNCTIONS: Final = {
    "random": "random_reply",
    "constant": "constant",
    "empty": "empty",
    "cut": "cut",
    "all": "all_answers",
    "repeating": "repeating",
    "text": "text_only",
}
"""Columns of policies without a model, with their functions."""
CONFIDENCE: Final = 0.999
TOLERATED: Final = 0.05
"""Chance level of an environment that states none, as in `envkit certify`."""
_RESAMPLES: Final = 20_000
"""Resamples of an interval whose ends are rare."""
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
    has_scale: bool = True
    """Whether rewards go from 0 to about 1; without a scale only success has a chance level."""
    is_member: bool = False
    """Whether it is one of a collection's many: played by `play_directly`, without "text", since
    its observations hold the whole task."""

    @property
    def name(self) -> str:
        """Name in the table."""
        if not self.arguments:
            return self.env_id
        return f"{self.env_id}, level {self.arguments['level']} of the model's families"


BUILT_IN: Final = (
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
    Target(env_id="terminal-v0", groups=4),
    Target(env_id="computer-use-miniwob-v0", by=(), groups=8),
    Target(env_id="computer-use-page-v0", by=()),
    Target(env_id="computer-use-linux-v0", by=()),
)
_SLOW: Final = frozenset({"reasoning_gym/futoshiki-v0", "reasoning_gym/knight_swap-v0"})
"""Datasets that take seconds to make a task."""


def targets() -> Iterator[Target]:
    """Yield the table's environments; a collection needs its package."""
    yield from BUILT_IN
    for env_id in members("reasoning_gym"):
        groups = 1 if env_id in _SLOW else 4
        yield Target(env_id=env_id, groups=groups, by=(), is_member=True)
    for env_id in members("gymnasium"):
        yield Target(env_id=env_id, by=(), is_member=True, has_scale=False)


# ---- the evaluations


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an environment declares."""

    chance: float | None
    """Its chance level; None if it states none."""
    has_oracle: bool
    has_teacher: bool
    """Whether it has an oracle, or else a policy "random"."""


@cache
def facts_of(target: Target) -> Facts:
    """Return what an environment declares.

    Raises:
        EnvkitError: It cannot be made here.
    """
    made: Any = envkit.make(target.env_id, **target.arguments).unwrapped
    env: Env = made
    teacher = policies.teacher_of(env)
    stated: float | None = getattr(env, "chance_level", None)
    env.close()
    return Facts(chance=stated, has_oracle=teacher == env.oracle, has_teacher=teacher is not None)


def options_of(column: str, target: Target) -> list[str] | None:
    """Return the options of `envkit eval` for a cell; None if the table has none."""
    facts = facts_of(target)
    if column == "oracle":
        return ["--policy", "oracle"] if facts.has_oracle else None
    if column in FUNCTIONS:
        is_text = column == "text"
        is_known = (facts.has_oracle and not target.is_member) if is_text else facts.has_teacher
        if not is_known and column != "empty":
            return None
        limit = ["--max-new-tokens", str(policies.CUT_AT)] if column == "cut" else []
        return ["--policy", f"baseline_policies:{FUNCTIONS[column]}", *limit]
    if not target.has_model:
        return None
    greedy = ["--temperature", "0"]
    wrapper = WRAPPERS.get(column)
    return [*greedy, "--wrap", wrapper] if wrapper else greedy


def evaluate(column: str, target: Target, folder: Path, *, tasks: int) -> list[dict[str, Any]]:
    """Play a cell, or its missing part, and return its lines; empty for no cell."""
    options = options_of(column, target)
    if options is None:
        return []
    out = place_of(column, target, folder)
    if target.is_member:
        return play_directly(column, target, out / "episodes.json", tasks=tasks * target.groups)
    done = _read(out)
    if done is None or not _is_same(done, tasks * target.groups):
        for by in target.by:
            options += ["--by", by]
        for key, value in target.arguments.items():
            options += ["--env-kwargs", f"{key}={json.dumps(value)}"]
        number = str(tasks * target.groups)
        _run("eval", target.env_id, "-n", number, *options, "--out", str(out), "--overwrite")
    elif not done["is_complete"]:
        _run("eval", "--resume", str(out))
    found = _read(out)
    if found is None or not found["is_complete"]:
        raise SystemExit(f"{out} was not completed; run the script again to continue")
    return found["lines"]


def play_directly(column: str, target: Target, file: Path, *, tasks: int) -> list[dict[str, Any]]:
    """Play a cell through the environment's own `reset` and `step`, and return its line.

    A collection has hundreds of cells, and `envkit eval` would tokenize every reply.
    """
    try:
        episodes: list[tuple[float | None, bool | None]] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        episodes = []
    if len(episodes) != tasks:
        started = time.monotonic()
        made: Any = envkit.make(target.env_id, **target.arguments)
        env: Env = made.unwrapped
        name = {"cut": "half"}.get(column, FUNCTIONS.get(column))
        policy: Policy = env.oracle() if name is None else getattr(policies, name)
        finish = FinishReason.LENGTH if column == "cut" else FinishReason.STOP
        seeds = (derive_seed("baselines", number) for number in range(tasks))
        episodes = [_episode(env, policy, seed, finish) for seed in seeds]
        env.close()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(episodes))
        print(f"{time.monotonic() - started:7.1f} s  {column} {target.name}", flush=True)
    rewards = [reward for reward, _ in episodes if reward is not None]
    solved = [float(verdict) for _, verdict in episodes if verdict is not None]
    reward, success = Estimate.of(rewards), Estimate.of(solved, samples=len(solved))
    if all(one in (0.0, 1.0) for one in rewards):
        reward = Estimate.of(rewards, samples=len(rewards))
    return [
        {
            "tag": None,
            "value": None,
            "tasks": len(rewards),
            "faulted": len(episodes) - len(rewards),
            "reward": None if reward is None else asdict(reward),
            "success": None if success is None else asdict(success),
        }
    ]


def _episode(
    env: Env, policy: Policy, seed: int, finish: FinishReason
) -> tuple[float | None, bool | None]:
    """Play an episode; return its own reward and whether it was solved, None after a fault."""
    total, verdict, threshold = 0.0, None, env.reward_threshold
    try:
        messages = [env.format_observation(env.reset(seed=seed).observation)]
        for turn in count():
            text = policy(
                PolicyContext(env=env, task=env.task, turn=turn, messages=messages, seed=seed)
            )
            env.announce(Reply(text=text, finish=finish))
            step = env.step(text)
            messages += [message("assistant", text), env.format_observation(step.observation)]
            total += own_reward(step.info, step.reward)
            latest = verdict_in(step.info)
            verdict = verdict if latest is None else latest
            if step.terminated or step.truncated:
                break
    except EnvFault:
        return None, None
    if verdict is None and threshold is not None:
        verdict = reaches(total, threshold)
    return total, verdict


def place_of(column: str, target: Target, folder: Path) -> Path:
    """Return the folder of a cell's evaluation."""
    return folder / column / re.sub(r"\W+", "-", target.name)


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


# ---- chance


def is_above(values: Sequence[float], limit: float) -> bool:
    """Return whether a mean is above a limit: by the lower end of its 99.9% interval.

    Args:
        values: One per task.
        limit: The chance level.
    """
    if all(value in (0.0, 1.0) for value in values):
        interval = share_interval(values, confidence=CONFIDENCE)
    else:
        interval = mean_interval(values, confidence=CONFIDENCE, resamples=_RESAMPLES)
    if interval is None:  # equal values, whose resamples do not vary
        return bool(values) and min(values) > limit
    return interval.low > limit


def _values(place: Path) -> dict[str, list[float]]:
    """Return the success and the reward of a cell's tasks."""
    direct = place / "episodes.json"
    if direct.exists():
        episodes = json.loads(direct.read_bytes())
        return {
            "success": [float(solved) for _, solved in episodes if solved is not None],
            "reward": [reward for reward, _ in episodes if reward is not None],
        }
    samples = [
        Sample.of(trajectory, by=())
        for file in sorted(place.glob("*/trajectories.jsonl"))
        for trajectory in read_trajectories(file)
    ]
    problems = problems_of(episodes_of(samples)).values()
    return {
        "success": [one.solved / one.judged for one in problems if one.judged],
        "reward": [one.reward for one in problems],
    }


def above_chance(target: Target, place: Path) -> list[str]:
    """Return which means of a cell are above chance: "success", "reward"."""
    chance = facts_of(target).chance
    limit = TOLERATED if chance is None else max(chance, TOLERATED)
    found = _values(place)
    if not target.has_scale:
        del found["reward"]
    return [name for name, values in found.items() if is_above(values, limit)]


# ---- the table


def table(rows: Sequence[tuple[str, dict[str, str]]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        f"| environment | tasks | chance | {' | '.join(COLUMNS)} |",
        f"| --- | ---: | ---: | {' | '.join('---' for _ in COLUMNS)} |",
    ]
    for name, cells in rows:
        values = " | ".join(cells.get(column, "") for column in ("tasks", "chance", *COLUMNS))
        lines.append(f"| {name} | {values} |")
    return "\n".join(lines)


def rows_of(
    target: Target, found: dict[str, list[dict[str, Any]]], above: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield an environment's row, then the rows of its families and levels.

    Args:
        target: The environment.
        found: Lines of `eval.json` by column.
        above: Columns that are above chance.
    """
    lines = [(column, line) for column in found for line in found[column]]
    first = [("oracle", line) for line in found.get("oracle", ())]
    for tag, value in dict.fromkeys((one["tag"], one["value"]) for _, one in (*first, *lines)):
        if tag is not None and tag not in target.by:
            continue
        same = [
            (column, one) for column, one in lines if (one["tag"], one["value"]) == (tag, value)
        ]
        cells = {column: cell(line) for column, line in same}
        cells["tasks"] = str(max(line["tasks"] for _, line in same))
        if tag is None:
            chance = facts_of(target).chance
            cells["chance"] = "" if chance is None else f"{chance:.2f}"
            cells |= {column: f"**{cells[column]}**" for column in above}
        yield (f"**{target.name}**" if tag is None else f"{tag} {value}"), cells


def cell(line: dict[str, Any]) -> str:
    """Return the share of solved tasks if it is not the mean reward, and the mean reward."""
    reward, success = line["reward"], line["success"]
    if reward is None:
        return "-"
    text = f"{reward['mean']:.2f}"
    if reward["interval"] is not None:
        text += f" [{reward['interval']['low']:.2f}, {reward['interval']['high']:.2f}]"
    if success is None:
        text = f"?; {text}"
    elif abs(success["mean"] - reward["mean"]) > 1e-9:
        text = f"{success['mean']:.0%}; {text}"
    return f"{text} ({line['faulted']} faulted)" if line["faulted"] else text


def write_page(text: str, page: Path) -> None:
    """Write the table between the page's markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Play missing cells, write the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(targets())
    ids = {one.env_id for one in known} | {one.env_id.split("/")[0] for one in known}
    names = sorted(ids)
    parser.add_argument("--only", action="append", metavar="ID", choices=names, help="repeatable")
    parser.add_argument("-n", type=int, default=16, help="tasks per family (default: 16)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "baselines")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    if options.n < 1:
        parser.error(f"-n must be at least 1, got {options.n}")
    rows: list[tuple[str, dict[str, str]]] = []
    unplayed: dict[str, list[str]] = {}
    defects: list[str] = []
    for target in known:
        if options.only and not {target.env_id, target.env_id.split("/")[0]} & {*options.only}:
            continue
        try:
            facts_of(target)
        except EnvkitError as error:
            unplayed.setdefault(_reason(error), []).append(target.name)
            continue
        found = {
            column: evaluate(column, target, options.folder, tasks=options.n) for column in COLUMNS
        }
        above = {
            column: means
            for column in USELESS
            if found[column]
            and (means := above_chance(target, place_of(column, target, options.folder)))
        }
        defects += [f"{target.name}: {column} ({', '.join(m)})" for column, m in above.items()]
        rows += rows_of(target, found, list(above))
    notes = [f"Not played, because {why}: {', '.join(names)}." for why, names in unplayed.items()]
    text = "\n\n".join([table(rows), *notes])
    print(text)
    if options.only:
        print("\nthe page is written only without --only")
    else:
        write_page(text, options.page)
    for defect in defects:
        print(f"above chance: {defect}")
    return 1 if defects else 0


def _reason(error: EnvkitError) -> str:
    """Return why an environment cannot be made, without its name."""
    found = re.search(r"(\w+) is not installed", str(error))
    return found.group() if found else str(error)


if __name__ == "__main__":
    sys.exit(main())
