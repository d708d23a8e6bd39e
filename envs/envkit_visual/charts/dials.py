"""A clock, a panel of gauges, and needles to tune."""

import random
import re
from dataclasses import replace
from itertools import product
from string import ascii_uppercase

from envkit_visual.canvas import COLORS, SIDE, Canvas, Look, Point, around
from envkit_visual.charts.plot import Axis
from envkit_visual.replies import number_in
from envkit_visual.world import Asked, Outcome, Question, Record, Staged

_TIME = re.compile(r"([01]?\d|2[0-3])\s*:\s*([0-5]\d)", re.ASCII)
_ROUND = 12 * 60
_SLACK = 2


class ClockState(Asked):
    """A time and how the dial is turned."""

    minutes: int
    """After twelve."""
    tilt: int
    """Degrees clockwise from the top to the place of the 12."""


class Clock(Question[ClockState]):
    """Read the time from a clock whose dial may be turned.

    The picture shows a clock with a short hour hand and a long minute hand. Its dial may be turned,
    so that the 12 is not at the top. Read the time.

    An action is the time as hours and minutes, such as 4:07; it may be off by 2 minutes.
    """

    difficulty = ("largest turn of the dial in degrees", 0, 25, 80, 180)
    chance = 0.01
    refusal = "a time is hours and minutes, such as 4:07"
    options = ("10:10", *(f"{hour}:{at:02}" for hour in (1, 4, 7, 11) for at in (0, 20, 45)))

    def create(self, rng: random.Random, size: int) -> ClockState:
        """Draw a time and a turn."""
        return ClockState(minutes=rng.randrange(_ROUND), tilt=rng.randint(-size, size))

    def draw(self, state: ClockState, canvas: Canvas, look: Look) -> None:
        """Draw the dial and its hands."""
        rng, middle, radius = look.rng("clock"), (SIDE / 2, SIDE / 2), SIDE * 0.45
        face = rng.choice(((255, 255, 255), (253, 250, 240), (240, 246, 250)))
        rim, hand = COLORS[look.accents[0]], COLORS[rng.choice(("red", "blue", "green", "purple"))]
        canvas.disc(*middle, radius, fill=face, line=rim, width=rng.choice((4, 7, 10)))
        for minute in range(60):
            angle = state.tilt + minute * 6
            inner, width = (radius - 26, 3) if minute % 5 == 0 else (radius - 19, 1.5)
            tick = (around(middle, radius - 14, angle), around(middle, inner, angle))
            canvas.path(tick, color=look.ink, width=width)
            if minute % 5 == 0:
                x, y = around(middle, radius - 48, angle)
                canvas.text(x, y, str(minute // 5 or 12), color=look.ink, size=24)
        hour, minute = _angles(state)
        hands = ((hour, radius * 0.46, look.ink, 10), (minute, radius - 30, hand, 4))
        for angle, far, color, width in hands:
            canvas.path((middle, around(middle, far, state.tilt + angle)), color=color, width=width)
        canvas.disc(*middle, 8, fill=look.ink)

    def tell(self, state: ClockState) -> str:
        """Say where the hands point."""
        hour, minute = _angles(state)
        return f"degrees clockwise from the 12: hour hand {hour:g}, minute hand {minute:g}"

    def answer(self, state: ClockState) -> str:
        """Return the time."""
        hours, minutes = divmod(state.minutes, 60)
        return f"{hours or 12}:{minutes:02}"

    def read(self, text: str) -> int | None:
        """Return the minutes after twelve."""
        found = _TIME.fullmatch(text)
        return (int(found[1]) * 60 + int(found[2])) % _ROUND if found else None

    def is_right(self, state: ClockState, given: str) -> bool:
        """Accept what is off by two minutes at most."""
        minutes = self.read(given)
        if minutes is None:
            return False
        off = (minutes - state.minutes) % _ROUND
        return min(off, _ROUND - off) <= _SLACK


def _angles(state: ClockState) -> tuple[float, float]:
    """Return the degrees from the 12 to the hour hand and to the minute hand."""
    return state.minutes / 2, state.minutes % 60 * 6


_NEEDLES = ("red", "blue", "green", "purple", "orange")


class GaugeState(Asked):
    """Scales and what their needles show."""

    axes: tuple[Axis, ...]
    values: tuple[float, ...]


class Gauge(Question[GaugeState]):
    """Read all dials of a panel.

    The picture shows dials with letters. Each has its own scale, which may run clockwise or
    counterclockwise. Read all of them.

    An action is the values of all dials in the order of their letters, separated by commas, such as
    12.5, 340; each may be off by a quarter of the distance between two numbers on its scale.
    """

    difficulty = ("number of dials", 1, 2, 4, 6)
    chance = 0.02
    refusal = "the answer is numbers separated by commas"

    def create(self, rng: random.Random, size: int) -> GaugeState:
        """Draw scales and values."""
        axes = [Axis.anywhere(rng, rng.randint(4, 6)) for _ in range(size)]
        values = [axis.at(rng.randint(3, 10 * axis.steps - 3) / 10) for axis in axes]
        return GaugeState(axes=tuple(axes), values=tuple(values))

    def draw(self, state: GaugeState, canvas: Canvas, look: Look) -> None:
        """Draw the dials in rows."""
        count = len(state.axes)
        columns = 1 if count == 1 else 2 if count <= 4 else 3
        wide, high = SIDE / columns, SIDE / -(-count // columns)
        radius = min(min(wide, high) / 2 - 6, 150)
        for index, (axis, value) in enumerate(zip(state.axes, state.values, strict=True)):
            row, column = divmod(index, columns)
            center = (wide * (column + 0.5), high * (row + 0.5))
            _draw_dial(canvas, look, center, radius, axis, value, index)

    def tell(self, state: GaugeState) -> str:
        """List the dials."""
        rows = zip(ascii_uppercase, state.values, state.axes, strict=False)
        return "\n".join(f"{name}: {at:g}, numbers every {axis.step}" for name, at, axis in rows)

    def answer(self, state: GaugeState) -> str:
        """Return all values."""
        return ", ".join(f"{value:g}" for value in state.values)

    def read(self, text: str) -> list[float] | None:
        """Return the numbers."""
        parts = text.split(",")
        found = [number for part in parts if (number := number_in(part.strip())) is not None]
        return found if len(found) == len(parts) else None

    def is_right(self, state: GaugeState, given: str) -> bool:
        """Accept values that are all close enough."""
        numbers = self.read(given) or []
        rows = zip(numbers, state.values, state.axes, strict=False)
        is_near = all(abs(number - at) <= axis.step / 4 + 1e-6 for number, at, axis in rows)
        return is_near and len(numbers) == len(state.values)

    def choices(self, state: GaugeState) -> list[str]:
        """Return the same number for all dials."""
        numbers = (4, 12.5, 35, 80, 200, 500)
        return [", ".join([f"{number:g}"] * len(state.axes)) for number in numbers]


def _draw_dial(
    canvas: Canvas, look: Look, center: Point, radius: float, axis: Axis, value: float, index: int
) -> None:
    """Draw a scale with a gap at the bottom and four fine marks between numbers, and a needle."""
    rng, is_large, ink = look.rng("dial", index), radius > 90, look.ink
    gap, way = rng.choice((70, 90, 110)), 1 if rng.random() < 0.65 else -1

    def place(part: float, far: float) -> Point:
        return around(center, far, way * (180 + gap / 2 + (360 - gap) * part))

    canvas.disc(*center, radius, fill=(255, 255, 255), line=ink, width=2)
    for mark in range(axis.steps * 5 + 1):
        part, inset, width = mark / (axis.steps * 5), 9, 1.5
        if mark % 5 == 0:
            inset, width, size = 13, 2.5, 14 if is_large else 12
            number, spot = axis.ticks[mark // 5], place(part, radius - 26)
            canvas.text(*spot, f"{number:g}", color=ink, size=size)
        canvas.path((place(part, radius - 4), place(part, radius - inset)), color=ink, width=width)
    ends = [place(axis.part(value), far) for far in (-radius * 0.14, radius - 6)]
    canvas.path(ends, color=COLORS[rng.choice(_NEEDLES)], width=3)
    canvas.disc(*center, radius * 0.07, fill=ink)
    x, y = center
    canvas.text(x, y + radius * 0.8, ascii_uppercase[index], color=ink, size=20 if is_large else 16)


_KNOBS = "ABC"
_END = 20
"""A knob turns from -20 to 20."""
_TOP = 60
"""Each scale goes from 0 to 60."""
_TURN = re.compile(r"([ABC])[\s,]*([+-]?\d{1,3})", re.ASCII)
_PLACES = tuple(product(range(3), repeat=2))
"""Needles and knobs."""
Row = tuple[int, ...]


class TuneState(Record):
    """Knobs, and what one click of each adds to the three needles."""

    gains: tuple[Row, ...]
    """One row per needle, one column per knob."""
    knobs: Row
    aims: Row
    """Where the knobs must be. No other place brings all needles to their marks."""
    marks: Row


class Tune(Staged[TuneState]):
    """Turn knobs of unknown effect until every needle is on its mark.

    The picture shows three scales with a needle and a triangle, and three knobs A, B and C. Every
    click of a knob moves one needle or more, each by a fixed whole number that you do not know.
    Turn the knobs until every needle is exactly above its triangle; its lamp is green then. Knobs
    turn from -20 to 20 clicks.

    An action is a knob and by how many clicks to turn it, such as A +3 or C -12.
    """

    difficulty = ("number of side effects of knobs", 0, 2, 4, 6)
    options = tuple(f"{name} {clicks:+d}" for clicks in (1, -1, 3, -3, 8, -8) for name in _KNOBS)

    def create(self, rng: random.Random, size: int) -> TuneState:
        """Draw gains and marks until all needles start on their scales and off their marks."""
        while True:
            gains = _gains(rng, size)
            aims = tuple(rng.choice((-1, 1)) * rng.randint(3, 10) for _ in _KNOBS)
            shifts = _shifts(gains, aims)
            marks = tuple(rng.randint(2, _TOP - 2) + shift for shift in shifts)
            if _is_solvable(gains) and all(shifts) and all(3 <= mark <= _TOP - 3 for mark in marks):
                return TuneState(gains=gains, knobs=(0, 0, 0), aims=aims, marks=marks)

    def draw(self, state: TuneState, canvas: Canvas, look: Look) -> None:
        """Draw the scales, the lamps and the knobs."""
        left, unit, ink = 26, 6.2, look.ink
        for row, (needle, mark) in enumerate(zip(_needles(state), state.marks, strict=True)):
            y = 56 + 98 * row
            canvas.box(left - 14, y - 34, left + unit * _TOP + 14, y + 47, fill=(255, 255, 255))
            for value in range(_TOP + 1):
                x = left + unit * value
                long = 14 if value % 10 == 0 else 10 if value % 5 == 0 else 6
                canvas.path(((x, y), (x, y + long)), color=ink, width=1.5)
                if value % 10 == 0:
                    canvas.text(x, y + 37, str(value), color=ink, size=14)
            x = left + unit * mark
            canvas.polygon(((x, y + 15), (x - 5, y + 26), (x + 5, y + 26)), fill=COLORS["red"])
            x = left + unit * min(max(needle, 0), _TOP)
            if 0 <= needle <= _TOP:
                canvas.path(((x, y), (x, y - 28)), color=COLORS["blue"], width=3)
            else:
                start, end = sorted((x - 12, x + 12), reverse=needle < 0)
                canvas.arrow((start, y - 16), (end, y - 16), color=COLORS["blue"], width=3)
            lit = COLORS["green"] if needle == mark else (205, 205, 205)
            canvas.disc(SIDE - 20, y + 4, 12, fill=lit, line=ink, width=1.5)
        for index, (name, turned) in enumerate(zip(_KNOBS, state.knobs, strict=True)):
            center = (SIDE * (index + 0.5) / 3, 384.0)
            rim = COLORS[look.accents[index]]
            canvas.disc(*center, 34, fill=(255, 255, 255), line=rim, width=6)
            canvas.path((center, around(center, 27, turned * 7)), color=ink, width=4)
            label = f"{name}: {turned:+d}" if turned else f"{name}: 0"
            canvas.text(center[0], 434, label, color=ink, size=18)

    def tell(self, state: TuneState) -> str:
        """List needles, marks and knobs."""
        needles = [one if 0 <= one <= _TOP else "off the scale" for one in _needles(state)]
        pairs = zip(needles, state.marks, strict=True)
        rows = [f"needle {needle}, mark {mark}" for needle, mark in pairs]
        knobs = zip(_KNOBS, state.knobs, strict=True)
        return "\n".join([*rows, *(f"knob {name} at {turned}" for name, turned in knobs)])

    def act(self, state: TuneState, action: str) -> Outcome[TuneState]:
        """Turn a knob, as far as it goes."""
        found = _TURN.fullmatch(action.upper())
        if found is None or int(found[2]) == 0:
            error = "a turn is a knob and clicks other than 0, as in A +3"
            return Outcome(state=state, error=error)
        index, knobs = _KNOBS.index(found[1]), list(state.knobs)
        turned = knobs[index] + int(found[2])
        knobs[index] = min(max(turned, -_END), _END)
        text = "Turned." if turned == knobs[index] else "The knob stops at its end."
        return Outcome(state=replace(state, knobs=tuple(knobs)), text=text)

    def progress(self, state: TuneState) -> float:
        """Return the share of knobs that are where they must be."""
        return sum(map(int.__eq__, state.knobs, state.aims)) / len(_KNOBS)

    def plan(self, state: TuneState) -> list[str]:
        """Turn each knob once."""
        ways = zip(_KNOBS, state.knobs, state.aims, strict=True)
        return [f"{name} {aim - turned:+d}" for name, turned, aim in ways if aim != turned]


def _needles(state: TuneState) -> list[int]:
    turns = map(int.__sub__, state.aims, state.knobs)
    return list(map(int.__sub__, state.marks, _shifts(state.gains, tuple(turns))))


def _shifts(gains: tuple[Row, ...], turns: Row) -> list[int]:
    """Return how far turns of the knobs move the needles."""
    return [sum(map(int.__mul__, row, turns)) for row in gains]


def _gains(rng: random.Random, effects: int) -> tuple[Row, ...]:
    """Return gains with a main effect for every knob, on any needle, and some side effects."""
    main = list(enumerate(rng.sample(range(3), 3)))
    others = [place for place in _PLACES if place not in main]
    chosen = {*main, *rng.sample(others, effects)}
    gains = [rng.choice((-1, 1)) * rng.randint(1, 3) if place in chosen else 0 for place in _PLACES]
    return tuple(gains[:3]), tuple(gains[3:6]), tuple(gains[6:])


def _is_solvable(gains: tuple[Row, ...]) -> bool:
    """Return whether only one setting of the knobs brings the needles to their marks."""
    (a, b, c), (d, e, f), (g, h, i) = gains
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g) != 0
