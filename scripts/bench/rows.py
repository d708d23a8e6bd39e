"""The benchmarks that `make bench` runs, their figures in its table, and the table as markdown."""

import math
import operator
import os
import platform
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    *("numpy", "pillow", "aiohttp", "msgspec", "tokenizers", "transformers", "torch"),
    *("playwright", "tantivy", "reasoning-gym"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: where its figure and its ratio are, and what they are held to."""

    what: str
    figure: str
    unit: str
    ratio: str = ""
    of: str = ""
    """What the ratio compares with."""
    least: float = -math.inf
    most: float = math.inf

    @property
    def bound(self) -> str:
        """The goal, or the figure that must not get worse."""
        if self.least > -math.inf:
            return f"at least {written(self.least)}"
        return f"at most {written(self.most)}" if self.most < math.inf else ""

    def cells(self, figures: Mapping[str, Any], *, tiny: bool) -> list[str]:
        """Return what, figure, unit, ratio and bound; tiny figures are held to no bound."""
        value = looked_up(figures, self.figure)
        ratio = f"{written(looked_up(figures, self.ratio))} times {self.of}" if self.ratio else ""
        missed = not tiny and not self.least <= float(written(value).replace(",", "")) <= self.most
        return [self.what, written(value), self.unit, ratio, self.bound + missed * ": missed"]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A script of benchmarks/, as `make bench` runs it."""

    rows: tuple[Row, ...]
    script: str = ""
    """If it is not the benchmark's name."""
    arguments: list[str] = field(default_factory=list[str])
    environment: str = ""
    """The contract environment whose interpreter runs it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a benchmark ended."""

    day: str
    commit: str
    rows: list[list[str]] = field(default_factory=list[list[str]])
    reason: str = ""
    """Why there are no rows."""
    failed: bool = False
    """Whether that is more than something the machine lacks."""


def looked_up(figures: Mapping[str, Any], path: str) -> float:
    """Return the figure of a path such as `speedup > wall`, or `a / b` as a ratio."""
    found: list[Any] = [
        reduce(operator.getitem, one.split(" > "), figures) for one in path.split(" / ")
    ]
    return reduce(operator.truediv, found)


def written(value: float) -> str:
    """Return a figure with three digits, or as a whole number."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def commit() -> str:
    """Return the checkout's commit, marked if files differ from it."""
    command = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """Describe the machine: processor, cores, memory, system and Python."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("model name")[2]
    name = cpu.partition("\n")[0].strip("\t :") or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{name}, {cores} cores, {memory:.0f} GiB; {platform.platform()}; {python}"


def versions() -> str:
    """Return the versions of the packages that figures depend on."""
    found: list[str] = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} is not installed")
    return ", ".join(found)


def markdown(outcomes: Mapping[str, Outcome], *, tiny: bool) -> str:
    """Return the table, with the machine it was measured on."""
    head = ("benchmark", "what", "figure", "unit", "ratio", "bound", "day", "commit")
    lines = [
        "# Benchmarks",
        "",
        "Tiny sizes: these figures only show that each benchmark runs." * tiny
        or "Ratios vary less between machines than times do. CPU time unless a row says otherwise.",
        "",
        f"- Machine: {machine()}",
        f"- Load at the end: {os.getloadavg()[0]:.1f} processes",
        f"- Versions: {versions()}",
        "",
        f"| {' | '.join(head)} |",
        "| --- " * len(head) + "|",
    ]
    for name, outcome in outcomes.items():
        reason = f"{'failed' if outcome.failed else 'not run'}: {outcome.reason}"
        for row in outcome.rows or [[reason, "", "", "", ""]]:
            cells = (name, *row, outcome.day, outcome.commit)
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def benchmarks() -> dict[str, Benchmark]:
    """Return the benchmarks of rows.toml by name, in order."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {
        name: Benchmark(rows=tuple(Row(**row) for row in entry.pop("rows")), **entry)
        for name, entry in tomllib.loads(text).items()
    }
