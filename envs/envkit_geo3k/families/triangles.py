"""Angles of triangles and polygons, centres of triangles, trigonometry."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, apex, between, given_angle, given_length, given_text, polar
from envkit_geo3k.exact import Exact
from envkit_geo3k.families.right_triangles import leg_pair, primitive_triple, triple


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


def trig_ratio(draft: Draft) -> None:
    """Ask for a ratio of two sides; algebra: a side from it; chained: the third side first."""
    rng = draft.rng
    a, b, c = draft.names(3)
    x, y, hypotenuse = triple(draft) if draft.level.is_algebraic else primitive_triple(draft)
    if draft.level.is_chained:  # no other length in the figure may reveal which ratio it is
        scale = rng.randint(1, 1000 // hypotenuse)
        x, y, hypotenuse = scale * x, scale * y, scale * hypotenuse
    draft.key = (x, y)
    draft.right_triangle(a, b, c, x, y)
    sides = {"adjacent": (a, c, x), "opposite": (b, c, y), "hypotenuse": (a, b, hypotenuse)}
    ratios = {
        "sin": ("opposite", "hypotenuse", "adjacent"),
        "cos": ("adjacent", "hypotenuse", "opposite"),
        "tan": ("opposite", "adjacent", "hypotenuse"),
    }
    name = rng.choice(sorted(ratios))
    top, bottom, third = (sides[side] for side in ratios[name])
    value = Exact.of(Fraction(top[2], bottom[2]))
    goal = ["over", ["length", *top[:2]], ["length", *bottom[:2]]]
    if draft.level.is_algebraic:
        draft.give(given_text(goal, f"{name} {a}", value), given_length(*bottom))
        draft.ask_length(*top)
    elif draft.level.is_chained:
        draft.give_to_stay(given_length(*third), given_length(*rng.choice((top, bottom))))
        draft.ask(f"Find {name} {a} as a fraction.", goal, value)
    else:
        draft.give(given_length(*top), given_length(*bottom))
        draft.ask(f"Find {name} {a} as a fraction.", goal, value)


def sine_and_cosine_laws(draft: Draft) -> None:
    """Ask for a side by the law of sines or cosines; chained: then the perimeter."""
    if draft.level.is_algebraic or (draft.level.is_chained and draft.rng.random() < 0.6):
        _two_sides(draft)
    else:
        _two_angles(draft)


def _two_angles(draft: Draft) -> None:
    """Give two angles and a side: the law of sines; chained: the third angle comes first."""
    rng = draft.rng
    a, b, c = draft.names(3)
    at_a, at_b = rng.randint(36, 82), rng.randint(36, 82)
    at_c = 180 - at_a - at_b
    draft.require(at_c >= 30 and 90 not in (at_a, at_b, at_c), "thin or right")
    base = rng.randint(6, 40)
    draft.key = (at_a, at_b, base)
    draft.triangle(a, b, c, base, apex(base, at_a, at_b))
    draft.give(given_length(a, b, base), given_angle(b, a, c, at_a))
    if draft.level.is_chained:
        draft.give(given_angle(a, b, c, at_b))
    else:
        draft.give(given_angle(a, c, b, at_c))
    side = math.dist(draft.points[b], draft.points[c])
    draft.ask_rounded(f"Find {b}{c}.", ["length", b, c], side)


def _two_sides(draft: Draft) -> None:
    """Give two sides and the angle between: the law of cosines; chained: then the perimeter."""
    rng = draft.rng
    a, b, c = draft.names(3)
    at_a = rng.choice((rng.randint(38, 80), rng.randint(100, 130)))
    left, right = rng.randint(6, 30), rng.randint(6, 30)
    draft.require(2 * min(left, right) >= max(left, right) and left != right, "thin")
    draft.key = (at_a, left, right)
    draft.triangle(a, b, c, left, polar((0, 0), right, at_a))
    draft.give(given_length(a, b, left), given_length(a, c, right), given_angle(b, a, c, at_a))
    opposite = math.dist(draft.points[b], draft.points[c])
    if draft.level.is_chained:
        prompt = f"Find the perimeter of triangle {a}{b}{c}."
        draft.ask_rounded(prompt, ["perimeter", a, b, c], left + right + opposite)
    else:
        draft.ask_rounded(f"Find {b}{c}.", ["length", b, c], opposite)
