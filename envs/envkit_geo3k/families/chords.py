"""Lengths in circles: chords, secants, distances from the centre."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, between, given_length, polar
from envkit_geo3k.exact import Exact
from envkit_geo3k.families.right_triangles import triple
from envkit_geo3k.measure import Point


def circle_through(a: Point, b: Point, c: Point) -> tuple[Point, float]:
    """Return centre and radius of the circle through three points."""
    d = 2 * (a[0] * (b[1] - c[1]) + b[0] * (c[1] - a[1]) + c[0] * (a[1] - b[1]))
    sa, sb, sc = (x * x + y * y for x, y in (a, b, c))
    x = (sa * (b[1] - c[1]) + sb * (c[1] - a[1]) + sc * (a[1] - b[1])) / d
    y = (sa * (c[0] - b[0]) + sb * (a[0] - c[0]) + sc * (b[0] - a[0])) / d
    return (x, y), math.dist((x, y), a)


def _products(draft: Draft, last: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Return two factors of a number whose larger is within a ratio of the smaller.

    Raises:
        Unsuitable: There are none.
    """
    low, high = ratio
    found = [
        (p, last // p)
        for p in range(2, math.isqrt(last) + 1)
        if last % p == 0 and low * p <= last // p <= high * p
    ]
    draft.require(bool(found), "no such factors")
    return draft.rng.choice(found)


def _are_even(*parts: int) -> bool:
    return len(set(parts)) == 4 and 3.2 * min(parts) >= max(parts)


def intersecting_chords(draft: Draft) -> None:
    """Use AP * PB = CP * PD; chained: the whole chord CD."""
    rng = draft.rng
    a, b, c, d, p = draft.names(5)
    up, down = rng.randint(40, 900), rng.randint(60, 900)  # tenths: more numbers divide them
    product = up * down
    parts = [
        (left, product // left)
        for left in range(40, 900)
        if product % left == 0 and _are_even(left, product // left, up, down)
    ]
    draft.require(bool(parts), "no such chords")
    draft.key = (*rng.choice(parts), up, down)
    left, right, up, down = (Fraction(tenths, 10) for tenths in draft.key)
    turn = rng.randint(50, 130)
    draft.put(p, 0, 0)
    draft.put(a, -float(left), 0)
    draft.put(b, float(right), 0)
    draft.put(c, *polar((0, 0), float(up), turn))
    draft.put(d, *polar((0, 0), float(down), turn + 180))
    center, radius = circle_through(draft.points[a], draft.points[b], draft.points[c])
    draft.put("O", *center, named=False)
    draft.circle("O", radius, dot=False)
    draft.segments(a + b, c + d)
    draft.say(f"Chords {a}{b} and {c}{d} meet at {p}.")
    draft.give(given_length(a, p, left), given_length(p, b, right))
    draft.give_to_stay(given_length(c, p, up))
    if draft.level.is_chained:
        draft.ask(f"Find {c}{d}.", ["length", c, d], up + down)
    else:
        draft.ask_length(p, d, down)


def secants(draft: Draft) -> None:
    """Use PT^2 = PA * PB from outside; chained: a part of the secant, or two secants."""
    if draft.level.is_chained and draft.rng.random() < 0.5:
        _two_secants(draft)
    else:
        _tangent_and_secant(draft)


def _tangent_and_secant(draft: Draft) -> None:
    rng = draft.rng
    p, a, b, t = draft.names(4)
    if draft.level.is_algebraic:
        k, u, v = rng.randint(1, 4), rng.randint(2, 5), rng.randint(3, 8)
        near, far = k * u * u, k * v * v
    else:
        gap = rng.randint(6, 90)
        near = rng.randint(math.ceil(gap / 4), math.floor(gap / 0.7))
        far = near + gap
    draft.require(1.7 * near <= far <= 5 * near, "too near or too far")
    draft.key = (near, far)
    tangent = Exact.sqrt(near * far)
    # Any circle through A and B will do; T lies where the tangent has the right length.
    middle, half = (near + far) / 2, (far - near) / 2
    lift = half * rng.uniform(0.25, 0.8)
    radius, reach = math.hypot(half, lift), math.hypot(middle, lift)
    turn = math.degrees(math.atan2(lift, middle) + math.asin(radius / reach))
    draft.put(p, 0, 0)
    draft.put(a, near, 0)
    draft.put(b, far, 0)
    draft.put("O", middle, lift, named=False)
    draft.put(t, *polar((0, 0), float(tangent), turn))
    draft.circle("O", radius, dot=False)
    draft.segments(p + b, p + t)
    draft.say(f"{p}{t} is tangent to the circle at {t}.")
    draft.give(given_length(p, a, near))
    if draft.level.is_chained:
        draft.give(given_length(p, t, tangent))
        draft.ask_length(a, b, far - near)
    else:
        draft.give(given_length(a, b, far - near))
        draft.ask_length(p, t, tangent)


def _two_secants(draft: Draft) -> None:
    """Use PA * PB = PC * PD, with the outer parts and one inner part known."""
    rng = draft.rng
    p, a, b, c, d = draft.names(5)
    gap = rng.randint(60, 900)  # tenths: more numbers divide the product
    other_near = rng.randint(math.ceil(gap / 3.5), math.floor(gap / 0.6))
    other_far = other_near + gap
    near, far = _products(draft, other_near * other_far, (1.8, 4.5))
    draft.require(near != other_near and gap != far - near, "symmetric")
    draft.key = (near, far, other_near, other_far)
    near, far, other_near, other_far = (Fraction(tenths, 10) for tenths in draft.key)
    turn = rng.randint(26, 44)
    draft.put(p, 0, 0)
    draft.put(a, *polar((0, 0), float(near), turn))
    draft.put(b, *polar((0, 0), float(far), turn))
    draft.put(c, float(other_near), 0)
    draft.put(d, float(other_far), 0)
    center, radius = circle_through(draft.points[a], draft.points[b], draft.points[c])
    draft.require(radius <= 1.5 * far, "the circle is too wide")
    draft.put("O", *center, named=False)
    draft.circle("O", radius, dot=False)
    draft.segments(p + b, p + d)
    draft.give(given_length(p, a, near), given_length(a, b, far - near))
    draft.give(given_length(p, c, other_near))
    draft.ask_length(c, d, other_far - other_near)


def chord_distance(draft: Draft) -> None:
    """Use that the centre's perpendicular bisects a chord; chained: the whole chord, its height."""
    rng = draft.rng
    a, b, m, n = draft.names(4)
    if draft.level.is_algebraic or (draft.level == 1 and rng.random() < 0.3):
        gap, half, radius = triple(draft)
        exact_half = Exact.of(half)
    else:
        gap = rng.randint(4, 90)
        radius = rng.randint(math.ceil(gap / 0.85), math.floor(gap / 0.3))
        exact_half = Exact.sqrt(radius * radius - gap * gap)
    draft.require(0.3 <= gap / radius <= 0.85, "too near the centre or the edge")
    draft.key = (gap, radius)
    reach = float(exact_half)
    draft.put("O", 0, 0)
    draft.put(a, -reach, -gap)
    draft.put(b, reach, -gap)
    draft.put(m, 0, -gap)
    draft.circle("O", radius)
    draft.segments(a + b, "O" + m, "O" + b)
    draft.right_angle("O", m, b)
    if not draft.level.is_chained:
        lengths = [("O", b, Exact.of(radius)), ("O", m, Exact.of(gap)), (m, b, exact_half)]
        asked = lengths.pop(rng.randint(0, 2))
        draft.give(*(given_length(*length) for length in lengths))
        draft.ask_length(*asked)
        return
    draft.give(given_length("O", b, radius))
    if rng.random() < 0.5:
        draft.give(given_length("O", m, gap))
        draft.ask(f"Find {a}{b}.", ["length", a, b], 2 * exact_half)
        return
    draft.put(n, *between((0, 0), (0, -1), radius))
    draft.segments(m + n)
    draft.give_to_stay(given_length(m, b, exact_half))
    draft.ask_length(m, n, radius - gap)
