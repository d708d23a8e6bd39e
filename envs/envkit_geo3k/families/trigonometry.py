"""Trigonometric ratios as exact fractions, and the laws of sines and cosines to a tenth."""

import math
from fractions import Fraction

from envkit_geo3k.draft import Draft, apex, given_angle, given_length, given_text, polar
from envkit_geo3k.exact import Exact
from envkit_geo3k.families.right_triangles import primitive_triple, triple


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
