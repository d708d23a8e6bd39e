"""Right triangles: Pythagoras, special angles, the altitude to the hypotenuse."""

import math
from typing import Final

from envkit_geo3k.draft import Draft, given_angle, given_length
from envkit_geo3k.exact import Exact


def _triples(longest: int) -> list[tuple[int, int, int]]:
    """Return the Pythagorean triples that are not thin, legs in either order."""
    found: set[tuple[int, int, int]] = set()
    for m in range(2, math.isqrt(longest) + 1):
        for n in range(1, m):
            x, y, z = m * m - n * n, 2 * m * n, m * m + n * n
            if 3 * min(x, y) >= max(x, y):
                found.update((k * x, k * y, k * z) for k in range(1, longest // z + 1))
    return sorted(found | {(y, x, z) for x, y, z in found})


_TRIPLES: Final = _triples(250)
_PRIMITIVES: Final = [sides for sides in _triples(1000) if math.gcd(sides[0], sides[1]) == 1]


def triple(draft: Draft) -> tuple[int, int, int]:
    """Return a Pythagorean triple up to 250, legs in either order, uniformly."""
    return draft.rng.choice(_TRIPLES)


def primitive_triple(draft: Draft) -> tuple[int, int, int]:
    """Return a random primitive triple; its ratios distinguish it from others."""
    return draft.rng.choice(_PRIMITIVES)


def leg_pair(draft: Draft, longest: int) -> tuple[int, int]:
    """Return the legs of a right triangle that is not thin; the first leg is uniform."""
    first = draft.rng.randint(4, longest)
    second = draft.rng.randint(max(4, -(-first // 3)), min(longest, 3 * first))
    draft.require(first != second, "isosceles")
    return first, second


def pythagoras(draft: Draft) -> None:
    """Ask for the third side; chained: two right triangles on a common side."""
    rng = draft.rng
    a, b, c, d = draft.names(4)
    x, y = leg_pair(draft, 90)
    if draft.level.is_algebraic or rng.random() < 0.3:
        x, y, _ = triple(draft)
    hypotenuse = Exact.sqrt(x * x + y * y)
    draft.key = (x, y)
    draft.right_triangle(a, b, c, x, y)
    if draft.level.is_chained:
        _second_right_triangle(draft, (a, b, c, d), (x, y))
    elif rng.random() < 0.5:
        draft.give(given_length(a, c, x), given_length(b, c, y))
        draft.ask_length(a, b, hypotenuse)
    else:
        draft.give(given_length(a, b, hypotenuse), given_length(b, c, y))
        draft.ask_length(a, c, x)


def _second_right_triangle(draft: Draft, names: tuple[str, ...], legs: tuple[int, int]) -> None:
    """Build ABD on the hypotenuse AB, right at B; ask for AD or for BD."""
    a, b, c, d = names
    x, y = legs
    hypotenuse = math.hypot(x, y)
    z = draft.rng.randint(math.ceil(0.35 * hypotenuse), math.floor(1.6 * hypotenuse))
    draft.key = (x, y, z)
    # Away from C: the direction of AB turned by a right angle.
    draft.put(d, y / hypotenuse * z, y + x / hypotenuse * z)
    draft.segments(b + d, a + d)
    draft.right_angle(a, b, d)
    draft.give(given_length(a, c, x), given_length(b, c, y))
    square = x * x + y * y + z * z
    if draft.rng.random() < 0.6:
        draft.give(given_length(b, d, z))
        draft.ask_length(a, d, Exact.sqrt(square))
    else:
        draft.give(given_length(a, d, Exact.sqrt(square)))
        draft.ask_length(b, d, z)


def special_right_triangle(draft: Draft) -> None:
    """Use 45-45-90 and 30-60-90; chained: both around a common altitude."""
    if draft.level.is_chained:
        _two_special(draft)
    elif draft.rng.random() < 0.5:
        _half_square(draft)
    else:
        _half_equilateral(draft)


def _half_square(draft: Draft) -> None:
    rng = draft.rng
    a, b, c = draft.names(3)
    leg = rng.randint(3, 99)
    draft.key = (45, leg)
    draft.right_triangle(a, b, c, leg, leg)
    draft.give(given_angle(c, a, b, 45))
    if draft.level.is_algebraic or rng.random() < 0.5:
        draft.give(given_length(a, b, leg * Exact.sqrt(2)))
        draft.ask_length(b, c, leg)
    else:
        draft.give(given_length(a, c, leg))
        draft.ask_length(a, b, leg * Exact.sqrt(2))


def _half_equilateral(draft: Draft) -> None:
    rng = draft.rng
    a, b, c = draft.names(3)
    short = rng.randint(3, 80)
    long, hypotenuse = short * Exact.sqrt(3), 2 * short
    draft.key = (30, short)
    draft.right_triangle(a, b, c, float(long), short)
    draft.give(rng.choice((given_angle(c, a, b, 30), given_angle(a, b, c, 60))))
    sides = [(a, c, long), (b, c, Exact.of(short)), (a, b, Exact.of(hypotenuse))]
    rng.shuffle(sides)
    if draft.level.is_algebraic:
        sides.sort(key=lambda side: side[2].integer is None)
    draft.give(given_length(*sides[1]))
    draft.ask_length(*sides[0])


def _two_special(draft: Draft) -> None:
    """Draw the altitude CD of a triangle with 45 degrees at A and 30 or 60 degrees at B."""
    rng = draft.rng
    a, b, c, d = draft.names(4)
    height = rng.randint(3, 80)
    other = rng.choice((30, 60))
    foot = height * Exact.sqrt(3) if other == 30 else height * Exact.sqrt(3) / 3
    draft.key = (other, height)
    draft.put(d, 0, 0)
    draft.put(a, -height, 0)
    draft.put(b, float(foot), 0)
    draft.put(c, 0, height)
    draft.polygon([a, b, c])
    draft.segments(c + d)
    draft.right_angle(b, d, c)
    draft.give(given_angle(b, a, c, 45), given_angle(a, b, c, other))
    hypotenuse = foot * 2 / Exact.sqrt(3) if other == 30 else foot * 2
    known = rng.choice(((a, c, height * Exact.sqrt(2)), (a, d, Exact.of(height))))
    draft.give_to_stay(given_length(*known))
    draft.ask_length(*rng.choice(((b, c, hypotenuse), (d, b, foot))))


def altitude_to_hypotenuse(draft: Draft) -> None:
    """Use h^2 = pq and leg^2 = p(p + q); chained: a leg and its projection give the altitude."""
    rng = draft.rng
    a, b, c, d = draft.names(4)
    if draft.level.is_algebraic:
        k, u, v = rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 4)
        p, q = k * u * u, k * v * v
    else:
        q = rng.randint(2, 80)
        p = rng.randint(max(2, -(-2 * q // 9)), min(80, 9 * q // 2))
    draft.require(p != q and max(p, q) <= 4.5 * min(p, q), "symmetric or thin")
    draft.key = (p, q)
    height = Exact.sqrt(p * q)
    draft.put(a, 0, 0)
    draft.put(d, p, 0)
    draft.put(b, p + q, 0)
    draft.put(c, p, float(height))
    draft.polygon([a, b, c])
    draft.segments(c + d)
    draft.right_angle(a, c, b)
    draft.right_angle(b, d, c)
    draft.give(given_length(a, d, p))
    leg = Exact.sqrt(p * (p + q))
    if draft.level.is_chained:
        draft.give(given_length(a, c, leg))
        draft.ask_length(*rng.choice(((c, d, height), (d, b, Exact.of(q)))))
    elif draft.level.is_algebraic or rng.random() < 0.5:
        draft.give(given_length(d, b, q))
        draft.ask_length(c, d, height)
    else:
        draft.give(given_length(d, b, q))
        draft.ask_length(a, c, leg)
