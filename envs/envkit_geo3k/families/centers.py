"""Centroids and incentres."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, apex, between, given_angle, given_length
from envkit_geo3k.exact import Exact
from envkit_geo3k.families.right_triangles import leg_pair


def centroid(draft: Draft) -> None:
    """Use that the centroid cuts a median 2:1; chained: in a right triangle, from the legs."""
    if draft.level.is_chained:
        _right_centroid(draft)
        return
    rng = draft.rng
    a, b, c, d, e, g = draft.names(6)
    short = draft.steps(3, 45)
    draft.set_key(short)
    base = 10.0
    tip = apex(base, rng.uniform(48, 72), rng.uniform(48, 72))
    middle = (base / 2, 0.0)
    factor = float(3 * short) / math.dist(tip, middle)
    corners = [(0.0, 0.0), (base * factor, 0.0), (tip[0] * factor, tip[1] * factor)]
    for name, corner in zip((a, b, c), corners, strict=True):
        draft.put(name, *corner)
    draft.put(d, *between(corners[0], corners[1], 0.5))
    draft.put(e, *between(corners[1], corners[2], 0.5))
    draft.put(g, *between(corners[2], draft.points[d], 2 / 3))
    draft.polygon([a, b, c])
    draft.segments(c + d, a + e)
    draft.ticks(1, a + d, d + b)
    draft.ticks(2, b + e, e + c)
    draft.say(f"{g} is the centroid of triangle {a}{b}{c}.")
    parts = [(c, g, 2 * short), (g, d, short)]
    rng.shuffle(parts)
    draft.give(given_length(*parts[0]))
    if draft.level.is_algebraic or rng.random() < 0.6:
        draft.ask_length(*parts[1])
    else:
        draft.ask(f"Find {c}{d}.", ["length", c, d], 3 * short)


def _right_centroid(draft: Draft) -> None:
    """Use that the median to the hypotenuse is half of it, and the centroid two thirds along."""
    rng = draft.rng
    a, b, c, d, g = draft.names(5)
    x, y = leg_pair(draft, 80)
    hypotenuse = Exact.sqrt(x * x + y * y)
    draft.key = (x, y)
    draft.put(c, 0, 0)
    draft.put(a, x, 0)
    draft.put(b, 0, y)
    draft.put(d, x / 2, y / 2)
    draft.put(g, x / 3, y / 3)
    draft.polygon([a, b, c])
    draft.segments(c + d)
    draft.shapes.append(("dot", g))
    draft.right_angle(a, c, b)
    draft.ticks(1, a + d, d + b)
    draft.say(f"{g} is the centroid of triangle {a}{b}{c}.")
    draft.give(given_length(a, c, x), given_length(b, c, y))
    share = rng.choice((Fraction(1, 3), Fraction(1, 6)))
    ends = (c, g) if share == Fraction(1, 3) else (g, d)
    draft.ask_length(*ends, hypotenuse * share)


def incenter(draft: Draft) -> None:
    """Use that bisectors meet at the incentre; chained: the angle there, 90 plus half the third."""
    rng = draft.rng
    a, b, c, p = draft.names(4)
    lead = draft.steps(22, 58)  # the half angle that decides the answer
    second = draft.steps(16, 74 - math.ceil(lead))
    third = 90 - lead - second
    draft.require(len({lead, second, third}) == 3, "symmetric")
    draft.require(45 not in (lead, second, third), "a right triangle")
    half_a, half_b, half_c = lead, second, third
    if draft.level.is_chained:
        half_a, half_b, half_c = second, third, lead
    draft.require(half_a >= 38 or not draft.level.is_algebraic, "no room for an expression")
    draft.set_key(half_a, half_b)
    draft.triangle(a, b, c, 10, apex(10, 2 * half_a, 2 * half_b))
    draft.put(p, *apex(10, half_a, half_b))
    draft.segments(a + p, b + p, c + p)
    draft.say(f"{p} is the incenter of triangle {a}{b}{c}.")
    if not draft.level.is_chained:
        draft.give(given_angle(p, a, b, half_a))
        if draft.level.is_algebraic:
            draft.ask_angle(c, a, p, half_a)
        else:
            draft.ask(f"Find m∠{c}{a}{b}.", ["angle", c, a, b], 2 * half_a)
    elif rng.random() < 0.5:
        draft.give(given_angle(p, c, b, half_c))
        draft.ask_angle(a, p, b, 90 + half_c)
    else:
        draft.give(given_angle(p, a, b, half_a), given_angle(a, b, p, half_b))
        draft.ask(f"Find m∠{a}{c}{b}.", ["angle", a, c, b], 2 * half_c)
