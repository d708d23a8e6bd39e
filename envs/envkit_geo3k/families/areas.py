"""Areas, arcs, sectors and shaded regions; answers involving circles contain pi."""

import math
from fractions import Fraction

from envkit_geo3k.draft import (
    Draft,
    apex_from_sides,
    given_angle,
    given_length,
    given_text,
    polar,
)
from envkit_geo3k.drawing import FILL, PAPER
from envkit_geo3k.exact import PI, Exact
from envkit_geo3k.families.right_triangles import leg_pair, triple
from envkit_geo3k.measure import Measure


def areas(draft: Draft) -> None:
    """Ask for base times height; algebra: back from the area; chained: the height comes first."""
    if draft.level.is_chained:
        if draft.rng.random() < 0.5:
            _isosceles_area(draft)
        else:
            _right_triangle_area(draft)
    elif draft.rng.random() < 0.5:
        _triangle_area(draft)
    else:
        _parallelogram_area(draft)


def _ask_area(
    draft: Draft, corners: list[str], foot: tuple[str, str], height: Fraction, area: Exact
) -> None:
    """Ask for the area, or at the algebraic level from the area for the height."""
    shape = "triangle " + "".join(corners) if len(corners) == 3 else "".join(corners)
    if draft.level.is_algebraic:
        draft.give(given_text(["area", *corners], f"The area of {shape}", area))
        draft.ask_length(*foot, height)
    else:
        draft.give(given_length(*foot, height))
        draft.ask(f"Find the area of {shape}.", ["area", *corners], area)


def _triangle_area(draft: Draft) -> None:
    rng = draft.rng
    a, b, c, d = draft.names(4)
    base = rng.randint(20, 99)
    height = draft.steps(Fraction(45 * base, 100), Fraction(12 * base, 10))
    draft.require(base != height, "alike")
    foot = rng.uniform(0.25, 0.75) * base
    draft.set_key(base, height)
    draft.triangle(a, b, c, base, (foot, float(height)))
    draft.put(d, foot, 0)
    draft.shapes.append(("dashed", c, d))
    draft.right_angle(b, d, c)
    draft.give(given_text(["length", a, b], f"{a}{b}", base))
    _ask_area(draft, [a, b, c], (c, d), height, Exact.of(base * height / 2))


def _parallelogram_area(draft: Draft) -> None:
    rng = draft.rng
    a, b, c, d, e = draft.names(5)
    base = rng.randint(20, 99)
    height = draft.steps(Fraction(35 * base, 100), Fraction(9 * base, 10))
    lean = rng.uniform(0.2, 0.35) * base
    draft.set_key(base, height)
    draft.put(a, 0, 0)
    draft.put(b, base, 0)
    draft.put(c, base + lean, float(height))
    draft.put(d, lean, float(height))
    draft.put(e, lean, 0)
    draft.polygon([a, b, c, d])
    draft.shapes.append(("dashed", d, e))
    draft.right_angle(b, e, d)
    draft.say(f"{a}{b}{c}{d} is a parallelogram.")
    draft.give(given_length(c, d, base))
    _ask_area(draft, [a, b, c, d], (d, e), height, Exact.of(base * height))


def _isosceles_area(draft: Draft) -> None:
    rng = draft.rng
    a, b, c = draft.names(3)
    half = rng.randint(6, 60)
    side = rng.randint(math.ceil(1.16 * half), math.floor(2.2 * half))
    draft.require(side != 2 * half, "equilateral")
    height = Exact.sqrt(side * side - half * half)
    draft.key = (half, side)
    draft.triangle(a, b, c, 2 * half, apex_from_sides(2 * half, side, side))
    draft.ticks(1, a + c, b + c)
    draft.give_to_stay(given_length(a, c, side), given_length(a, b, 2 * half))
    draft.ask(f"Find the area of triangle {a}{b}{c}.", ["area", a, b, c], half * height)


def _right_triangle_area(draft: Draft) -> None:
    a, b, c = draft.names(3)
    asks_area = draft.rng.random() < 0.6
    x, y = leg_pair(draft, 60) if asks_area else triple(draft)[:2]
    hypotenuse = Exact.sqrt(x * x + y * y)
    draft.key = (x, y)
    draft.right_triangle(a, b, c, x, y)
    draft.give_to_stay(given_length(a, b, hypotenuse), given_length(b, c, y))
    if asks_area:
        area = Fraction(x * y, 2)
        draft.ask(f"Find the area of triangle {a}{b}{c}.", ["area", a, b, c], area)
    else:
        perimeter = hypotenuse + x + y
        draft.ask(f"Find the perimeter of triangle {a}{b}{c}.", ["perimeter", a, b, c], perimeter)


def arc_and_sector(draft: Draft) -> None:
    """Ask for an arc or a sector; algebra: back from the arc; chained: a segment of the circle."""
    rng = draft.rng
    a, b = draft.names(2)
    if draft.level.is_chained:
        radius, degrees = draft.steps(10, 99, parts=2), rng.choice((60, 90, 120))
    else:
        radius, degrees = Fraction(rng.randint(2, 90)), 5 * rng.randint(8, 34)
    draft.require(draft.level.is_chained or degrees != 90, "a quarter")
    draft.set_key(radius, degrees)
    turn = rng.uniform(0, 360)
    draft.put("O", 0, 0)
    draft.put(a, *polar((0, 0), float(radius), turn))
    draft.put(b, *polar((0, 0), float(radius), turn + degrees))
    share = Fraction(degrees, 360)
    arc, sector = 2 * share * radius * PI, share * radius * radius * PI
    angle = ["angle", a, "O", b]
    length = ["length", "O", a]
    arc_goal = ["times", math.pi / 180, angle, length]
    sector_goal = ["times", math.pi / 360, angle, length, length]
    if draft.level.is_chained:
        draft.shapes.append(("fill_sector", "O", a, b))
        draft.shapes.append(("clear_polygon", "O", a, b))
        draft.segments(a + b)
    draft.circle("O", float(radius))
    draft.segments("O" + a, "O" + b)
    draft.give_to_stay(given_length("O", a, radius))
    if draft.level.is_algebraic:
        draft.give(given_text(arc_goal, f"The length of minor arc {a}{b}", arc))
        draft.ask_angle(a, "O", b, degrees)
        return
    if degrees == 90:
        draft.right_angle(a, "O", b)
    else:
        draft.give(given_angle(a, "O", b, degrees))
    if draft.level.is_chained:
        triangle = radius * radius * _half_sine(degrees)
        goal = ["minus", sector_goal, ["area", "O", a, b]]
        draft.ask("Find the exact area of the shaded region.", goal, sector - triangle)
    elif rng.random() < 0.5:
        draft.ask(f"Find the exact length of minor arc {a}{b}.", arc_goal, arc)
    else:
        draft.ask(f"Find the exact area of sector {a}O{b}.", sector_goal, sector)


def _half_sine(degrees: int) -> Exact:
    return Exact.of(Fraction(1, 2)) if degrees == 90 else Exact.sqrt(3) * Fraction(1, 4)


def shaded_region(draft: Draft) -> None:
    """Ask for a ring's area; algebra: back from it; chained: a circle and a square."""
    if draft.level.is_chained:
        _circle_and_square(draft)
        return
    rng = draft.rng
    a, b = draft.names(2)
    width = rng.randint(4, 60)
    inner = rng.randint(math.ceil(width * 0.6), math.floor(width * 2.4))
    outer = inner + width
    draft.key = (inner, outer)
    turn = rng.uniform(0, 360)
    draft.put("O", 0, 0)
    draft.put(a, *polar((0, 0), inner, turn))
    draft.put(b, *polar((0, 0), outer, turn))
    draft.shapes += [("fill_circle", "O", outer, FILL), ("fill_circle", "O", inner, PAPER)]
    draft.circle("O", outer, dot=False)
    draft.circle("O", inner)
    draft.segments("O" + b)
    area = (outer * outer - inner * inner) * PI
    small: Measure = ["length", "O", a]
    large: Measure = ["length", "O", b]
    goal = ["times", math.pi, ["minus", ["times", large, large], ["times", small, small]]]
    draft.say("The two circles have the same center O.")
    draft.give(given_length("O", a, inner))
    if draft.level.is_algebraic:
        draft.give(given_text(goal, "The area of the shaded ring", area))
        draft.ask_length(a, b, width)
    else:
        draft.give(given_length(a, b, width))
        draft.ask("Find the exact area of the shaded region.", goal, area)


def _circle_and_square(draft: Draft) -> None:
    rng = draft.rng
    a, b, c, d = draft.names(4)
    half = draft.steps(2, 90, parts=2)
    inside = rng.random() < 0.5
    draft.set_key(half, int(inside))
    for name, x, y in ((a, -1, -1), (b, 1, -1), (c, 1, 1), (d, -1, 1)):
        draft.put(name, float(half * x), float(half * y))
    draft.put("O", 0, 0)
    square = ["area", a, b, c, d]
    side = ["length", a, b]
    if inside:
        draft.shapes += [("fill_polygon", a, b, c, d), ("fill_circle", "O", float(half), PAPER)]
        draft.circle("O", float(half))
        draft.polygon([a, b, c, d])
        draft.say(f"Circle O is inscribed in square {a}{b}{c}{d}.")
        draft.give(given_length(a, b, 2 * half))
        circle = ["times", math.pi / 4, side, side]
        draft.ask(
            "Find the exact area of the shaded region.",
            ["minus", square, circle],
            4 * half * half - half * half * PI,
        )
        return
    radius = half * Exact.sqrt(2)
    draft.shapes += [("fill_circle", "O", float(radius), FILL), ("clear_polygon", a, b, c, d)]
    draft.circle("O", float(radius))
    draft.polygon([a, b, c, d])
    draft.say(f"Square {a}{b}{c}{d} is inscribed in circle O.")
    draft.give(given_length(a, b, 2 * half))
    circle = ["times", math.pi / 2, side, side]
    draft.ask(
        "Find the exact area of the shaded region.",
        ["minus", circle, square],
        2 * half * half * PI - 4 * half * half,
    )
