"""The figures of a run as JSON data."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from statistics import fmean
from typing import Any, Final, TypeGuard

from envkit.metrics.aggregate import Aggregator
from envkit.metrics.intervals import Interval, mean_interval, share_interval
from envkit.metrics.table import summary_rows
from envkit.tokens.sanity import SanityStatus
from envkit.trajectory.plain import plain_float
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import TIME_PARTS
from envkit.viewer.rows import EpisodeRow
from envkit.viewer.wording import CHECKS

_FEW: Final = 4
_BINS: Final = 24
_SLOWEST: Final = 6
_MAX_SUMMED: Final = 1e100
"""Sums and squares of larger rewards, which only a damaged file has, overflow."""
_CAUSES: Final = 12
_NOT_DRAWN: Final = "not checked, outside the sample that a run draws"


def figures(
    rows: Sequence[EpisodeRow], aggregator: Aggregator, recorded: Mapping[str, float]
) -> dict[str, Any]:
    """Return the figures of a run.

    Args:
        rows: The rows of all its episodes.
        aggregator: An aggregator with all its episodes.
        recorded: The metrics that the rollout wrote; empty if there are none.
    """
    plain = aggregator.result()
    metrics = aggregator.result(elapsed_seconds=elapsed_seconds(plain, recorded))
    rewarded = [row for row in rows if is_summable(row.reward)]
    groups = groups_of(rewarded)
    compared = [members for members in groups.values() if len(members) > 1]
    signal = sum(len({row.reward for row in members}) > 1 for members in compared)
    return {
        "episodes": len(rows),
        "environments": sorted({row.env_id for row in rows}),
        "reward": _mean(rewarded, groups),
        "solved": _solved(rewarded, groups),
        "unsummable": len([row for row in rows if row.reward is not None]) - len(rewarded),
        "groups": {"count": len(groups), "compared": len(compared), "signal": signal},
        "faults": sum("fault" in row.flags for row in rows),
        "causes": _causes(rows),
        "broken": sum("broken" in row.flags for row in rows),
        "unread": {
            "count": sum(r.not_understood for r in rows),
            "of": sum(r.replies for r in rows),
        },
        "cut": sum(row.cut for row in rows),
        "renders": _renders(metrics),
        "turns": fmean(row.turns for row in rows) if rows else None,
        "seconds": metrics.get("seconds/episode/mean"),
        "stops": stops(Counter(row.stop_reason for row in rows)),
        "terms": _terms(rows),
        "families": _families(rewarded),
        "distributions": _distributions(rows),
        "times": _times(metrics),
        "slowest": [
            [row.number, row.excerpt, row.seconds, row.slowest]
            for row in nlargest(_SLOWEST, rows, key=lambda one: one.seconds)
            if 0 < row.seconds < math.inf
        ],
        "retries": [[k[6:], v] for k, v in metrics.items() if k.startswith("retry/")],
        "summary": [list(entry) for entry in summary_rows(metrics)],
        "metrics": [[name, plain_float(value)] for name, value in metrics.items()],
    }


def elapsed_seconds(metrics: Mapping[str, float], recorded: Mapping[str, float]) -> float | None:
    """Return the run's wall-clock time from the metrics that its rollout wrote, or None.

    Args:
        metrics: Metrics of the trajectories.
        recorded: Metrics from the file next to them; ignored if they describe other trajectories.
    """
    must_agree = ("episodes", "tokens/response/total")
    speed = recorded.get("throughput/tokens_per_second", 0.0)
    if speed <= 0 or any(metrics.get(name) != recorded.get(name) for name in must_agree):
        return None
    return metrics["tokens/response/total"] / speed or None


def finite_rewards(rows: Iterable[EpisodeRow]) -> list[float]:
    """Return the rewards that can be averaged, in the order of the rows."""
    return [row.reward for row in rows if is_summable(row.reward)]


def is_summable(reward: float | None) -> TypeGuard[float]:
    """Return whether there is a reward, and sums and squares of it are finite."""
    return reward is not None and abs(reward) < _MAX_SUMMED


def judged_in(rows: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    """Return the episodes for which success is defined."""
    return [row for row in rows if row.is_solved is not None]


def solved_count(rows: Iterable[EpisodeRow]) -> int:
    """Return how many episodes solved their task."""
    return sum(row.is_solved is True for row in rows)


def groups_of(rows: Iterable[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
    """Return the episodes of each group; an episode without a group is its own group."""
    found: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        key = f"\0{row.number}" if row.group_id is None else f"{row.group_id}\0{row.role or ''}"
        found.setdefault(key, []).append(row)
    return found


def _mean(rows: Sequence[EpisodeRow], groups: Mapping[str, Sequence[EpisodeRow]]) -> Any:  # noqa: ANN401
    """Return the mean reward; its interval resamples groups, which are independent."""
    if not rows:
        return None
    means = [fmean([row.reward or 0.0 for row in members]) for members in groups.values()]
    rewards = [row.reward or 0.0 for row in rows]
    return {
        "mean": fmean(rewards),
        **ends(mean_interval(means)),
        "groups": len(means),
        "top": max(1.0, *rewards),
        "bottom": min(0.0, *rewards),
    }


def _solved(rows: Sequence[EpisodeRow], groups: Mapping[str, Sequence[EpisodeRow]]) -> Any:  # noqa: ANN401
    """Return the share solved of the episodes for which success is defined."""
    judged = [judged_in(members) for members in groups.values()]
    shares = [solved_count(members) / len(members) for members in judged if members]
    count = sum(map(len, judged))
    found = share_interval(shares, samples=count) if len(shares) > 1 else None
    return {"count": solved_count(rows), "of": count, **ends(found), "by": _judged_by(rows)}


def _judged_by(rows: Iterable[EpisodeRow]) -> dict[str, Any]:
    """Return the lowest and the highest reward threshold in force, and the number of verdicts."""
    thresholds = [row.threshold for row in judged_in(rows)]
    declared = sorted({one for one in thresholds if one is not None})
    return {
        "thresholds": declared[:: max(1, len(declared) - 1)],
        "verdicts": thresholds.count(None),
    }


def _causes(rows: Iterable[EpisodeRow]) -> list[list[Any]]:
    """Return the faults by cause: cause, count, message and number of its first episode."""
    found: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        if row.fault:
            found.setdefault(row.fault, []).append(row)
    ranked = sorted(found.items(), key=lambda entry: -len(entry[1]))
    return [[cause, len(its), its[0].note, its[0].number] for cause, its in ranked[:_CAUSES]]


def _renders(metrics: Mapping[str, float]) -> list[list[Any]]:
    """Return how many observations compared how with a full render: status, count and words."""
    counts = {status: int(metrics.get(f"sanity/{status}", 0)) for status in SanityStatus}
    drawn, share = sum(counts.values()), metrics.get("sanity/checked_share", 0.0)
    checked = drawn - counts[SanityStatus.UNCHECKED]
    left = round(checked / share) - drawn if share else 0
    found = [(status.value, counts[status], CHECKS[status]) for status in SanityStatus]
    found.append(("rest", left, _NOT_DRAWN))
    return [[name, n, words] for name, n, words in found if n > 0]


def ends(interval: Interval | None) -> dict[str, float | None]:
    """Return the ends of an interval as JSON data; None without one."""
    if interval is None:
        return {"low": None, "high": None}
    return {"low": interval.low, "high": interval.high}


def stops(counts: Counter[StopReason]) -> list[list[Any]]:
    """Return how often each reason ended an episode, and its kind: "good", "warn" or "bad"."""
    return [[reason.value, n, _kind(reason)] for reason, n in counts.most_common()]


def _kind(reason: StopReason) -> str:
    if reason.is_fault:
        return "bad"
    return "good" if reason is StopReason.TERMINATED else "warn"


def _terms(rows: Sequence[EpisodeRow]) -> list[list[Any]]:
    """Return the mean of each reward term over all episodes, and in how many it is not 0."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.terms.items():
            if math.isfinite(value):
                values[name].append(value)
    return [
        [name, sum(found) / len(rows), sum(abs(value) > 1e-9 for value in found)]
        for name, found in values.items()
    ]


def _families(rows: Iterable[EpisodeRow]) -> list[list[Any]]:
    found: dict[str, list[EpisodeRow]] = {}
    for row in judged_in(rows):
        if row.family:
            found.setdefault(row.family, []).append(row)
    return [
        [family, solved_count(members), len(members)]
        for family, members in sorted(found.items(), key=lambda entry: -len(entry[1]))
    ]


def _times(metrics: Mapping[str, float]) -> list[list[Any]]:
    return [
        [part, metrics[f"seconds/{part}/mean"], metrics[f"seconds/{part}/p95"]]
        for part in TIME_PARTS
        if f"seconds/{part}/mean" in metrics
    ]


def _distributions(rows: Sequence[EpisodeRow]) -> list[dict[str, Any]]:
    named = (
        ("Reward", "", finite_rewards(rows)),
        ("Turns", "", [row.turns for row in rows]),
        ("Sampled tokens", "", [row.sampled for row in rows]),
        ("Seconds", "s", [row.seconds for row in rows]),
    )
    finite = [(name, unit, list(filter(math.isfinite, values))) for name, unit, values in named]
    shown = (one for one in finite if any(one[2]) or (one[0] == "Reward" and one[2]))
    return [distribution(*one) for one in shown]


def distribution(name: str, unit: str, values: Sequence[float]) -> dict[str, Any]:
    """Return a distribution as JSON data: up to four distinct values as counts, else a histogram.

    Args:
        name: Name of the quantity.
        unit: "s" for seconds, else empty.
        values: At least one value.
    """
    ordered = sorted(round(value, 4) for value in values)
    low, high = ordered[0], ordered[-1]
    facts = {
        "name": name,
        "unit": unit,
        "min": low,
        "max": high,
        "median": ordered[(len(ordered) - 1) // 2],
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
    }
    counts = Counter(ordered)
    if len(counts) <= _FEW:
        return {**facts, "values": [[value, n] for value, n in counts.items()]}
    is_whole = all(float(value).is_integer() for value in counts) and high - low < _BINS
    bins = int(high - low) + 1 if is_whole else min(_BINS, max(6, int(2 * len(ordered) ** 0.5)))
    bars = [0] * bins
    width = 1 if is_whole else (high - low) / bins
    for value in ordered:
        bars[min(bins - 1, int((value - low) / width))] += 1
    return {**facts, "bars": bars, "width": width, "is_whole": is_whole}
