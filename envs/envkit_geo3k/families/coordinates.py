"""Coordinate geometry on a grid; the points' coordinates are read off the figure."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft
from envkit_geo3k.exact import Exact

_REACH = 8
"""Extent of the grid from the origin."""


def coordinates(draft: Draft) -> None:
    """Ask for distance, midpoint or slope; algebra: the other end; chained: area or median."""
    rng = draft.rng
    draft.is_upright = True
    a, b, c = draft.names(3)
    count = 3 if draft.level.is_chained else 2
    corners = [(rng.randint(-7, 7), rng.randint(-7, 7)) for _ in range(count)]
    draft.key = tuple(value for corner in corners for value in corner)
    draft.shapes.append(("axes", -_REACH, _REACH, -_REACH, _REACH))
    for name, (x, y) in zip((a, b, c), corners, strict=False):
        draft.require(0 not in (x, y), "a point on an axis")
        draft.put(name, x, y)
    for first, second in ((0, 1), (1, 2), (0, 2))[: 2 * count - 3]:
        (x, y), (u, v) = corners[first], corners[second]
        draft.require(abs(x - u) >= 2 and abs(y - v) >= 2, "too close or parallel to an axis")
    draft.say("Each square of the grid is one unit wide.")
    if draft.level.is_chained:
        _triangle(draft, (a, b, c), corners)
    else:
        draft.segments(a + b)
        draft.shapes += [("dot", a), ("dot", b)]
        _two_points(draft, (a, b), corners)


def _two_points(draft: Draft, names: tuple[str, str], corners: list[tuple[int, int]]) -> None:
    a, b = names
    (x, y), (u, v) = corners
    if draft.level.is_algebraic:
        # B is the midpoint of AE, so E = 2B - A.
        goals = tuple(["minus", ["times", 2, [axis, b]], [axis, a]] for axis in ("x", "y"))
        ends = [Exact.of(2 * u - x), Exact.of(2 * v - y)]
        (e,) = draft.names(1)
        prompt = f"{b} is the midpoint of {a}{e}. Find the coordinates of {e}."
        draft.ask_point(prompt, (goals[0], goals[1]), ends)
        return
    kind = draft.rng.choice(("distance", "midpoint", "slope"))
    if kind == "distance":
        distance = Exact.sqrt((x - u) ** 2 + (y - v) ** 2)
        draft.ask(f"Find {a}{b}.", ["length", a, b], distance)
    elif kind == "midpoint":
        goals = tuple(["over", ["plus", [axis, a], [axis, b]], 2] for axis in ("x", "y"))
        middle = [Exact.of(Fraction(x + u, 2)), Exact.of(Fraction(y + v, 2))]
        prompt = f"Find the coordinates of the midpoint of {a}{b}."
        draft.ask_point(prompt, (goals[0], goals[1]), middle)
    else:
        rise, run = (["minus", [axis, b], [axis, a]] for axis in ("y", "x"))
        draft.require(math.gcd(v - y, u - x) == 1, "a slope that many other points have")
        slope = Exact.of(Fraction(v - y, u - x))
        draft.ask(f"Find the slope of line {a}{b}.", ["over", rise, run], slope)


def _triangle(draft: Draft, names: tuple[str, ...], corners: list[tuple[int, int]]) -> None:
    a, b, c = names
    (x, y), (u, v), (s, t) = corners
    doubled = abs((u - x) * (t - y) - (s - x) * (v - y))
    draft.require(doubled >= 14, "a thin triangle")
    draft.require(doubled > 70 * draft.rng.random(), "one of many small triangles")
    draft.polygon([a, b, c])
    if draft.rng.random() < 0.5:
        area = Fraction(doubled, 2)
        draft.ask(f"Find the area of triangle {a}{b}{c}.", ["area", a, b, c], area)
        return
    (m,) = draft.names(1)  # the midpoint of BC; the median by its squares
    across = ["minus", ["over", ["plus", ["x", b], ["x", c]], 2], ["x", a]]
    up = ["minus", ["over", ["plus", ["y", b], ["y", c]], 2], ["y", a]]
    square = Fraction(u + s - 2 * x, 2) ** 2 + Fraction(v + t - 2 * y, 2) ** 2
    draft.require(square > 4, "a short median")
    goal = ["root", ["plus", ["times", across, across], ["times", up, up]]]
    draft.ask(f"{m} is the midpoint of {b}{c}. Find {a}{m}.", goal, Exact.sqrt(square))
