"""Axes, themes, legends and numeric answers: what charts share."""

import random
from collections.abc import Iterable
from typing import Final

from envkit_visual.answers import NumberQuestion
from envkit_visual.canvas import COLORS, SIDE, Canvas, Color, Look
from envkit_visual.world import Q, Record

NAMES: Final = (
    *("Oslo", "Lima", "Cairo", "Delhi", "Quito", "Paris", "Tokyo", "Accra", "Hanoi", "Dakar"),
    *("Rome", "Kyiv", "Sofia", "Dubai", "Seoul", "Miami", "Perth", "Osaka", "Minsk", "Tunis"),
)
"""Short names for what a chart compares."""
STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Distances between two numbers on an axis."""

THIN: Final = ("red", "blue", "green", "purple", "orange", "pink", "cyan", "brown")
"""Colours of lines and points, which need more contrast than areas."""
_PANELS: Final[tuple[Color, ...]] = ((255, 255, 255), (252, 252, 246), (244, 247, 250))
_RULES: Final[tuple[Color, ...]] = ((190, 190, 190), (176, 190, 204), (204, 196, 184))


def colors_of(look: Look, count: int, known: Iterable[str] = COLORS) -> list[Color]:
    """Return different colours, in the look's order."""
    return [COLORS[name] for name in look.accents if name in known][:count]


class Axis(Record):
    """A scale with a number at every step."""

    low: int
    step: int
    steps: int

    @classmethod
    def anywhere(cls, rng: random.Random, steps: int) -> "Axis":
        """Draw an axis that may start far from 0. Its numbers have 4 digits at most."""
        step = rng.choice(STEPS[:6])
        return cls(low=step * rng.randint(0, 30), step=step, steps=steps)

    @property
    def ticks(self) -> list[int]:
        """The numbers on the axis."""
        return [self.low + self.step * index for index in range(self.steps + 1)]

    def at(self, steps: float) -> float:
        """Return the value so many steps from the start, without rounding errors."""
        return round(float(self.low + self.step * steps), 6)

    def part(self, value: float) -> float:
        """Return where a value lies on the axis: 0 at its start, 1 at its end."""
        return (value - self.low) / (self.step * self.steps)


class Plot:
    """A panel with a vertical axis, and a horizontal one where it has numbers."""

    def __init__(
        self, canvas: Canvas, look: Look, *, up: Axis, across: Axis | None = None, top: float = 22
    ) -> None:
        """Draw the panel, its grid lines and the numbers on its axes.

        Args:
            canvas: Where to draw.
            look: Colours.
            up: The vertical axis.
            across: The horizontal axis.
            top: Where the panel starts, below a legend.
        """
        self._up, self._across = up, across
        width = max(canvas.text_width(f"{tick:g}", 14) for tick in up.ticks)
        self.left, self.right = width + 18, SIDE - 22
        self.top, self.bottom = top, SIDE - 40
        rng = look.rng("plot")
        panel, rule, boxed = rng.choice(_PANELS), rng.choice(_RULES), rng.random() < 0.5
        canvas.box(self.left, self.top, self.right, self.bottom, fill=panel)
        for tick in up.ticks:
            y = self.y(tick)
            canvas.path(((self.left - 5, y), (self.right, y)), color=rule, width=1.5)
            canvas.text(self.left - 8, y, f"{tick:g}", color=look.ink, size=14, at="rm")
        for tick in () if across is None else across.ticks:
            x = self.x(tick)
            canvas.path(((x, self.top), (x, self.bottom + 5)), color=rule, width=1.5)
            canvas.text(x, self.bottom + 15, f"{tick:g}", color=look.ink, size=13)
        frame = [(self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)]
        if boxed:
            frame += [(self.right, self.top), frame[0]]
        canvas.path(frame, color=look.ink, width=2)

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis."""
        part = 0.0 if self._across is None else self._across.part(value)
        return self.left + (self.right - self.left) * part

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis."""
        return self.bottom - (self.bottom - self.top) * self._up.part(value)


def legend(canvas: Canvas, look: Look, entries: list[tuple[str, Color]]) -> float:
    """Draw names with their colours at the top, and return where the chart may start."""
    for index, (name, color) in enumerate(entries):
        x, y = 24 + (SIDE - 40) / 4 * (index % 4), 18 + 20 * (index // 4)
        canvas.box(x, y - 6, x + 16, y + 6, fill=color, line=look.ink)
        canvas.text(x + 22, y, name, color=look.ink, size=14, at="lm")
    return 22 + 20 * -(-len(entries) // 4)


class Reading(NumberQuestion[Q]):
    """A question whose answer is read from a scale."""

    chance = 0.02
    options = tuple(f"{step * part:g}" for step in (1, 5, 20, 100, 500) for part in (3, 5.5, 8))
