"""A draft of a problem: a scene to scale, its givens, one question.

A family places points and shapes in the problem's units, states the givens and asks for one
quantity with its exact value. The draft turns this into labels, texts and measures. A draw that
makes a poor problem raises `Unsuitable`, and the source draws again.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final

from envkit_geo3k.exact import Exact, ExactLike
from envkit_geo3k.figure import Shape
from envkit_geo3k.labels import LabelRequest
from envkit_geo3k.measure import Measure, Point

_LETTERS: Final = "ABCDEFGHJKLMNPRSTUVWXYZ"


class Unsuitable(Exception):  # not an error: the source draws again
    """The random numbers do not make a good problem."""


class Level(int):
    """Difficulty, 1 to 4."""

    @property
    def is_algebraic(self) -> bool:
        """Whether the unknown is written as an expression such as 3x + 2."""
        return self == 2

    @property
    def is_chained(self) -> bool:
        """Whether two facts must be chained."""
        return self >= 3


class Shown(StrEnum):
    """Where a given is stated."""

    FIGURE = "figure"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A quantity that the problem states."""

    measure: Measure
    value: Exact
    name: str
    """Name in the text, such as "AB" or "m∠ABC"."""
    text: str
    """Value as written."""
    at: tuple[str, ...]
    """Points of its label; empty for a quantity without a label."""
    shown: Shown
    stays: bool = False
    """Whether hardening keeps it in the figure."""

    def moved_to_text(self) -> "Given":
        """Return the same given without its label."""
        return replace(self, shown=Shown.TEXT)

    @property
    def statement(self) -> str:
        """The given as a phrase for the text."""
        return f"{self.name} {'is' if self.name.startswith('The ') else '='} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question, with its exact answer."""

    prompt: str
    answer: str
    """LaTeX."""
    values: tuple[float, ...]
    """The answer's value; two for a point."""
    goal: Measure
    label: LabelRequest | None = None
    """The unknown in the figure, such as "x" or "(3x + 2)°"."""


def given_length(a: str, b: str, value: ExactLike) -> Given:
    """Return the given length of a segment."""
    exact = Exact.of(value)
    return Given(
        measure=["length", a, b],
        value=exact,
        name=a + b,
        text=exact.plain(),
        at=(a, b),
        shown=Shown.FIGURE,
    )


def given_angle(a: str, vertex: str, b: str, degrees: ExactLike) -> Given:
    """Return the given measure of an angle."""
    exact = Exact.of(degrees)
    return Given(
        measure=["angle", a, vertex, b],
        value=exact,
        name=f"m∠{a}{vertex}{b}",
        text=f"{exact.plain()}°",
        at=(a, vertex, b),
        shown=Shown.FIGURE,
    )


def given_text(measure: Measure, name: str, value: ExactLike) -> Given:
    """Return a given stated only in the text, such as an area."""
    exact = Exact.of(value)
    return Given(
        measure=measure, value=exact, name=name, text=exact.plain(), at=(), shown=Shown.TEXT
    )


class Draft:
    """A problem under construction."""

    def __init__(self, rng: random.Random, level: int) -> None:
        self.rng = rng
        self.level = Level(level)
        self.key: tuple[int, ...] = ()
        """Numbers that identify the problem; they decide its split."""
        self.points: dict[str, Point] = {}
        self.shapes: list[Shape] = []
        self.unnamed: set[str] = set()
        """Unnamed points."""
        self.givens: list[Given] = []
        self.facts: list[str] = []
        self.question: Question | None = None
        self.is_upright = False
        """True keeps the drawn orientation, as with coordinate axes."""
        self._letters = list(_LETTERS)
        rng.shuffle(self._letters)

    def steps(self, low: int | Fraction, high: int | Fraction, parts: int = 10) -> Fraction:
        """Return a random multiple of one of `parts`, since angles have too few whole values.

        Four blind guesses among 40 whole degrees would solve one problem in ten.
        """
        steps = self.rng.randint(math.ceil(parts * low), math.floor(parts * high))
        return Fraction(steps, parts)

    def set_key(self, *numbers: Fraction | int) -> None:
        """Set the numbers, in tenths, that identify the problem."""
        self.key = tuple(int(10 * number) for number in numbers)

    def names(self, count: int) -> list[str]:
        """Return letters that no other point has."""
        taken, self._letters = self._letters[:count], self._letters[count:]
        return taken

    def put(self, name: str, x: float, y: float, *, named: bool = True) -> str:
        """Place a point."""
        self.points[name] = (x, y)
        if not named:
            self.unnamed.add(name)
        return name

    def segments(self, *pairs: str) -> None:
        """Draw the segment of each pair of names, written as two letters."""
        self.shapes += [("segment", pair[0], pair[1]) for pair in pairs]

    def polygon(self, names: Sequence[str]) -> None:
        """Draw a closed path."""
        self.shapes += [
            ("segment", a, b) for a, b in zip(names, [*names[1:], names[0]], strict=True)
        ]

    def triangle(self, a: str, b: str, c: str, base: float, tip: Point) -> None:
        """Place and draw a triangle with AB level, from the origin, and C at the tip."""
        self.put(a, 0, 0)
        self.put(b, base, 0)
        self.put(c, *tip)
        self.polygon([a, b, c])

    def right_triangle(self, a: str, b: str, c: str, level: float, upright: float) -> None:
        """Place and draw a triangle with a right angle at C, in the origin, and these legs."""
        self.put(c, 0, 0)
        self.put(a, level, 0)
        self.put(b, 0, upright)
        self.polygon([a, b, c])
        self.right_angle(a, c, b)

    def circle(self, center: str, radius: float, *, dot: bool = True) -> None:
        """Draw a circle, and its centre as a dot."""
        self.shapes.append(("circle", center, radius))
        if dot:
            self.shapes.append(("dot", center))

    def right_angle(self, a: str, vertex: str, b: str) -> None:
        """Mark a right angle."""
        self.shapes.append(("right_angle", a, vertex, b))

    def angle_mark(self, a: str, vertex: str, b: str, count: int = 1) -> None:
        """Draw the arc of an angle; equal counts say equal angles."""
        self.shapes.append(("angle", a, vertex, b, count))

    def ticks(self, count: int, *pairs: str) -> None:
        """Mark segments as equal."""
        self.shapes += [("ticks", pair[0], pair[1], count) for pair in pairs]

    def parallel(self, count: int, *pairs: str) -> None:
        """Mark segments as parallel; write each pair in the same direction."""
        self.shapes += [("arrows", pair[0], pair[1], count) for pair in pairs]

    def give(self, *givens: Given) -> None:
        """State quantities; a given angle gets its arc."""
        for given in givens:
            if len(given.at) == 3 and given.shown is Shown.FIGURE:
                self.angle_mark(*given.at)
            self.givens.append(given)

    def give_to_stay(self, *givens: Given) -> None:
        """State quantities that never move to the text, because too few answers would fit them."""
        self.give(*(replace(given, stays=True) for given in givens))

    def say(self, fact: str) -> None:
        """State a fact in the text as one sentence."""
        self.facts.append(fact)

    def ask_length(self, a: str, b: str, value: ExactLike, *, labelled: bool = True) -> None:
        """Ask for a segment's length, or for x in its expression.

        Args:
            a: One end.
            b: The other end.
            value: Its length.
            labelled: False keeps the unknown in the text. A label on a segment that crosses a
                circle could be read as the length of a part.
        """
        at = (a, b) if labelled else ()
        self._ask_unknown(["length", a, b], Exact.of(value), f"{a}{b}", at, "")

    def ask_angle(self, a: str, vertex: str, b: str, degrees: ExactLike) -> None:
        """Ask for an angle's measure, or for x in its expression."""
        name = f"m∠{a}{vertex}{b}"
        measure: Measure = ["angle", a, vertex, b]
        self._ask_unknown(measure, Exact.of(degrees), name, (a, vertex, b), "°")

    def _ask_unknown(
        self, measure: Measure, value: Exact, name: str, at: tuple[str, ...], sign: str
    ) -> None:
        algebraic = self.level == 2 or (
            self.level == 4 and _is_short(value) and self.rng.random() < 0.5
        )
        if not algebraic and (not at or self.rng.random() < 0.5):
            self.ask(f"Find {name}.", measure, value)
            return
        if algebraic:
            slope, offset = self._linear(value)
            sized = Exact.of(abs(offset)).plain()
            text = f"{slope}x {'+' if offset > 0 else '-'} {sized}"
            if sign:
                text = f"({text}){sign}"
            measure = ["solve", slope, float(offset), measure]
            value = (value - offset) / slope
        else:
            text = f"x{sign}"
        if len(at) == 3:
            self.angle_mark(*at)
        if at:
            self.ask("Find x.", measure, value, label=LabelRequest(text=text, at=at))
        else:
            self.ask(f"{name} = {text}. Find x.", measure, value)

    def _linear(self, value: Exact) -> tuple[int, Fraction]:
        """Return slope and offset, neither trivial, so that slope * x + offset is the value.

        The unknown is drawn first, uniformly, so guessing does not pay.
        """
        whole = value.rational
        if whole is None or not _is_short(value):
            raise Unsuitable("an algebra label needs a short number")
        unknown = self.rng.randint(4, 120)
        slope = self.rng.randint(2, max(2, min(6, 240 // unknown)))
        offset = whole - slope * unknown
        if offset == 0:
            raise Unsuitable("a trivial offset")
        return slope, offset

    def ask(
        self, prompt: str, goal: Measure, value: ExactLike, label: LabelRequest | None = None
    ) -> None:
        """Ask for any measure."""
        exact = Exact.of(value)
        self.question = Question(
            prompt=prompt, answer=exact.latex(), values=(float(exact),), goal=goal, label=label
        )

    def ask_rounded(self, prompt: str, goal: Measure, value: float) -> None:
        """Ask for a measure rounded to the nearest tenth.

        Raises:
            Unsuitable: The value is so close to a rounding boundary that graders could disagree.
        """
        if abs(value * 10 % 1 - 0.5) < 1e-3:
            raise Unsuitable("on a rounding boundary")
        rounded = round(value, 1)
        self.question = Question(
            prompt=f"{prompt} Round to the nearest tenth.",
            answer=f"{rounded:.1f}",
            values=(rounded,),
            goal=["round", 1, goal],
        )

    def ask_point(
        self, prompt: str, goals: tuple[Measure, Measure], values: Sequence[Exact]
    ) -> None:
        """Ask for the coordinates of a point."""
        self.question = Question(
            prompt=prompt,
            answer=f"({values[0].latex()}, {values[1].latex()})",
            values=(float(values[0]), float(values[1])),
            goal=["pair", *goals],
        )

    def require(self, condition: bool, why: str) -> None:
        """Draw again unless the condition holds.

        Raises:
            Unsuitable: The condition does not hold.
        """
        if not condition:
            raise Unsuitable(why)


def _is_short(value: Exact) -> bool:
    """Whether the number is a multiple of a tenth."""
    return (value * 10).integer is not None


def polar(center: Point, radius: float, degrees: float | Fraction) -> Point:
    """Return the point at a distance and a direction, counter-clockwise from the right."""
    turn = math.radians(degrees)
    return center[0] + radius * math.cos(turn), center[1] + radius * math.sin(turn)


def between(a: Point, b: Point, share: float) -> Point:
    """Interpolate between a and b; a share outside 0 to 1 extrapolates."""
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def sine_degrees(degrees: float | Fraction) -> float:
    """Return the sine of an angle in degrees."""
    return math.sin(math.radians(degrees))


def apex(base: float, left: float | Fraction, right: float | Fraction) -> Point:
    """Return the apex of a triangle on (0, 0) and (base, 0) with these angles in degrees."""
    side = base * sine_degrees(right) / sine_degrees(180 - left - right)
    return polar((0, 0), side, left)


def apex_from_sides(base: float, left: float, right: float) -> Point:
    """Return the apex of a triangle on (0, 0) and (base, 0) with these sides.

    Raises:
        Unsuitable: The sides make no triangle, or a degenerate one.
    """
    x = (base * base + left * left - right * right) / (2 * base)
    height = left * left - x * x
    if height <= (0.25 * base) ** 2:
        raise Unsuitable("the sides make no good triangle")
    return x, math.sqrt(height)
