"""Parallelograms, rhombi and kites."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, between, given_angle, given_length, polar
from envkit_geo3k.exact import Exact
from envkit_geo3k.families.right_triangles import triple


def parallelogram(draft: Draft) -> None:
    """Ask for angles or halves of diagonals; chained: a diagonal splits the angle."""
    rng = draft.rng
    a, b, c, d, e = draft.names(5)
    corner = rng.choice((draft.steps(52, 80), draft.steps(100, 128)))
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
        draft.set_key(corner)
        draft.give(given_angle(d, a, b, corner))
        draft.ask_angle(a, b, c, 180 - corner)
    else:
        draft.put(e, *between((0, 0), draft.points[c], 0.5))
        draft.segments(a + c, b + d)
        _bisected_diagonal(draft, (a, b, c, d, e))


def _bisected_diagonal(draft: Draft, names: tuple[str, ...]) -> None:
    """Scale so that AC is a whole number; the diagonals bisect each other."""
    a, _, c, _, e = names
    half = draft.steps(4, 60)
    factor = float(half) / math.dist(draft.points[a], draft.points[e])
    draft.set_key(half)
    for name in names:
        x, y = draft.points[name]
        draft.put(name, x * factor, y * factor)
    draft.give(given_length(a, e, half))
    if draft.level.is_algebraic:
        draft.ask_length(e, c, half)
    else:
        draft.ask(f"Find {a}{c}.", ["length", a, c], 2 * half)


def _split_corner(draft: Draft, names: tuple[str, ...]) -> None:
    """Let the diagonal AC split the angle at A; alternate and consecutive angles follow."""
    rng = draft.rng
    a, b, c, d = names
    low, high = draft.steps(26, 58), draft.steps(26, 58)
    draft.require(low != high and low + high != 90, "a rhombus or a rectangle")
    draft.set_key(low, high)
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
    if draft.level.is_algebraic:
        x, y, _ = triple(draft)
    else:
        x, y = rng.randint(5, 90), rng.randint(5, 90)
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
    draft.give_to_stay(given_length(a, b, side), given_length(a, e, x))
    if rng.random() < 0.5:
        draft.ask(f"Find the area of {a}{b}{c}{d}.", ["area", a, b, c, d], 2 * x * y)
    else:
        draft.ask(f"Find {b}{d}.", ["length", b, d], 2 * y)


def kite(draft: Draft) -> None:
    """Use the equal angles of a kite; chained: half an angle in a right triangle."""
    rng = draft.rng
    a, b, c, d, e = draft.names(5)
    # Fifths: half of each angle is a tenth.
    top, bottom = draft.steps(62, 116, parts=5), draft.steps(40, 92, parts=5)
    side_angle = Fraction(360 - top - bottom, 2)
    draft.require(side_angle != 90 and top >= bottom + 8, "right angles at the sides, or a rhombus")
    draft.set_key(top, bottom)
    half = 5.0
    draft.put(a, 0, half / math.tan(math.radians(top) / 2))
    draft.put(c, 0, -half / math.tan(math.radians(bottom) / 2))
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
    # In the right triangles at E an angle at the diagonal BD comes from the one at A or at C.
    upper = rng.choice(((d, a, e, top / 2), (a, b, e, 90 - top / 2)))
    lower = rng.choice(((e, b, c, 90 - bottom / 2), (b, c, e, bottom / 2)))
    draft.give_to_stay(given_angle(*upper), given_angle(*lower))
    draft.ask(f"Find m∠{a}{d}{c}.", ["angle", a, d, c], side_angle)
