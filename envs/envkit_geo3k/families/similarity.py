"""Proportions in triangles and trapezoids."""

import math
from fractions import Fraction
from typing import Final

from envkit_geo3k.draft import (
    Draft,
    Unsuitable,
    apex,
    apex_from_sides,
    between,
    given_length,
)
from envkit_geo3k.exact import Exact

_TRIES: Final = 60
"""Triangle draws per answer, so no answer is rarer than others."""


def side_splitter(draft: Draft) -> None:
    """Cut two sides in proportion by a parallel; chained: the parallel's own length."""
    a, b, c, d, e = draft.names(5)
    asked, (u, v, k, m, n) = _proportion(draft)
    draft.key = (k, m, u, v, (u + v) * n)
    k, m, n = (Fraction(tenths, 10) for tenths in (k, m, n))
    upper, lower = (k * u, k * v), (m * u, m * v)  # AD, DB on one side; AE, EC on the other
    base = (u + v) * n
    tip = apex_from_sides(*map(float, (base, sum(upper), sum(lower))))
    draft.put(b, 0, 0)
    draft.put(c, float(base), 0)
    draft.put(a, *tip)
    draft.put(d, *between(tip, (0, 0), u / (u + v)))
    draft.put(e, *between(tip, (float(base), 0), u / (u + v)))
    draft.polygon([a, b, c])
    draft.segments(d + e)
    draft.parallel(1, d + e, b + c)
    draft.say(f"{d}{e} is parallel to {b}{c}.")
    draft.give(given_length(a, d, upper[0]), given_length(d, b, upper[1]))
    if not draft.level.is_chained:
        draft.give(given_length(a, e, lower[0]))
        draft.ask_length(e, c, lower[1])
    elif asked == "DE":
        draft.give(given_length(b, c, base))
        draft.ask_length(d, e, n * u)
    else:
        draft.give(given_length(d, e, n * u))
        draft.ask_length(b, c, base)


def _proportion(draft: Draft) -> tuple[str, tuple[int, int, int, int, int]]:
    """Return the asked quantity, and u, v, k, m, n: AD = ku, DB = kv, AE = mu, EC = mv, DE = nu.

    The lengths are in tenths. The asked length is drawn first, uniformly, then one of the ratios
    that fit it.
    """
    rng = draft.rng
    asked = "EC" if not draft.level.is_chained else rng.choice(("DE", "BC"))
    whole = rng.randint(60, 900) if asked != "BC" else rng.randint(120, 1200)
    ratios = [
        (u, v, whole // part)
        for u in range(1, 40)
        for v in range(max(1, 2 * u // 5), 7 * u // 3 + 1)
        if u != v and math.gcd(u, v) == 1
        if whole % (part := {"EC": v, "DE": u, "BC": u + v}[asked]) == 0
    ]
    draft.require(bool(ratios), "no such ratio")
    u, v, factor = rng.choice(ratios)
    for _ in range(_TRIES):
        k, other = (rng.randint(-(-factor // 4), 4 * factor) for _ in range(2))
        m, n = (factor, other) if asked == "EC" else (other, factor)
        if k != m and _are_sides(k, m, n):
            return asked, (u, v, k, m, n)
    raise Unsuitable("no such triangle")


def _are_sides(*sides: int) -> bool:
    """Whether the sides make a triangle that is not thin."""
    return max(sides) <= 0.93 * (sum(sides) - max(sides)) and 4 * min(sides) >= max(sides)


def angle_bisector(draft: Draft) -> None:
    """Cut a side in the ratio of the others by a bisector; chained: the side or the perimeter."""
    a, b, c, d = draft.names(4)
    draft.key = _bisected(draft)
    left, right, near, far = (Fraction(tenths, 10) for tenths in draft.key)
    base = near + far
    draft.put(b, 0, 0)
    draft.put(c, float(base), 0)
    draft.put(a, *apex_from_sides(*map(float, (base, left, right))))
    draft.put(d, float(near), 0)
    draft.polygon([a, b, c])
    draft.segments(a + d)
    draft.angle_mark(b, a, d)
    draft.angle_mark(d, a, c)
    draft.say(f"{a}{d} bisects angle {b}{a}{c}.")
    draft.give_to_stay(given_length(a, b, left), given_length(a, c, right))
    draft.give_to_stay(given_length(b, d, near))
    if not draft.level.is_chained:
        draft.ask_length(d, c, far)
    elif draft.rng.random() < 0.5:
        draft.ask(f"Find {b}{c}.", ["length", b, c], base)
    else:
        whole = left + right + base
        draft.ask(f"Find the perimeter of triangle {a}{b}{c}.", ["perimeter", a, b, c], whole)


def _bisected(draft: Draft) -> tuple[int, int, int, int]:
    """Return AB, AC, BD and DC in tenths; DC is drawn first, each as likely.

    Raises:
        Unsuitable: There is no such triangle.
    """
    rng = draft.rng
    far = rng.randint(60, 900)
    divisors = [v for v in range(2, far + 1) if far % v == 0]
    for _ in range(_TRIES):
        v = rng.choice(divisors)
        u, m = rng.randint(-(-v // 2), 2 * v), far // v
        k = rng.randint(1, max(1, 3000 // (u + v)))
        if u != v and k != m and _are_sides(k * u, k * v, m * (u + v)):
            return k * u, k * v, m * u, far
    raise Unsuitable("no such triangle")


def midsegment(draft: Draft) -> None:
    """Ask for midsegments or bases; chained: the diagonal cuts the median."""
    if draft.level.is_chained:
        _median_and_diagonal(draft)
    elif draft.rng.random() < 0.5:
        _triangle_midsegment(draft)
    else:
        _trapezoid_median(draft)


def _triangle_midsegment(draft: Draft) -> None:
    rng = draft.rng
    a, b, c, m, n = draft.names(5)
    base = draft.steps(8, 120, parts=5)  # fifths: half of it is a tenth
    draft.set_key(base)
    tip = apex(float(base), rng.uniform(45, 75), rng.uniform(45, 75))
    draft.triangle(a, b, c, float(base), tip)
    draft.put(m, *between((0, 0), tip, 0.5))
    draft.put(n, *between((float(base), 0), tip, 0.5))
    draft.segments(m + n)
    draft.ticks(1, a + m, m + c)
    draft.ticks(2, b + n, n + c)
    half = Exact.of(base / 2)
    if rng.random() < 0.5:
        draft.give(given_length(m, n, half))
        draft.ask_length(a, b, base)
    else:
        draft.give(given_length(a, b, base))
        draft.ask_length(m, n, half)


def _trapezoid(draft: Draft, names: list[str]) -> tuple[Fraction, Fraction]:
    """Draw ABCD with its median MN; return the bases AB (long) and CD (short)."""
    rng = draft.rng
    a, b, c, d, m, n = names
    long = draft.steps(16, 110, parts=5)  # fifths: half of a sum is a tenth
    short = draft.steps(long * 2 / 5, long * 17 / 20, parts=5)
    height = rng.uniform(0.45, 0.65) * float(long)
    shift = rng.uniform(0.2, 0.8) * float(long - short)
    draft.set_key(long, short)
    draft.put(a, 0, 0)
    draft.put(b, float(long), 0)
    draft.put(c, shift + float(short), height)
    draft.put(d, shift, height)
    draft.put(m, *between((0, 0), (shift, height), 0.5))
    draft.put(n, *between((float(long), 0), (shift + float(short), height), 0.5))
    draft.polygon([a, b, c, d])
    draft.segments(m + n)
    draft.ticks(1, a + m, m + d)
    draft.ticks(2, b + n, n + c)
    draft.say(f"{a}{b}{c}{d} is a trapezoid with bases {a}{b} and {c}{d}.")
    return long, short


def _trapezoid_median(draft: Draft) -> None:
    names = draft.names(6)
    a, b, c, d, m, n = names
    long, short = _trapezoid(draft, names)
    lengths = [
        (a, b, Exact.of(long)),
        (c, d, Exact.of(short)),
        (m, n, Exact.of((long + short) / 2)),
    ]
    draft.rng.shuffle(lengths)
    draft.give(given_length(*lengths[1]), given_length(*lengths[2]))
    draft.ask_length(*lengths[0])


def _median_and_diagonal(draft: Draft) -> None:
    """Cut the median MN by the diagonal AC at P: MP is half of CD, PN half of AB."""
    *names, p = draft.names(7)
    a, b, c, d, m, n = names
    long, short = _trapezoid(draft, names)
    draft.put(p, *between(draft.points[a], draft.points[c], 0.5))
    draft.segments(a + c)
    if draft.rng.random() < 0.5:
        draft.give_to_stay(given_length(a, b, long), given_length(m, p, short / 2))
    else:
        draft.give_to_stay(given_length(c, d, short), given_length(p, n, long / 2))
    draft.ask(f"Find {m}{n}.", ["length", m, n], (long + short) / 2)
