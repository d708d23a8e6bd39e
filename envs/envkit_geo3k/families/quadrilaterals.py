"""Parallelograms, rhombi and kites."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, between, given_angle, given_length, given_text, polar
from envkit_geo3k.exact import Exact
from envkit_geo3k.families.right_triangles import triple


def parallelogram(draft: Draft) -> None:
    """Ask for angles or halves of diagonals; chained: a diagonal splits the angle."""
    rng = draft.rng
    a, b, c, d, e = draft.names(5)
    corner = rng.choice((rng.randint(52, 80), rng.randint(100, 128)))
    long, short = rng.randint(14, 24), rng.randint(9, 14)
    draft.put(a, 0, 0)
    draft.put(b, long, 0)
    draft.put(d, *polar((0, 0), short, corner))
    draft.put(c, draft.points[d][0] + long, draft.points[d][1])
    draft.polygon([a, b, c, d])
    draft.say(f"{a}{b}{c}{d} is a parallelogram.")
    if draft.level.is_chained:
        _split_corner(draft, (a, b, c, d))
    elif rng.random() < 0.5:
        draft.key = (corner,)
        draft.give(given_angle(d, a, b, corner))
        draft.ask_angle(a, b, c, 180 - corner)
    else:
        draft.put(e, *between((0, 0), draft.points[c], 0.5))
        draft.segments(a + c, b + d)
        _bisected_diagonal(draft, (a, b, c, d, e))


def _bisected_diagonal(draft: Draft, names: tuple[str, ...]) -> None:
    """Scale so that half of AC is a whole number; the diagonals bisect each other."""
    a, _, c, _, e = names
    half = draft.rng.randint(4, 30)
    factor = half / math.dist(draft.points[a], draft.points[e])
    draft.key = (half,)
    for name in names:
        x, y = draft.points[name]
        draft.put(name, x * factor, y * factor)
    if draft.level.is_algebraic:
        draft.give(given_length(a, e, half))
        draft.ask_length(e, c, half)
    elif draft.rng.random() < 0.5:
        draft.give(given_length(a, e, half))
        draft.ask(f"Find {a}{c}.", ["length", a, c], 2 * half)
    else:
        draft.give(given_text(["length", a, c], f"{a}{c}", 2 * half))
        draft.ask_length(e, c, half)


def _split_corner(draft: Draft, names: tuple[str, ...]) -> None:
    """Let the diagonal AC split the angle at A; alternate and consecutive angles follow."""
    rng = draft.rng
    a, b, c, d = names
    low, high = rng.randint(26, 58), rng.randint(26, 58)
    draft.require(low != high and low + high != 90, "a rhombus or a rectangle")
    draft.key = (low, high)
    diagonal = 20.0
    side = diagonal * math.sin(math.radians(high)) / math.sin(math.radians(low + high))
    draft.put(c, *polar((0, 0), diagonal, low))
    draft.put(b, side, 0)
    draft.put(d, draft.points[c][0] - side, draft.points[c][1])
    draft.segments(a + c)
    draft.give(given_angle(b, a, c, low))
    if rng.random() < 0.5:
        draft.give(given_angle(c, a, d, high))
        draft.ask_angle(a, d, c, 180 - low - high)
    else:
        draft.give(given_angle(a, d, c, 180 - low - high))
        draft.ask_angle(b, c, a, high)


def rhombus(draft: Draft) -> None:
    """Use the right angle of the diagonals; chained: from side and diagonal to the area."""
    rng = draft.rng
    a, b, c, d, e = draft.names(5)
    if draft.level.is_algebraic or draft.level.is_chained:
        x, y, _ = triple(draft, largest=40)
    else:
        x, y = rng.randint(3, 16), rng.randint(3, 16)
    draft.require(x != y and 2.4 * min(x, y) >= max(x, y), "a square or thin")
    side = Exact.sqrt(x * x + y * y)
    draft.key = (x, y)
    for name, position in zip((a, b, c, d), ((-x, 0), (0, -y), (x, 0), (0, y)), strict=True):
        draft.put(name, *position)
    draft.put(e, 0, 0)
    draft.polygon([a, b, c, d])
    draft.segments(a + c, b + d)
    draft.say(f"{a}{b}{c}{d} is a rhombus.")
    if not draft.level.is_chained:
        known = [(a, e, Exact.of(x)), (e, d, Exact.of(y)), (c, d, side)]
        asked = known.pop(2 if rng.random() < 0.5 else 0)
        draft.give(*(given_length(*length) for length in known))
        draft.ask_length(*asked)
        return
    draft.give(given_length(a, b, side))
    if rng.random() < 0.5:
        draft.give(given_length(a, e, x))
    else:
        draft.give(given_text(["length", a, c], f"{a}{c}", 2 * x))
    if rng.random() < 0.5:
        draft.ask(f"Find the area of {a}{b}{c}{d}.", ["area", a, b, c, d], 2 * x * y)
    else:
        draft.ask(f"Find {b}{d}.", ["length", b, d], 2 * y)


def kite(draft: Draft) -> None:
    """Use the equal angles of a kite; chained: half an angle in a right triangle."""
    rng = draft.rng
    a, b, c, d, e = draft.names(5)
    top, bottom = 2 * rng.randint(32, 56), 2 * rng.randint(18, 31)
    side_angle = Exact.of(Fraction(360 - top - bottom, 2)).integer or 0
    draft.require(side_angle != 90, "right angles at the sides")
    draft.key = (top, bottom)
    half = 5.0
    draft.put(a, 0, half / math.tan(math.radians(top / 2)))
    draft.put(c, 0, -half / math.tan(math.radians(bottom / 2)))
    draft.put(b, half, 0)
    draft.put(d, -half, 0)
    draft.polygon([a, b, c, d])
    draft.ticks(1, a + b, a + d)
    draft.ticks(2, c + b, c + d)
    if not draft.level.is_chained:
        angles = [(d, a, b, top), (b, c, d, bottom), (a, b, c, side_angle)]
        rng.shuffle(angles)
        draft.give(given_angle(*angles[1]), given_angle(*angles[2]))
        draft.ask_angle(*angles[0])
        return
    draft.put(e, 0, 0)
    draft.segments(a + c, b + d)
    draft.right_angle(a, e, b)
    # From one half angle at A and the whole angle at C to an angle beside the diagonal BD.
    if rng.random() < 0.5:
        draft.give(given_angle(d, a, e, top // 2), given_angle(e, b, c, 90 - bottom // 2))
        draft.ask(f"Find m∠{a}{d}{c}.", ["angle", a, d, c], side_angle)
    else:
        draft.give(given_angle(a, b, e, 90 - top // 2))
        draft.give(given_text(["angle", a, d, c], f"m∠{a}{d}{c}", side_angle, "°"))
        draft.ask_angle(b, c, e, bottom // 2)
