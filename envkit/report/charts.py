"""Small charts as inline SVG, drawn without a script."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from envkit.metrics.distribution import Histogram

_WIDTH = 520


class Bar(NamedTuple):
    """One row of a bar chart."""

    label: str
    value: float
    text: str
    kind: str = ""
    """"good", "bad" or "warn"; empty is neutral."""


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Return horizontal bars with their labels and texts."""
    largest = max((bar.value for bar in bars), default=0) or 1
    rows: list[str] = []
    for index, bar in enumerate(bars):
        y, width = 22 * index, max(1.0, 270 * bar.value / largest)
        rows.append(
            f'<text x="0" y="{y + 14}" class="value">{escape(bar.label)}</text>'
            f'<rect x="118" y="{y + 4}" width="{width:.1f}" height="13" rx="2" '
            f'class="bar {escape(bar.kind)}"></rect>'
            f'<text x="{124 + width:.1f}" y="{y + 14}">{escape(bar.text)}</text>'
        )
    return _figure(title, "".join(rows), 22 * max(1, len(bars)) + 2)


def histogram_chart(title: str, histogram: Histogram) -> str:
    """Return vertical bars over their axis; bins of width 1, as whole numbers have, get a label."""
    counts, edges = histogram.counts, histogram.edges
    largest = max(counts) or 1
    step = _WIDTH / len(counts)
    parts: list[str] = []
    for index, count in enumerate(counts):
        height = 84 * count / largest
        x = index * step
        if count:
            tip = f"{_short(edges[index])} to {_short(edges[index + 1])}: {count}"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{100 - height:.1f}" width="{max(1, step - 2):.1f}" '
                f'height="{height:.1f}" class="bar"><title>{escape(tip)}</title></rect>'
            )
        if count == max(counts):
            parts.append(_label(x + step / 2, 96 - height, f"{count:,}", "value"))
    parts.append(f'<path class="axis" d="M0 100.5H{_WIDTH}"></path>')
    is_labelled = edges[1] - edges[0] == 1 and len(counts) <= 20
    if is_labelled:
        middles = [(index + 0.5) * step for index in range(len(counts))]
        parts += [_label(x, 115, _short(edges[n] + 0.5)) for n, x in enumerate(middles)]
    else:
        parts.append(f'<text x="0" y="115">{_short(edges[0])}</text>')
        parts.append(f'<text x="{_WIDTH}" y="115" text-anchor="end">{_short(edges[-1])}</text>')
    return _figure(title, "".join(parts), 120)


def _label(x: float, y: float, text: str, kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="middle">{escape(text)}</text>'
    )


def _short(value: float) -> str:
    return f"{value:.4g}"


def _figure(title: str, content: str, height: int) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{content}</svg></figure>"
    )
