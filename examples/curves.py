"""The figures of a run and their plot, a hand-written SVG without dependencies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

_WIDTH: Final = 760
_HEIGHT: Final = 360
_LEFT: Final = 52
_TOP: Final = 34
_PLOT_WIDTH: Final = 500
_PLOT_HEIGHT: Final = 270
_COLOURS: Final = ("#0b6e99", "#c4541c", "#3b7d3c", "#8a4fa3", "#7a6a00")
_WINDOW: Final = 5
"""Steps averaged per point of the smooth curve."""


@dataclass(kw_only=True)
class Run:
    """Results of one run. Rewards are 0 to 1; probabilities are those of the right digit."""

    seed: int
    parameters: int
    chance: float
    warmup: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Step and held-out probability."""
    start: dict[str, float] = field(default_factory=dict[str, float])
    """Mean reward before GRPO, by the kind of images shown."""
    rewards: list[float] = field(default_factory=list[float])
    """Mean reward of each GRPO step."""
    mismatch: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Largest and mean difference of log-probabilities, engine to trainer, at each step."""
    end: dict[str, float] = field(default_factory=dict[str, float])
    """Like `start`, after GRPO."""
    tensors: int = 0
    changed: int = 0
    """Number of tensors that GRPO changed."""
    seconds: float = 0.0
    """Total wall-clock time."""
    cpu_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return asdict(self)


def draw_runs(folder: Path, name: str) -> Path:
    """Draw every run whose figures are in the folder as `NAME-*.json` into `NAME.svg` there."""
    runs = {
        path.stem.removeprefix(f"{name}-"): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob(f"{name}-*.json"))
    }
    path = folder / f"{name}.svg"
    path.write_text(_svg(name, runs), encoding="utf-8")
    return path


def _svg(name: str, runs: Mapping[str, dict[str, Any]]) -> str:
    steps = max([2, *(len(run["rewards"]) for run in runs.values())])
    chance = max((run["chance"] for run in runs.values()), default=0.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{name}: mean reward by GRPO step '
        f"(line: mean of {_WINDOW} steps)</text>",
        *_axes(steps),
        _level(chance, "chance"),
        _level(0.8, "target"),
    ]
    for number, (label, run) in enumerate(runs.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += _curve(run["rewards"], steps, colour)
        parts += _legend(label, run, number, colour)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axes(steps: int) -> list[str]:
    parts: list[str] = []
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT_WIDTH}" y1="{y}" y2="{y}" stroke="#e4e4e4"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tenth / 10:.1f}</text>'
        )
    for quarter in range(5):
        step = round(1 + (steps - 1) * quarter / 4)
        parts.append(
            f'<text x="{_x(step - 1, steps)}" y="{_TOP + _PLOT_HEIGHT + 18}" '
            f'text-anchor="middle">{step}</text>'
        )
    return parts


def _level(value: float, name: str) -> str:
    y = _y(value)
    return (
        f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT_WIDTH}" y1="{y}" y2="{y}" stroke="#888" '
        f'stroke-dasharray="5 4"/><text x="{_LEFT + _PLOT_WIDTH - 4}" y="{y - 4}" '
        f'text-anchor="end" fill="#666">{name}</text>'
    )


def _curve(rewards: Sequence[float], steps: int, colour: str) -> list[str]:
    dots = [
        f'<circle cx="{_x(n, steps)}" cy="{_y(reward)}" r="1.6" fill="{colour}" opacity="0.35"/>'
        for n, reward in enumerate(rewards)
    ]
    points: list[str] = []
    for n in range(len(rewards)):
        window = rewards[max(0, n + 1 - _WINDOW) : n + 1]
        points.append(f"{_x(n, steps)},{_y(sum(window) / len(window))}")
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return [*dots, line]


def _legend(label: str, run: dict[str, Any], number: int, colour: str) -> list[str]:
    x, y = _LEFT + _PLOT_WIDTH + 18, _TOP + 12 + 84 * number
    start, end = run["start"].get("images"), run["end"]
    lines = [f"{label}: {start:.2f} before GRPO" if start else label]
    lines += [f"{value:.2f} after, {name}" for name, value in end.items()]
    texts = [
        f'<text x="{x + 14}" y="{y + 16 * row}">{line}</text>' for row, line in enumerate(lines)
    ]
    return [f'<rect x="{x}" y="{y - 9}" width="9" height="9" fill="{colour}"/>', *texts]


def _x(step: int, steps: int) -> float:
    return round(_LEFT + _PLOT_WIDTH * step / (steps - 1), 1)


def _y(value: float) -> float:
    return round(_TOP + _PLOT_HEIGHT * (1 - value), 1)
