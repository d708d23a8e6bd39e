"""Angles in circles: inscribed and central angles, cyclic quadrilaterals, tangents."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, given_angle, given_length, polar
from envkit_geo3k.exact import Exact
from envkit_geo3k.families.right_triangles import leg_pair, triple


def inscribed_angle(draft: Draft) -> None:
    """Ask for half the central angle; chained: with isosceles triangles of radii, or a diameter."""
    rng = draft.rng
    a, b, c = draft.names(3)
    o = "O"
    half = draft.steps(32, 76)
    draft.set_key(half)
    draft.put(o, 0, 0)
    draft.circle(o, 5)
    if draft.level.is_chained:
        if rng.random() < 0.5:
            _radii(draft, (a, b, c), half)
        else:
            _diameter(draft, (a, b, c), half)
        return
    draft.put(a, *polar((0, 0), 5, -90 - half))
    draft.put(b, *polar((0, 0), 5, -90 + half))
    draft.put(c, *polar((0, 0), 5, 90 + rng.randint(-28, 28)))
    draft.segments(a + c, b + c, a + o, b + o)
    draft.say(f"{a}, {b} and {c} lie on circle {o}.")
    angles = [(a, o, b, 2 * half), (a, c, b, half)]
    rng.shuffle(angles)
    draft.give(given_angle(*angles[0]))
    draft.ask_angle(*angles[1])


def _radii(draft: Draft, names: tuple[str, ...], half: Fraction) -> None:
    """Let OC split the inscribed angle ACB into two base angles of isosceles triangles."""
    a, b, c = names
    left = draft.steps(24, 46)
    right = half - left
    draft.require(right >= 24 and left != right, "C is in a poor position")
    draft.set_key(half, left)
    draft.put(c, *polar((0, 0), 5, 90))
    draft.put(a, *polar((0, 0), 5, 90 + 180 - 2 * left))
    draft.put(b, *polar((0, 0), 5, 90 - 180 + 2 * right))
    draft.segments(a + c, b + c, a + "O", b + "O", c + "O")
    draft.say(f"{a}, {b} and {c} lie on circle O.")
    angles = [("O", a, c, left), (c, b, "O", right), (a, "O", b, 2 * half)]
    draft.rng.shuffle(angles)
    draft.give(given_angle(*angles[0]), given_angle(*angles[1]))
    draft.ask_angle(*angles[2])


def _diameter(draft: Draft, names: tuple[str, ...], degrees: Fraction) -> None:
    """Make AB a diameter, so the angle at C is right; OC makes isosceles triangles."""
    a, b, c = names
    draft.require(degrees <= 62, "thin")
    if draft.rng.random() < 0.5:
        degrees = 90 - degrees
    draft.require(abs(degrees - 45) >= 2, "symmetric")
    draft.put(a, -5, 0)
    draft.put(b, 5, 0)
    draft.put(c, *polar((0, 0), 5, 2 * degrees))
    draft.segments(a + b, a + c, b + c)
    draft.say(f"{a}{b} is a diameter of circle O.")
    if draft.rng.random() < 0.5:
        draft.segments(c + "O")
        draft.give(given_angle("O", a, c, degrees))
        draft.ask_angle("O", c, b, 90 - degrees)
    else:
        draft.give(given_angle(a, b, c, 90 - degrees))
        draft.ask_angle(b, a, c, degrees)


def cyclic_quadrilateral(draft: Draft) -> None:
    """Use that opposite angles are supplementary; chained: with angles on the same arc."""
    rng = draft.rng
    a, b, c, d = draft.names(4)
    at_a = draft.steps(56, 124)
    near, far = 2 * at_a, 360 - 2 * at_a  # each is two arcs of 50 to 130 degrees
    # Fifths: an inscribed angle is half of its arc.
    second = draft.steps(max(50, near - 130), min(130, near - 50), parts=5)
    first = draft.steps(max(50, far - 130), min(130, far - 50), parts=5)
    arcs = [first, second, near - second, far - first]
    draft.require(len(set(arcs)) == 4, "symmetric")
    at_b = (arcs[2] + arcs[3]) / 2
    draft.require(90 not in (at_a, at_b), "a right angle")
    draft.set_key(*arcs)
    turn = 0.0
    draft.put("O", 0, 0, named=False)
    draft.circle("O", 5, dot=False)
    for name, arc in zip((a, b, c, d), arcs, strict=True):  # arc: from this corner to the next
        draft.put(name, *polar((0, 0), 5, turn))
        turn += float(arc)
    draft.polygon([a, b, c, d])
    draft.say(f"{a}{b}{c}{d} is inscribed in the circle.")
    if not draft.level.is_chained:
        opposite = [(d, a, b, at_a), (b, c, d, 180 - at_a)]
        rng.shuffle(opposite)
        draft.give(given_angle(*opposite[0]))
        if rng.random() < 0.3:
            draft.give(given_angle(a, b, c, at_b))
        draft.ask_angle(*opposite[1])
        return
    draft.segments(a + c)
    low, high = arcs[1] / 2, arcs[2] / 2  # BAC stands on arc BC, CAD on arc CD
    if rng.random() < 0.5:
        draft.give(given_angle(b, a, c, low), given_angle(c, a, d, high))
        draft.ask_angle(b, c, d, 180 - low - high)
    else:
        draft.give(given_angle(c, a, d, high), given_angle(b, c, d, 180 - low - high))
        draft.ask_angle(b, a, c, low)


def tangents(draft: Draft) -> None:
    """Use the right angle at a tangent; chained: two tangents and an inscribed angle."""
    rng = draft.rng
    p, s, t, q = draft.names(4)
    draft.put("O", 0, 0)
    if draft.level.is_chained:
        _two_tangents(draft, (p, s, t, q))
        return
    asks_whole = not draft.level.is_algebraic and rng.random() < 0.5
    radius, tangent = leg_pair(draft, 80) if asks_whole else triple(draft)[:2]
    draft.require(0.45 <= radius / tangent <= 1.3, "too near or too far")
    draft.key = (radius, tangent)
    whole = Exact.sqrt(radius * radius + tangent * tangent)
    draft.put(p, float(whole), 0)
    draft.put(t, *polar((0, 0), radius, math.degrees(math.atan2(tangent, radius))))
    draft.circle("O", radius)
    draft.segments("O" + t, t + p, "O" + p)
    draft.say(f"{p}{t} is tangent to circle O at {t}.")
    draft.give(given_length("O", t, radius))
    if asks_whole:
        draft.give(given_length(p, t, tangent))
        draft.ask_length("O", p, whole, labelled=False)
        return
    # Only the part of OP outside the circle has a label: the whole crosses the circle.
    draft.put(q, radius, 0)
    draft.give(given_length(q, p, whole - radius))
    draft.ask_length(p, t, tangent)


def _two_tangents(draft: Draft, names: tuple[str, ...]) -> None:
    """Draw tangents PS and PT: SPT and SOT are supplementary; SQT is half of SOT."""
    rng = draft.rng
    p, s, t, q = names
    inscribed = draft.steps(33, 72)
    outside = 180 - 2 * inscribed
    draft.set_key(inscribed)
    draft.put(p, 5 / math.sin(math.radians(outside / 2)), 0)
    draft.put(s, *polar((0, 0), 5, inscribed))
    draft.put(t, *polar((0, 0), 5, -inscribed))
    draft.put(q, *polar((0, 0), 5, 180 + rng.randint(-25, 25)))
    draft.circle("O", 5)
    draft.segments(p + s, p + t, q + s, q + t)
    draft.say(f"{p}{s} and {p}{t} are tangent to circle O.")
    angles = [(s, p, t, outside), (s, q, t, inscribed)]
    rng.shuffle(angles)
    draft.give(given_angle(*angles[0]))
    draft.ask_angle(*angles[1])
