"""A run as tables of text, in the order of the browser's page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final

from envkit.advantages import Baseline
from envkit.success import UNDECLARED
from envkit.text import counted
from envkit.tokens.sanity import SanityStatus
from envkit.viewer.figures import finite_rewards, groups_of, judged_in, solved_count
from envkit.viewer.rows import EpisodeRow
from envkit.viewer.run import RunData
from envkit.viewer.trees import Leaf, leaves
from envkit.viewer.wording import (
    NOTHING,
    TIMES,
    clipped,
    number,
    percent,
    rule_words,
    seconds,
    signed,
    stop_words,
)

_BARS: Final = "▁▂▃▄▅▆▇█"
_MANY_GROUPS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and its table."""

    title: str
    note: str = ""
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An episode in the list of a run."""

    number: int
    guide: str
    """Tree lines before its title; empty for an episode that is not a fork."""
    reward: str
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Episodes of one task: the members of a group, or the leaves of a tree."""

    task: str
    facts: str
    members: Sequence[Member]


def heading(run: RunData) -> tuple[str, str]:
    """Return the title of a run and the line below it."""
    figures = run.figures()
    groups, time = groups_of(run.rows), figures["seconds"]
    trees = sum(bool(leaf.place) for leaf in leaves(run.rows))
    facts = [
        counted(figures["episodes"], "episode"),
        counted(len(groups), "group") if len(groups) < len(run.rows) else "",
        counted(trees, "fork") if trees else "",
        f"engine {', '.join(figures['engines'])}" if figures["engines"] else "",
        "" if time is None else f"{seconds(time)} per episode",
    ]
    return ", ".join(figures["environments"]) or run.name, " · ".join(filter(None, facts))


def sections(run: RunData) -> list[Section]:
    """Return the tables of a run with at least one episode, in the order of the browser's page."""
    figures = run.figures()
    found = [
        Section(title="What matters", rows=list(_headline(figures))),
        Section(
            title="Causes of faults",
            rows=[(cause, number(n), clipped(told)) for cause, n, told, _ in figures["causes"]],
        ),
        _rates(run.rows) if figures["reward"] else Section(title="", rows=()),
        Section(title="What ended the episodes", rows=list(_stops(figures))),
        Section(
            title="Reward terms",
            note="Mean per episode, and episodes with it.",
            rows=[(name, number(mean), number(n)) for name, mean, n in figures["terms"]],
        ),
        Section(
            title="Time per turn",
            rows=[(k, seconds(mean), f"p95 {seconds(p95)}") for k, mean, p95 in figures["times"]],
        ),
        Section(
            title="Checked observations",
            rows=[(words, number(n), "") for _, n, words in figures["renders"]],
        ),
        Section(title="Distributions", rows=[_distribution(d) for d in figures["distributions"]]),
        Section(title="By family", rows=_families(figures["families"])),
        Section(
            title="Slowest episodes",
            rows=[
                (f"episode {n}", seconds(time), what, clipped(task))
                for n, task, time, what in figures["slowest"]
            ],
        ),
    ]
    return [section for section in found if section.rows]


def notes(run: RunData) -> list[str]:
    """Return the problems of a run."""
    figures, found = run.figures(), list[str]()
    if figures["broken"]:
        found.append(
            f"Episodes that break a rule of the ledger: {figures['broken']}. Do not train on them."
        )
    renders = {status: n for status, n, _ in figures["renders"] if status != "rest"}
    if unchecked := renders.get(SanityStatus.UNCHECKED):
        found.append(
            f"Observations that could not be compared with a full render: {unchecked} of "
            f"{sum(renders.values())}."
        )
    return [*found, *run.all_notes]


def _headline(figures: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    reward, solved, groups = figures["reward"], figures["solved"], figures["groups"]
    faults, unread = figures["faults"], figures["unread"]
    none = "no reward can be averaged" if figures["unsummable"] else "no episode has a reward"
    if reward is None:
        yield "Reward", NOTHING, none
    else:
        over = counted(reward["groups"], "group")
        is_known = reward["low"] is not None
        half = f" ± {number((reward['high'] - reward['low']) / 2)}" if is_known else ""
        note = f"mean, 95% interval over {over}" if is_known else f"mean of {over}: no interval"
        yield "Reward", number(reward["mean"]) + half, note
    if not solved["of"]:
        yield "Solved", NOTHING, none if reward is None else UNDECLARED
    else:
        ends = "" if solved["low"] is None else f", interval {_range(solved)}"
        by = rule_words(solved["by"])
        note = f"{number(solved['count'])} of {number(solved['of'])}{ends}, {by}"
        yield "Solved", percent(solved["count"] / solved["of"]), note
    if not groups["compared"]:
        yield "Groups", NOTHING, "one episode per task" if reward else none
    else:
        flat = groups["compared"] - groups["signal"]
        note = f"{flat} with equal rewards: no gradient" if flat else "every group has a gradient"
        yield "Groups with signal", f"{groups['signal']} of {groups['compared']}", note
    kind = "episodes without a reward" if faults else "no infrastructure failure"
    yield "Faults", number(faults), kind
    replies = f"{number(unread['of'])} {'reply' if unread['of'] == 1 else 'replies'}"
    share = f"{percent(unread['count'] / unread['of'])} of " if unread["count"] else "of "
    cut = f", {number(figures['cut'])} cut at the token limit" if figures["cut"] else ""
    yield "Not understood", number(unread["count"]), f"{share}{replies}{cut}"


def _range(ends: Mapping[str, float]) -> str:
    return f"{percent(ends['low'])} to {percent(ends['high'])}"


def _rates(rows: Sequence[EpisodeRow]) -> Section:
    """Return one line per group: solved episodes, rewards from best to worst, and task."""
    groups = [group for group in groups_of(rows).values() if len(group) > 1]
    groups.sort(key=lambda g: (_share(g) or 0.0, _mean(g) or 0.0), reverse=True)
    table = [
        (
            f"{solved_count(group)}/{len(judged)}" if (judged := judged_in(group)) else NOTHING,
            ("= " if _is_flat(group) else "")
            + " ".join(number(r) for r in sorted(finite_rewards(group), reverse=True)),
            clipped(group[0].excerpt),
        )
        for group in groups[:_MANY_GROUPS]
    ]
    note = "Rewards of each task, best first. = marks equal rewards, which give no gradient."
    if len(groups) > _MANY_GROUPS:
        note += f" The first {_MANY_GROUPS} of {len(groups):,} groups."
    return Section(title="Solve rate by group", note=note, rows=table)


def _stops(figures: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for reason, count, _ in figures["stops"]:
        yield stop_words(reason), number(count), percent(count / figures["episodes"])


def _distribution(d: Mapping[str, Any]) -> tuple[str, str, str]:
    def show(value: float) -> str:
        return seconds(value) if d["unit"] == "s" else number(value)

    facts = f"median {show(d['median'])} · p95 {show(d['p95'])}"
    if "values" in d:
        few = ", ".join(f"{show(value)} {TIMES} {number(n)}" for value, n in d["values"])
        return d["name"], few, facts if len(d["values"]) > 1 else ""
    most = max(d["bars"])
    drawn = "".join(_BARS[math.ceil(n / most * (len(_BARS) - 1))] if n else " " for n in d["bars"])
    return d["name"], f"{show(d['min'])} {drawn} {show(d['max'])}", facts


def _families(families: Sequence[Sequence[Any]]) -> list[tuple[str, ...]]:
    if len(families) < 2:
        return []
    return [(name.replace("_", " "), f"{solved} of {n}") for name, solved, n in families]


def groups(run: RunData) -> list[Group]:
    """Return the episodes of a run by group, with forks below their parents."""
    placed = {id(leaf.row): leaf for leaf in leaves(run.rows)}
    order = {key: n for n, key in enumerate(placed)}
    found: list[Group] = []
    for rows in groups_of(run.rows).values():
        members = sorted(rows, key=lambda row: order[id(row)])
        if not any(placed[id(row)].place for row in members):
            members.sort(key=lambda row: (row.member or 0, row.number))
        advantages = _advantages(rows)
        found.append(
            Group(
                task=clipped(rows[0].excerpt),
                facts=_group_facts(rows, placed),
                members=[_member(placed[id(row)], advantages.get(row.number)) for row in members],
            )
        )
    return found


def _group_facts(rows: Sequence[EpisodeRow], placed: Mapping[int, Leaf]) -> str:
    if len(rows) == 1:
        return ""
    rewards = finite_rewards(rows)
    roots = sum(not placed[id(row)].place for row in rows)
    if any(row.parent is not None for row in rows):
        best = ""
        if rewards:
            best = f": mean reward {number(fmean(rewards))}, best {number(max(rewards))}"
        trees = "Tree" if roots == 1 else f"{roots} trees"
        return f"{trees} with {len(rows)} leaves{best}"
    judged = judged_in(rows)
    facts = [
        f"{solved_count(rows)} of {len(judged)} solved" if judged else "",
        f"mean {number(fmean(rewards))}" if rewards else "",
        f"spread {number(stdev(rewards))}" if len(rewards) > 1 else "",
        "equal rewards" if _is_flat(rows) else "",
    ]
    return " · ".join(filter(None, facts))


def _member(leaf: Leaf, advantage: float | None) -> Member:
    row = leaf.row
    facts = [
        _turns(leaf),
        stop_words(row.stop_reason.value),
        "" if row.role is None else f"role {row.role}",
        "" if advantage is None else f"advantage {signed(advantage)}",
        counted(row.rewrites, "rewrite") if row.rewrites else "",
        f"{row.not_understood} not understood" if row.not_understood else "",
        *(flag for flag in row.flags if flag in ("fault", "broken", "retry", "restart")),
    ]
    return Member(
        number=row.number,
        guide=leaf.guide,
        reward=number(row.reward),
        facts=" · ".join(filter(None, facts)),
    )


def _turns(leaf: Leaf) -> str:
    row = leaf.row
    if row.parent is None:
        return counted(row.turns, "turn")
    lost = f", its parent {clipped(row.parent, 40)} is not in this run" if leaf.is_lost else ""
    return f"forked at turn {row.shared + 1} of {row.turns}{lost}"


def _advantages(rows: Sequence[EpisodeRow]) -> dict[int, float]:
    """Return the advantage of each member by number; empty for a tree or equal rewards."""
    rewarded = {
        r.number: r.reward for r in rows if r.reward is not None and math.isfinite(r.reward)
    }
    if len(set(rewarded.values())) < 2 or any(row.parent is not None for row in rows):
        return {}
    baseline = Baseline.of(rewarded.values())
    return {n: baseline.advantage(value, is_scaled=True) for n, value in rewarded.items()}


def _share(rows: Sequence[EpisodeRow]) -> float | None:
    judged = judged_in(rows)
    return solved_count(judged) / len(judged) if judged else None


def _mean(rows: Sequence[EpisodeRow]) -> float | None:
    rewards = finite_rewards(rows)
    return fmean(rewards) if rewards else None


def _is_flat(rows: Sequence[EpisodeRow]) -> bool:
    rewards = finite_rewards(rows)
    return len(rewards) > 1 and len(set(rewards)) == 1
