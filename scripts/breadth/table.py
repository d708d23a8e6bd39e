"""The table of a breadth run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- breadth:begin -->", "<!-- breadth:end -->"
KINDS = ("user after text", "user after call", "tool after call", "tool after text")


def write_table(rows: Sequence[Mapping[str, Any]], page: Path | None) -> str:
    """Return the table of a run and write it between a page's markers."""
    return write_between(page, BEGIN, END, "\n".join(_lines(rows)))


def write_between(page: Path | None, begin: str, end: str, text: str) -> str:
    """Write a text between two markers of a page, if there is one, and return the text."""
    if page is not None:
        before, _, rest = page.read_text(encoding="utf-8").partition(begin)
        _, _, after = rest.partition(end)
        page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
    return text


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    counts: Counter[str] = Counter()
    wrong = 0
    for row in rows:
        counts.update(row.get("counts", {}))
        wrong += any(key.endswith(": wrong") for key in row.get("counts", {}))
    rendering = [row for row in rows if row["renders"]]
    refused = sum("refusal" in row for row in rendering)
    times = sorted(row["ms"] for row in rows)
    quick = sum(ms <= 300 for ms in times)
    compared = sum(number for key, number in counts.items() if key.endswith((": exact", ": wrong")))
    lines = [
        f"{len(rows)} templates, {len(rendering)} of which render user / assistant / user.",
        "",
        "| figure | value |",
        "| --- | --- |",
        f"| compared points | {compared:,} |",
        f"| wrong points | {sum(n for k, n in counts.items() if k.endswith(': wrong')):,} |",
        f"| templates with a wrong point | {wrong} |",
        f"| user role refused | {refused} ({100 * refused / max(1, len(rendering)):.1f}%) |",
        f"| tool role refused | {sum(_is_refused(row) for row in rows)} |",
        f"| calibration: median / 95th percentile | {times[len(times) // 2]:.0f} ms / "
        f"{times[len(times) * 95 // 100]:.0f} ms |",
        f"| calibration within 300 ms | {100 * quick / len(times):.1f}% |",
        "",
        "| observation | exact | wrong | refused |",
        "| --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        found = [f"{counts[f'{kind}: {what}']:,}" for what in ("exact", "wrong", "refused")]
        name = kind.replace("text", "a plain reply").replace("call", "a structured call")
        lines.append(f"| {name} | {' | '.join(found)} |")
    return lines


def _is_refused(row: Mapping[str, Any]) -> bool:
    return row.get("roles", {}).get("tool") == "refused"
