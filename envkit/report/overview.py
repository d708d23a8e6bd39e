"""The figures of a run as static HTML: tiles, charts, the slowest episodes."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from envkit.metrics.aggregate import Aggregator
from envkit.metrics.table import summary_rows
from envkit.report.charts import Bar, bar_chart, histogram_chart
from envkit.report.facts import EpisodeFacts
from envkit.report.markup import safe_html
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import TIME_PARTS

_SLOWEST: Final = 6
_HISTOGRAMS: Final = (
    ("reward", "Reward"),
    ("turns", "Turns of an episode"),
    ("tokens/response", "Sampled tokens of an episode"),
    ("seconds/episode", "Seconds of an episode"),
)
Metrics = Mapping[str, float]


def elapsed_seconds(metrics: Metrics, recorded: Metrics) -> float | None:
    """Return the run's wall-clock time by the metrics that its rollout wrote; None without.

    Args:
        metrics: Of the trajectories at hand.
        recorded: From the file beside them; of no use when it is about other trajectories.
    """
    about_the_same = ("episodes", "tokens/response/total")
    speed = recorded.get("throughput/tokens_per_second", 0.0)
    if speed <= 0 or any(metrics.get(name) != recorded.get(name) for name in about_the_same):
        return None
    return metrics["tokens/response/total"] / speed or None


def tiles(metrics: Metrics, elapsed: float | None) -> str:
    """Return the large figures."""
    entries = [("episodes", f"{metrics['episodes']:,.0f}")]
    if "reward/mean" in metrics:
        entries += [
            ("mean reward", f"{metrics['reward/mean']:.3f}"),
            ("reward above 0", f"{100 * metrics['success/rate']:.0f}%"),
            ("ended by a limit", f"{100 * metrics['truncation/rate']:.0f}%"),
        ]
    if "turns/mean" in metrics:
        entries += [
            ("turns an episode", f"{metrics['turns/mean']:.2f}"),
            ("trained tokens", f"{metrics['tokens/trained']:,.0f}"),
            ("images", f"{metrics['images/total']:,.0f}"),
        ]
    if elapsed is not None:
        entries += [
            ("sampled tokens a second", f"{metrics['tokens/response/total'] / elapsed:,.0f}"),
            ("episodes a minute", f"{60 * metrics['episodes'] / elapsed:,.0f}"),
        ]
    retries = sum(value for name, value in metrics.items() if name.startswith("retry/"))
    entries += [("retries", f"{retries:,.0f}"), ("faulted", f"{metrics['episodes/faulted']:,.0f}")]
    return "".join(
        f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in entries
    )


def charts(aggregator: Aggregator, metrics: Metrics) -> str:
    """Return the charts of a run; empty without an episode."""
    if not metrics["episodes"]:
        return ""
    ended = sorted(stops(metrics), key=lambda one: -metrics[f"stop/{one}"])
    found = [bar_chart("Ended by", [_stop_bar(one, metrics, "episodes") for one in ended])]
    limits = [one for one in ended if one.is_truncation]
    if len(limits) > 1:
        total = sum(metrics[f"stop/{one}"] for one in limits)
        share = {**metrics, "limits": total}
        found.append(bar_chart("Which limit", [_stop_bar(one, share, "limits") for one in limits]))
    histograms = aggregator.histograms()
    found += [
        histogram_chart(label, histograms[name])
        for name, label in _HISTOGRAMS
        if name in histograms
    ]
    for prefix, label, kind in (("retry/", "Retries", "warn"), ("fault/", "Faults", "bad")):
        counts = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
        if counts:
            ranked = sorted(counts.items(), key=lambda entry: -entry[1])
            bars = [Bar(name, count, f"{count:,.0f}", kind) for name, count in ranked]
            found.append(bar_chart(label, bars))
    times = [_time_bar(part, metrics) for part in TIME_PARTS if f"seconds/{part}/mean" in metrics]
    if times:
        found.append(bar_chart("Seconds of a turn: mean, 95th percentile", times))
    return "".join(found)


def slowest(facts: Iterable[EpisodeFacts]) -> str:
    """Return the slowest episodes as links; empty without an episode that took time."""
    found = heapq.nlargest(_SLOWEST, facts, key=lambda one: one.seconds)
    rows = "".join(
        f'<tr><td class="n"><a href="#e{one.number}">{one.number}</a></td>'
        f'<td class="task" dir="auto">{safe_html(one.excerpt)}</td>'
        f'<td class="n">{one.seconds:.2f} s</td><td>{safe_html(one.slowest)}</td></tr>'
        for one in found
        if one.seconds > 0
    )
    if not rows:
        return ""
    return (
        '<section class="card slowest"><h3>Slowest episodes, and where their slowest turn waited'
        f'</h3><table class="episodes"><tbody>{rows}</tbody></table></section>'
    )


def figures(metrics: Metrics) -> str:
    """Return the rows of the table of all figures."""
    said = [
        f"<tr><td>{name}</td><td>{safe_html(text)}</td></tr>"
        for name, text in summary_rows(metrics)
    ]
    every = [f"<tr><td>{safe_html(k)}</td><td>{v:.6g}</td></tr>" for k, v in metrics.items()]
    return "".join(said + every)


def stops(metrics: Metrics) -> Sequence[StopReason]:
    """Return the reasons that occurred."""
    return [reason for reason in StopReason if f"stop/{reason}" in metrics]


def _stop_bar(reason: StopReason, metrics: Metrics, whole: str) -> Bar:
    count = metrics[f"stop/{reason}"]
    text = f"{count:,.0f} ({100 * count / metrics[whole]:.0f}%)"
    return Bar(reason.value, count, text, _colour(reason))


def _colour(reason: StopReason) -> str:
    if reason.is_fault:
        return "bad"
    return "good" if reason is StopReason.TERMINATED else "warn"


def _time_bar(part: str, metrics: Metrics) -> Bar:
    mean, high = metrics[f"seconds/{part}/mean"], metrics[f"seconds/{part}/p95"]
    return Bar(part, mean, f"{mean:.3g} s, {high:.3g} s", f"part-{part}")
