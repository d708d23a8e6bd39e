"""Proportions in triangles and trapezoids."""

from fractions import Fraction

from envkit_geo3k.draft import Draft, apex, apex_from_sides, between, given_length, given_text
from envkit_geo3k.exact import Exact


def side_splitter(draft: Draft) -> None:
    """Cut two sides in proportion by a parallel; chained: the parallel's own length."""
    rng = draft.rng
    a, b, c, d, e = draft.names(5)
    k, m = rng.randint(2, 9), rng.randint(2, 9)
    u, v = rng.randint(1, 4), rng.randint(1, 4)
    draft.require(k != m and u != v and 0.3 <= u / (u + v) <= 0.72, "symmetric or thin")
    upper, lower = (k * u, k * v), (m * u, m * v)  # AD, DB on one side; AE, EC on the other
    left, right = sum(upper), sum(lower)
    base = (u + v) * rng.randint(2, 9)
    draft.key = (k, m, u, v, base)
    tip = apex_from_sides(base, left, right)
    draft.put(b, 0, 0)
    draft.put(c, base, 0)
    draft.put(a, *tip)
    draft.put(d, *between(tip, (0, 0), u / (u + v)))
    draft.put(e, *between(tip, (base, 0), u / (u + v)))
    draft.polygon([a, b, c])
    draft.segments(d + e)
    draft.parallel(1, d + e, b + c)
    draft.say(f"{d}{e} is parallel to {b}{c}.")
    draft.give(given_length(a, d, upper[0]), given_length(d, b, upper[1]))
    if not draft.level.is_chained:
        draft.give(given_length(a, e, lower[0]))
        draft.ask_length(e, c, lower[1])
    elif rng.random() < 0.5:
        draft.give(given_length(b, c, base))
        draft.ask_length(d, e, base * u // (u + v))
    else:
        draft.give(given_length(d, e, base * u // (u + v)))
        draft.ask_length(b, c, base)


def angle_bisector(draft: Draft) -> None:
    """Cut a side in the ratio of the others by a bisector; chained: from the whole side."""
    rng = draft.rng
    a, b, c, d = draft.names(4)
    u, v = rng.randint(2, 7), rng.randint(2, 7)
    k, m = rng.randint(2, 6), rng.randint(1, 6)
    left, right = k * u, k * v
    near, far = m * u, m * v
    draft.require(u != v and m != k and left + right > near + far, "no triangle")
    draft.key = (u, v, k, m)
    base = near + far
    draft.put(b, 0, 0)
    draft.put(c, base, 0)
    draft.put(a, *apex_from_sides(base, left, right))
    draft.put(d, near, 0)
    draft.polygon([a, b, c])
    draft.segments(a + d)
    draft.angle_mark(b, a, d)
    draft.angle_mark(d, a, c)
    draft.say(f"{a}{d} bisects angle {b}{a}{c}.")
    draft.give(given_length(a, b, left), given_length(a, c, right))
    if draft.level.is_chained:
        draft.give(given_text(["length", b, c], f"{b}{c}", base))
        draft.ask_length(*rng.choice(((b, d, near), (d, c, far))))
    else:
        draft.give(given_length(b, d, near))
        draft.ask_length(d, c, far)


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
    base = rng.randint(8, 60)
    draft.key = (base,)
    tip = apex(base, rng.uniform(45, 75), rng.uniform(45, 75))
    draft.put(a, 0, 0)
    draft.put(b, base, 0)
    draft.put(c, *tip)
    draft.put(m, *between((0, 0), tip, 0.5))
    draft.put(n, *between((base, 0), tip, 0.5))
    draft.polygon([a, b, c])
    draft.segments(m + n)
    draft.ticks(1, a + m, m + c)
    draft.ticks(2, b + n, n + c)
    half = Exact.of(Fraction(base, 2))
    if rng.random() < 0.5:
        draft.give(given_length(m, n, half))
        draft.ask_length(a, b, base)
    else:
        draft.give(given_length(a, b, base))
        draft.ask_length(m, n, half)


def _trapezoid(draft: Draft, names: list[str]) -> tuple[int, int]:
    """Draw ABCD with its median MN; return the bases AB (long) and CD (short)."""
    rng = draft.rng
    a, b, c, d, m, n = names
    long, short = rng.randint(12, 48), rng.randint(5, 36)
    draft.require(long - short >= 4 and short >= 0.4 * long, "the bases are too unlike")
    height = rng.uniform(0.45, 0.65) * long
    shift = rng.uniform(0.2, 0.8) * (long - short)
    draft.key = (long, short)
    draft.put(a, 0, 0)
    draft.put(b, long, 0)
    draft.put(c, shift + short, height)
    draft.put(d, shift, height)
    draft.put(m, *between((0, 0), (shift, height), 0.5))
    draft.put(n, *between((long, 0), (shift + short, height), 0.5))
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
        (m, n, Exact.of(Fraction(long + short, 2))),
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
    lengths = [
        (a, b, Exact.of(long)),
        (c, d, Exact.of(short)),
        (p, n, Exact.of(Fraction(long, 2))),
        (m, p, Exact.of(Fraction(short, 2))),
    ]
    first = draft.rng.randint(0, 1)
    median = Exact.of(Fraction(long + short, 2))
    draft.give(given_text(["length", m, n], f"{m}{n}", median))
    draft.give(given_length(*lengths[first]))
    draft.ask_length(*lengths[3 - first])
