"""Angles of triangles and polygons."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, apex, between, given_angle, polar


def triangle_angles(draft: Draft) -> None:
    """Use the angle sum or the exterior angle; chained: an angle split by a cevian."""
    rng = draft.rng
    a, b, c, d = draft.names(4)
    at_a, at_b = draft.steps(30, 95), draft.steps(30, 85)
    at_c = 180 - at_a - at_b
    draft.require(at_c >= 28 and 90 not in (at_a, at_b, at_c), "no plain acute or obtuse triangle")
    draft.set_key(at_a, at_b)
    top = apex(10, at_a, at_b)
    draft.triangle(a, b, c, 10, top)
    if draft.level.is_chained:
        _split_by_cevian(draft, (a, b, c, d), at_a, at_b)
    elif rng.random() < 0.5:
        draft.give(given_angle(b, a, c, at_a), given_angle(a, b, c, at_b))
        draft.ask_angle(a, c, b, at_c)
    else:
        draft.put(d, 15, 0)
        draft.segments(b + d)
        draft.give(given_angle(b, a, c, at_a), given_angle(a, c, b, at_c))
        draft.ask_angle(c, b, d, at_a + at_c)


def _split_by_cevian(draft: Draft, names: tuple[str, ...], at_a: Fraction, at_b: Fraction) -> None:
    """Put D on AB; of the angles at A, at B, ACD and DCB, give three and ask for the fourth."""
    a, b, c, d = names
    at_c = 180 - at_a - at_b
    left = draft.steps(26, 60)
    right = at_c - left
    draft.require(right >= 26 and right != left, "the cevian is too close to a side")
    foot = math.sin(math.radians(left)) / math.sin(math.radians(180 - at_a - left))
    side = math.dist(draft.points[a], draft.points[c])
    draft.put(d, side * foot, 0)
    draft.segments(c + d)
    draft.set_key(at_a, at_b, left)
    angles = [(b, a, c, at_a), (a, b, c, at_b), (a, c, d, left), (d, c, b, right)]
    draft.rng.shuffle(angles)
    draft.give(*(given_angle(*angle) for angle in angles[1:]))
    draft.ask_angle(*angles[0])


def isosceles(draft: Draft) -> None:
    """Use equal base angles; chained: an exterior angle, or two isosceles triangles."""
    rng = draft.rng
    a, b, c, d = draft.names(4)
    is_split = draft.level.is_chained and rng.random() < 0.4
    base = draft.steps(25, 52) if is_split else draft.steps(34, 74)
    vertex = 180 - 2 * base
    draft.require(len({base, vertex, 60, 90}) == 4, "equilateral or right")
    draft.set_key(base)
    draft.triangle(a, b, c, 10, apex(10, base, base))
    draft.ticks(1, a + c, b + c)
    if not draft.level.is_chained:
        if rng.random() < 0.5:
            draft.give(given_angle(a, c, b, vertex))
            draft.ask_angle(a, b, c, base)
        else:
            draft.give(given_angle(a, b, c, base))
            draft.ask_angle(a, c, b, vertex)
        return
    if not is_split:
        draft.put(d, 15.5, 0)
        draft.segments(b + d)
        draft.give(given_angle(a, c, b, vertex))
        draft.ask_angle(c, b, d, 180 - base)
        return
    # D on AB with AD = CD: the angle ACD equals the one at A, so BCD is what is left of C.
    side = math.dist(draft.points[a], draft.points[c])
    draft.put(d, side / 2 / math.cos(math.radians(base)), 0)
    draft.segments(c + d)
    draft.ticks(2, a + d, c + d)
    draft.give(given_angle(a, b, c, base))
    draft.ask_angle(d, c, b, 180 - 3 * base)


def polygon_angles(draft: Draft) -> None:
    """Use the angle sum of a convex polygon; chained: the exterior angle at the unknown one."""
    rng = draft.rng
    count = rng.choice((4, 5, 5, 6))
    names = draft.names(count + 1)
    mean = 180 * (count - 2) // count
    interior = [mean + draft.steps(-24, 24) for _ in range(count - 1)]
    interior.append(180 * (count - 2) - sum(interior, Fraction()))
    draft.require(all(55 <= angle <= 158 and angle != 90 for angle in interior), "not convex")
    draft.set_key(*interior)
    for name, corner in zip(names[:count], _convex(draft, interior), strict=True):
        draft.put(name, *corner)
    polygon, extra = names[:count], names[count]
    draft.polygon(polygon)
    for n in range(count - 1):
        before, here, after = polygon[n - 1], polygon[n], polygon[n + 1]
        draft.give(given_angle(before, here, after, interior[n]))
    before, last, after = polygon[-2], polygon[-1], polygon[0]
    if draft.level.is_chained:
        draft.put(extra, *between(draft.points[before], draft.points[last], 1.55))
        draft.segments(last + extra)
        draft.ask_angle(extra, last, after, 180 - interior[-1])
    else:
        draft.ask_angle(before, last, after, interior[-1])


def _convex(draft: Draft, interior: list[Fraction]) -> list[tuple[float, float]]:
    """Return corners of a polygon with these angles; the last two sides close it."""
    headings = [0.0]
    for angle in interior[1:]:
        headings.append(headings[-1] + 180 - float(angle))
    corners = [(0.0, 0.0)]
    for heading in headings[:-2]:
        corners.append(polar(corners[-1], draft.rng.uniform(7, 10), heading))
    u, v = polar((0, 0), 1, headings[-2]), polar((0, 0), 1, headings[-1])
    x, y = corners[-1]
    cross = u[0] * v[1] - u[1] * v[0]
    first = (-x * v[1] + y * v[0]) / cross
    second = (-u[0] * y + u[1] * x) / cross
    draft.require(5 <= first <= 16 and 5 <= second <= 16, "the sides do not close well")
    corners.append(polar(corners[-1], first, headings[-2]))
    return corners
