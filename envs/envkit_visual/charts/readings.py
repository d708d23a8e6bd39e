"""Charts whose values are read, compared or ordered."""

import math
import random
from collections.abc import Callable
from string import ascii_uppercase

import numpy as np

from envkit_visual.answers import PlaceQuestion, at, different_letters, spot_in
from envkit_visual.canvas import COLORS, SIDE, Canvas, Color, Look, Point
from envkit_visual.charts.plot import NAMES, STEPS, THIN, Axis, Plot, Reading, colors_of, legend
from envkit_visual.world import Asked, Question

_SERIES = ("North", "South", "East", "West")


class BarsState(Asked):
    """Groups of bars, and the bar that is asked for."""

    axis: Axis
    groups: tuple[str, ...]
    series: tuple[str, ...]
    values: tuple[float, ...]
    """All bars from left to right."""
    asked: int


class Bars(Reading[BarsState]):
    """Read the value of one bar.

    The picture shows a bar chart. Read the value that is asked for from the axis.

    An action is a number, such as 36.5; it may be off by a quarter of the distance between two
    numbers on the axis.
    """

    difficulty = ("number of bars", 4, 8, 15, 24)

    def create(self, rng: random.Random, size: int) -> BarsState:
        """Draw an axis, names and values."""
        per_group = sum(size >= least for least in self.levels)
        axis = Axis(low=0, step=rng.choice(STEPS), steps=10)
        groups = tuple(rng.sample(NAMES, size // per_group))
        values = tuple(axis.at(rng.randint(40, 200) / 20) for _ in range(len(groups) * per_group))
        series, asked = tuple(rng.sample(_SERIES, per_group)), rng.randrange(len(values))
        return BarsState(axis=axis, groups=groups, series=series, values=values, asked=asked)

    def draw(self, state: BarsState, canvas: Canvas, look: Look) -> None:
        """Draw the bars over their axis."""
        colors = colors_of(look, len(state.series))
        entries = list(zip(state.series, colors, strict=True)) if len(colors) > 1 else []
        plot = Plot(canvas, look, up=state.axis, top=legend(canvas, look, entries))
        room = (plot.right - plot.left) / len(state.groups)
        width = min(44.0, room * 0.8 / len(colors))
        for index, name in enumerate(state.groups):
            middle = plot.left + room * (index + 0.5)
            canvas.text(middle, plot.bottom + 16, name, color=look.ink, size=14)
            for place, color in enumerate(colors):
                left = middle + width * (place - len(colors) / 2)
                top = plot.y(state.values[index * len(colors) + place])
                canvas.box(left, top, left + width, plot.bottom, fill=color, line=look.ink)

    def tell(self, state: BarsState) -> str:
        """List the bars."""
        lines = (f"{self._named(state, at)}: {value:g}" for at, value in enumerate(state.values))
        return f"numbers on the axis every {state.axis.step:g}\n" + "\n".join(lines)

    def ask(self, state: BarsState) -> str:
        """Name the bar."""
        return f"What is the value of {self._named(state, state.asked)}?"

    def value(self, state: BarsState) -> float:
        """Return the height of the bar."""
        return state.values[state.asked]

    def slack(self, state: BarsState) -> float:
        """Return a quarter of a step."""
        return state.axis.step / 4

    def _named(self, state: BarsState, index: int) -> str:
        group, at = divmod(index, len(state.series))
        name = state.groups[group]
        return f"{name}, {state.series[at]}" if len(state.series) > 1 else name


_STEPS = 10
Line = tuple[float, ...]


class LinesState(Asked):
    """Lines through the grid lines of a chart, and the two that are asked for."""

    across: Axis
    up: Axis
    names: tuple[str, ...]
    lines: tuple[Line, ...]
    """Heights at every vertical grid line, in steps of the axis."""
    asked: tuple[int, int]


class Lines(Reading[LinesState]):
    """Find where two lines cross first.

    The picture shows a line chart. Read from the horizontal axis where two of its lines cross for
    the first time, from the left.

    An action is a number on the horizontal axis, such as 36.5; it may be off by a quarter of the
    distance between two grid lines.
    """

    difficulty = ("number of lines", 2, 4, 6, 8)

    def create(self, rng: random.Random, size: int) -> LinesState:
        """Draw two lines from their distances, and others at random."""
        lines = [*_pair(rng), *(_walk(rng, [0.0] * (_STEPS + 1)) for _ in range(size - 2))]
        order = rng.sample(range(size), size)
        across, up = Axis.anywhere(rng, _STEPS), Axis.anywhere(rng, _STEPS)
        names, lines = tuple(rng.sample(NAMES, size)), tuple(lines[index] for index in order)
        asked = (order.index(0), order.index(1))
        return LinesState(across=across, up=up, names=names, lines=lines, asked=asked)

    def draw(self, state: LinesState, canvas: Canvas, look: Look) -> None:
        """Draw the lines over their axes."""
        colors = colors_of(look, len(state.lines), THIN)
        top = legend(canvas, look, list(zip(state.names, colors, strict=True)))
        plot = Plot(canvas, look, up=state.up, across=state.across, top=top)
        xs = [plot.x(state.across.at(index)) for index in range(_STEPS + 1)]
        for line, color in zip(state.lines, colors, strict=True):
            heights = (plot.y(state.up.at(height)) for height in line)
            canvas.path([*zip(xs, heights, strict=True)], color=color, width=2.5)

    def tell(self, state: LinesState) -> str:
        """List the corners of the lines."""
        ticks = ", ".join(f"{tick:g}" for tick in state.across.ticks)
        told = [", ".join(f"{state.up.at(height):g}" for height in line) for line in state.lines]
        rows = map(": ".join, zip(state.names, told, strict=True))
        return "\n".join((f"straight between these x: {ticks}", *rows))

    def ask(self, state: LinesState) -> str:
        """Name the two lines."""
        first, second = (state.names[index] for index in state.asked)
        return f"At which x do {first} and {second} cross for the first time?"

    def value(self, state: LinesState) -> float:
        """Return the first crossing."""
        first, second = (state.lines[index] for index in state.asked)
        gaps = [a - b for a, b in zip(first, second, strict=True)]
        at = next(index for index in range(_STEPS) if gaps[index] * gaps[index + 1] < 0)
        return state.across.at(round(at + gaps[at] / (gaps[at] - gaps[at + 1]), 2))

    def slack(self, state: LinesState) -> float:
        """Return a quarter of a step."""
        return state.across.step / 4


def _pair(rng: random.Random) -> tuple[Line, Line]:
    """Return two lines that cross first at a place that is drawn evenly."""
    crossing, side = rng.randrange(_STEPS), rng.choice((-1, 1))
    gaps = list[float]()
    for index in range(-crossing, _STEPS + 1 - crossing):
        way = 1 if index <= 0 else -1 if index == 1 else rng.choice((-1, 1))
        gaps.append(side * way * rng.uniform(0.8, 3.5))
    middle = _walk(rng, [abs(gap) / 2 for gap in gaps])
    both = zip(middle, gaps, strict=True)
    first, second = zip(*((y + gap / 2, y - gap / 2) for y, gap in both), strict=True)
    return tuple(round(y, 2) for y in first), tuple(round(y, 2) for y in second)


def _walk(rng: random.Random, margins: list[float]) -> Line:
    """Return random heights that stay a margin away from the ends of the axis."""
    height, heights = rng.uniform(1, 9), list[float]()
    for margin in margins:
        low, high = margin + 0.3, 9.7 - margin
        height += rng.uniform(-2, 2)
        if not low < height < high:
            height = rng.uniform(low, high)
        heights.append(round(height, 2))
    return tuple(heights)


_SHADES = 8
_ENDS: tuple[tuple[Color, Color, Color], ...] = (
    ((255, 250, 205), (70, 175, 150), (20, 25, 90)),
    ((255, 245, 215), (240, 120, 50), (75, 0, 30)),
    ((235, 245, 255), (80, 150, 215), (10, 20, 70)),
    ((245, 240, 250), (200, 100, 180), (50, 5, 70)),
    ((40, 90, 190), (245, 245, 240), (180, 20, 40)),
)
"""The first, middle and last colour of a legend."""


class HeatState(Asked):
    """Shades of a square of cells, and the cell that is asked for."""

    side: int
    shades: tuple[int, ...]
    """Row by row."""
    values: tuple[int, ...]
    """The value of every shade."""
    asked: int


class Heat(Reading[HeatState]):
    """Look up the value of a cell of a heat map.

    The picture shows a heat map and, on its right, a legend with the value of every colour. Rows
    have letters and columns have numbers. Find the value of the cell that is asked for.

    An action is a number from the legend.
    """

    difficulty = ("cells per side", 3, 6, 9, 12)

    def create(self, rng: random.Random, size: int) -> HeatState:
        """Draw a legend and the cells."""
        step, low = rng.choice(STEPS[:8]), rng.randint(0, 40)
        shades = tuple(rng.randrange(_SHADES) for _ in range(size**2))
        values, asked = (step * (low + at) for at in range(_SHADES)), rng.randrange(size**2)
        return HeatState(side=size, shades=shades, values=tuple(values), asked=asked)

    def draw(self, state: HeatState, canvas: Canvas, look: Look) -> None:
        """Draw the cells, the names of rows and columns, and the legend."""
        colors = _colors(look)
        cell, left, top = 324 / state.side, 28, 66
        for row in range(state.side):
            y, middle = top + cell * row, cell * (row + 0.5)
            canvas.text(left - 12, top + middle, ascii_uppercase[row], color=look.ink, size=15)
            canvas.text(left + middle, top - 13, str(row + 1), color=look.ink, size=15)
            for column in range(state.side):
                x, color = left + cell * column, colors[state.shades[row * state.side + column]]
                canvas.box(x, y, x + cell, y + cell, fill=color, line=look.paper)
        for shade, value in enumerate(state.values):
            y = top + 324 / _SHADES * shade
            canvas.box(368, y, 396, y + 324 / _SHADES, fill=colors[shade], line=look.ink)
            canvas.text(401, y + 20, str(value), color=look.ink, size=14, at="lm")

    def tell(self, state: HeatState) -> str:
        """List the values of the rows."""
        values = [str(state.values[shade]) for shade in state.shades]
        starts = zip(ascii_uppercase, range(0, len(values), state.side), strict=False)
        rows = [f"{name}: {' '.join(values[at : at + state.side])}" for name, at in starts]
        return "\n".join(("values of columns 1, 2, ...", *rows))

    def ask(self, state: HeatState) -> str:
        """Name the cell."""
        row, column = divmod(state.asked, state.side)
        return f"What is the value of cell {ascii_uppercase[row]}{column + 1}?"

    def value(self, state: HeatState) -> float:
        """Return the value of the cell's shade."""
        return state.values[state.shades[state.asked]]


def _colors(look: Look) -> list[Color]:
    """Return the shades of a legend, in even steps."""
    rng = look.rng("heat")
    first, middle, last = rng.choice(_ENDS)
    if rng.random() < 0.5:
        first, last = last, first
    parts = 2 * np.arange(_SHADES) / (_SHADES - 1)
    ends = zip(first, middle, last, strict=True)
    red, green, blue = (np.interp(parts, (0, 1, 2), end).round().astype(int) for end in ends)
    return list(zip(red.tolist(), green.tolist(), blue.tolist(), strict=True))


_COUNT = 40
_NEAR = 12.0
"""How far from the center of a point one may click, in units of the picture."""
_INSET = 34
_DARK = ("red", "blue", "green", "purple", "brown")
_CURVE = [step / 60 for step in range(61)]


class OutlierState(Asked):
    """Points in units of the picture; one of them is off the trend."""

    points: tuple[tuple[int, int], ...]
    odd: int


class Outlier(PlaceQuestion[OutlierState]):
    """Point at the one point that is off the trend.

    The picture shows a scatter plot. The points follow a smooth curve with some noise, except one,
    which lies farther from the curve than all others. Click on it.

    An action is its place x, y in thousandths of the picture, from 0, 0 at the top left.
    """

    difficulty = ("noise in hundredths of the height", 1, 4, 7, 10)
    chance = 0.01
    refusal = "a place is two numbers x, y from 0 to 1000"
    options = tuple(f"{x}, {y}" for x in (200, 400, 600, 800) for y in (250, 450, 650, 850))

    def create(self, rng: random.Random, size: int) -> OutlierState:
        """Draw a curve and points until one of them is clearly off."""
        while True:
            curve = _curve(rng)
            xs = [(index + rng.random()) / _COUNT for index in range(_COUNT)]
            noise, odd = size / 100, rng.randrange(2, _COUNT - 2)
            offs = [rng.uniform(-noise, noise) for _ in xs]
            offs[odd] = rng.choice((-1, 1)) * (0.12 + 0.6 * noise + 0.03 * rng.random())
            spots = [(x, curve(x) + off) for x, off in zip(xs, offs, strict=True)]
            if _is_clear(spots, [(x, curve(x)) for x in _CURVE], odd):
                room, low = SIDE - 2 * _INSET, SIDE - _INSET
                points = [(round(_INSET + room * x), round(low - room * y)) for x, y in spots]
                order = rng.sample(range(_COUNT), _COUNT)
                shuffled = tuple(points[index] for index in order)
                return OutlierState(points=shuffled, odd=order.index(odd))

    def draw(self, state: OutlierState, canvas: Canvas, look: Look) -> None:
        """Draw two axes without numbers, and the points."""
        low, high, rng = _INSET - 18, SIDE - _INSET + 18, look.rng("scatter")
        canvas.box(low, low, high, high, fill=(255, 255, 255))
        for step in range(1, 6 * rng.randint(0, 1)):
            place = low + (high - low) * step / 6
            canvas.path(((low, place), (high, place)), color=(215, 215, 215))
            canvas.path(((place, low), (place, high)), color=(215, 215, 215))
        canvas.path(((low, low), (low, high), (high, high)), color=look.ink, width=2)
        kind, color = rng.choice(("circle", "square", "diamond")), COLORS[rng.choice(_DARK)]
        for x, y in state.points:
            canvas.shape(kind, x, y, 6, fill=color)

    def tell(self, state: OutlierState) -> str:
        """List the points in thousandths."""
        return "points x, y in thousandths:\n" + "\n".join(map(at, state.points))

    def answer(self, state: OutlierState) -> str:
        """Return the place of the odd point."""
        return at(state.points[state.odd])

    def is_right(self, state: OutlierState, given: str) -> bool:
        """Accept a click on the odd point that is not closer to another one."""
        spot = spot_in(given)
        far = [math.dist(spot, point) for point in state.points] if spot else [math.inf]
        return min(far) <= _NEAR and far[state.odd] == min(far)


def _curve(rng: random.Random) -> Callable[[float], float]:
    """Draw a line with a wave on it, from 0 to 1."""
    start, slope, height = rng.uniform(0.35, 0.65), rng.uniform(-0.5, 0.5), rng.uniform(0.0, 0.2)
    waves, phase = rng.uniform(0.5, 1.1), rng.random()
    return lambda x: start + slope * (x - 0.5) + height * math.sin(math.tau * (waves * x + phase))


def _is_clear(spots: list[Point], curve: list[Point], odd: int) -> bool:
    """Return whether all points fit, and one is much farther from the curve and from others."""
    if any(not 0 <= y <= 1 for _, y in spots):
        return False
    far = [min(math.dist(spot, point) for point in curve) for spot in spots]
    closest = sorted(math.dist(spots[odd], spot) for spot in spots)[1]
    second, first = sorted(far)[-2:]
    return closest > 0.06 and far[odd] == first > 1.6 * second


_LETTERS = "ABCDEFGHJKLMNPRSTUXYZ"
_WHOLE = 1000
_LEAST = 30
_GAP = 10
"""Least difference of two slices, in thousandths of the pie."""


class PieState(Asked):
    """The slices of a pie, clockwise."""

    letters: str
    shares: tuple[int, ...]
    """In thousandths."""


class Pie(Question[PieState]):
    """Sort the slices of a pie chart by size.

    The picture shows a pie chart. Sort its slices from the largest to the smallest.

    An action is the letters of all slices, the largest first, such as K, B, T.
    """

    difficulty = ("number of slices", 4, 5, 7, 9)
    refusal = "the answer is a list of different letters, such as K, B, T"

    def create(self, rng: random.Random, size: int) -> PieState:
        """Draw sizes that differ enough."""
        shares = [_LEAST + _GAP * index for index in range(size)]
        while (left := _WHOLE - sum(shares)) > 0:
            first = rng.randrange(size)
            more = min(rng.randint(1, 15), left // (size - first))
            shares[first:] = [share + more for share in shares[first:]]
        rng.shuffle(shares)
        return PieState(letters="".join(rng.sample(_LETTERS, size)), shares=tuple(shares))

    def draw(self, state: PieState, canvas: Canvas, look: Look) -> None:
        """Draw the slices and their letters around them."""
        rng, middle, radius = look.rng("pie"), SIDE / 2, SIDE * 0.4
        start, ring = rng.uniform(0, 360), rng.choice((0.0, 0.0, 0.35))
        edges = list[float]()
        for share, color in zip(state.shares, colors_of(look, len(state.shares)), strict=True):
            end = start + share * 360 / _WHOLE
            canvas.wedge(middle, middle, radius, start, end, fill=color)
            edges.append(math.radians(start))
            start = end
        for index, angle in enumerate(edges):
            edge = (middle + radius * math.cos(angle), middle + radius * math.sin(angle))
            canvas.path(((middle, middle), edge), color=look.paper, width=2)
            half = angle + math.pi * state.shares[index] / _WHOLE
            x, y = (middle + (radius + 18) * turn for turn in (math.cos(half), math.sin(half)))
            canvas.text(x, y, state.letters[index], color=look.ink, size=18)
        if ring:
            canvas.disc(middle, middle, radius * ring, fill=look.paper)

    def tell(self, state: PieState) -> str:
        """List the slices."""
        pairs = zip(state.letters, state.shares, strict=True)
        return "\n".join(f"{letter}: {share / 10:g} %" for letter, share in pairs)

    def answer(self, state: PieState) -> str:
        """Return the letters in order."""
        pairs = sorted(zip(state.shares, state.letters, strict=True), reverse=True)
        return ", ".join(letter for _, letter in pairs)

    def read(self, text: str) -> str | None:
        """Return the letters."""
        return different_letters(text, ascii_uppercase)

    def choices(self, state: PieState) -> list[str]:
        """Return as many letters as there are slices."""
        return [", ".join(_LETTERS[at : at + len(state.letters)]) for at in range(0, 12, 3)]
