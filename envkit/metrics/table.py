"""The table at the end of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, cast

from envkit.metrics.aggregate import aggregate
from envkit.success import UNDECLARED
from envkit.tokens.sanity import LONG_IDS
from envkit.trajectory.trajectory import Trajectory

if TYPE_CHECKING:  # rich is slow to import, and only terminals need it
    from rich.table import Table

Metrics = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, repr=False)
class SummaryTable:
    """The summary of a run: `rich.print` draws it in a terminal, a notebook shows it as HTML.

    Attributes:
        rows: Label and text of each line.
    """

    rows: tuple[tuple[str, str], ...]

    def __rich__(self) -> "Table":
        """Return the table of a terminal."""
        from rich.table import Table
        from rich.text import Text

        title = "rollout summary"
        table = Table(title=title, title_justify="left", show_header=False, min_width=56)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, text in self.rows:
            table.add_row(name, Text(text))  # as text: a name may look like markup
        return table

    def __repr__(self) -> str:
        """Return the lines as text."""
        return "\n".join(f"{name:<12} {text}" for name, text in self.rows)

    def _repr_html_(self) -> str:
        """Return a table that wraps: a notebook clips lines that are wider than its output."""
        style = 'style="text-align: left; overflow-wrap: anywhere"'
        lines = (
            f'<tr><th scope="row" {style}>{escape(name)}</th><td {style}>{escape(text)}</td></tr>'
            for name, text in self.rows
        )
        return f"<table>{''.join(lines)}</table>"


def summary_table(run: Metrics | Iterable[Trajectory]) -> SummaryTable:
    """Return a compact table of a run, for a terminal or a notebook.

    Args:
        run: Metrics as `aggregate` returns them, or trajectories.
    """
    metrics = cast("Metrics", run) if isinstance(run, Mapping) else aggregate(run)
    return SummaryTable(rows=summary_rows(metrics))


def summary_rows(metrics: Metrics) -> tuple[tuple[str, str], ...]:
    """Return the label and text of each non-empty line of the summary."""
    rows = (
        ("health", health_line(metrics)),
        ("episodes", _episodes(metrics)),
        ("reward", _reward(metrics)),
        ("groups", _groups(metrics)),
        ("turns", _spread(metrics, "turns")),
        ("sequences", _sequences(metrics)),
        ("tokens", _tokens(metrics)),
        ("images", _images(metrics)),
        ("ended by", _counted(metrics, "stop/")),
        ("tool calls", _calls(metrics)),
        ("full render", _renders(metrics)),
        ("retries", _counted(metrics, "retry/") or "none"),
        ("faults", _counted(metrics, "fault/") or "none"),
        ("seconds", _seconds(metrics)),
        ("speed", _speed(metrics)),
        ("weights", _weights(metrics)),
        ("tail", _tail(metrics)),
    )
    return tuple((name, text) for name, text in rows if text)


def _number(value: float) -> str:
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    text = f"{100 * value:.1f}".removesuffix(".0")
    return f"{text}%"


def health_line(metrics: Metrics) -> str:
    """Return the shares of trained tokens, checked observations and faults; "" for no episode."""
    if not metrics.get("episodes"):
        return ""
    shares = (
        ("tokens/trained_share", "of sampled tokens trained"),
        ("sanity/checked_share", "of observations checked"),
        ("episodes/faulted_share", "of episodes faulted"),
    )
    parts = [f"{_percent(metrics[name])} {what}" for name, what in shares if name in metrics]
    if "tokens/trained_share" not in metrics:
        parts.insert(0, "no token sampled")
    return ", ".join(parts)


def _episodes(metrics: Metrics) -> str:
    text = _number(metrics.get("episodes", 0))
    for kind in ("faulted", "aborted"):
        if count := metrics.get(f"episodes/{kind}", 0):
            text += f", {_number(count)} {kind} (no reward, excluded from the mean)"
    return text


def _reward(metrics: Metrics) -> str:
    if "reward/mean" not in metrics:
        return "no episode has a reward"
    low, high = _number(metrics["reward/min"]), _number(metrics["reward/max"])
    return (
        f"mean {metrics['reward/mean']:.3f} ± {metrics['reward/std']:.3f}, {low} to {high}; "
        f"{_success(metrics)}"
    )


def _success(metrics: Metrics) -> str:
    if "success/rate" not in metrics:
        return f"{UNDECLARED}, so success is undefined"
    share, judged = _percent(metrics["success/rate"]), metrics["success/episodes"]
    text = f"solved {share} of {_number(judged)}"
    others = metrics["episodes/rewarded"] - judged
    return f"{text}; {UNDECLARED} for {_number(others)}" if others else text


def _groups(metrics: Metrics) -> str:
    if "groups" not in metrics:
        return ""
    text = _number(metrics["groups"])
    if "groups/zero_variance_share" in metrics:
        share = _percent(metrics["groups/zero_variance_share"])
        text += f"; all rewards equal in {share} (no gradient there)"
    return text


def _spread(metrics: Metrics, name: str) -> str:
    if f"{name}/mean" not in metrics:
        return ""
    parts = [f"{label} {_number(metrics[f'{name}/{label}'])}" for label in ("mean", "p50", "p95")]
    return f"{', '.join(parts)}, max {_number(metrics[f'{name}/max'])}"


def _sequences(metrics: Metrics) -> str:
    """Return how often an episode's history was rewritten or branched, and why."""
    if "sequences/mean" not in metrics:
        return ""
    mean, most = _number(metrics["sequences/mean"]), _number(metrics["sequences/max"])
    parts = [f"mean {mean}, max {most} per episode"]
    if kinds := _counted(metrics, "agent/sequences/"):
        parts.append(kinds)
    if reasons := _counted(metrics, "rewrite/"):
        parts.append(f"started by {reasons.replace('_', ' ')}")
    return "; ".join(parts)


def _tokens(metrics: Metrics) -> str:
    names = (("prompt", "prompt"), ("response", "sampled"), ("observation", "observed"))
    parts = [
        f"{_number(round(metrics[f'tokens/{name}/mean'], 1))} {label}"
        for name, label in names
        if f"tokens/{name}/mean" in metrics
    ]
    if not parts:
        return ""
    text = f"{', '.join(parts)} per episode; {_number(metrics['tokens/trained'])} trained in all"
    if cached := metrics.get("tokens/cached_share", 0.0):
        text += f"; {_percent(cached)} of prompts from cache"
    return text


def _images(metrics: Metrics) -> str:
    if not metrics.get("images/total"):
        return ""
    return (
        f"{_number(metrics['images/mean'])} per episode, {_number(metrics['images/total'])} in all"
    )


def _counted(metrics: Metrics, prefix: str) -> str:
    counts = {
        name.removeprefix(prefix): value
        for name, value in metrics.items()
        if name.startswith(prefix) and not name.endswith("share")
    }
    ranked = sorted(counts.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{name} {_number(value)}" for name, value in ranked)


def _renders(metrics: Metrics) -> str:
    """Return how observations compared with full renders, and how many long ones were compared."""
    long = "sanity/long/"
    kinds = {name: value for name, value in metrics.items() if not name.startswith(long)}
    text = _counted(kinds, "sanity/")
    if count := metrics.get(f"{long}observations"):
        checked = _number(metrics.get(f"{long}checked", 0))
        text += f"{'; ' if text else ''}{checked} of {_number(count)} after {LONG_IDS:,} tokens"
    return text


def _calls(metrics: Metrics) -> str:
    if "parse_error/rate" not in metrics:
        return ""
    mean, rate = metrics["tool_calls/mean"], metrics["parse_error/rate"]
    count = _number(metrics["parse_error/count"])
    return f"{_number(mean)} per episode; {count} replies not parsed ({_percent(rate)} of turns)"


def _seconds(metrics: Metrics) -> str:
    parts = [
        f"{part} {_number(metrics[f'seconds/{part}/mean'])}"
        f" / {_number(metrics[f'seconds/{part}/p95'])}"
        for part in ("generate", "env", "encode", "queue", "episode")
        if metrics.get(f"seconds/{part}/p95")
    ]
    return f"{', '.join(parts)} (mean / p95)" if parts else ""


def _speed(metrics: Metrics) -> str:
    parts: list[str] = []
    if "throughput/tokens_per_second" in metrics:
        parts.append(
            f"{_number(metrics['throughput/tokens_per_second'])} sampled tokens per second"
        )
    if stream := metrics.get("throughput/tokens_per_second_per_stream"):
        parts.append(f"{_number(stream)} per stream")
    return ", ".join(parts)


def _tail(metrics: Metrics) -> str:
    parts: list[str] = []
    for kind, name in (("cut", "left out"), ("resumed", "continued from an earlier batch")):
        if f"tail/{kind}" in metrics:
            ratio = metrics.get(f"tail/{kind}_tokens_ratio")
            tokens = "" if ratio is None else f" ({_number(ratio)} times the tokens of the others)"
            parts.append(f"{_number(metrics[f'tail/{kind}'])} {name}{tokens}")
    if "tail/resumed_reward_gap" in metrics:
        parts.append(f"reward of the continued {metrics['tail/resumed_reward_gap']:+.2f}")
    return ", ".join(parts)


def _weights(metrics: Metrics) -> str:
    if metrics.get("weight_versions", 0) <= 1:
        return ""
    mixed = _percent(metrics["weight_versions/mixed_share"])
    return f"{_number(metrics['weight_versions'])} versions, {mixed} of episodes mixed"
