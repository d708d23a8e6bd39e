"""Parallel lines cut by a transversal."""

import math

from envkit_geo3k.draft import Draft, given_angle, polar


def parallel_lines(draft: Draft) -> None:
    """Ask for one of a supplementary pair; chained: the bend between two parallels."""
    if draft.level.is_chained:
        _bend(draft)
    else:
        _transversal(draft)


def _transversal(draft: Draft) -> None:
    rng = draft.rng
    a, b, c, d, e, f, g, h = draft.names(8)
    slope = rng.choice((draft.steps(42, 80), draft.steps(100, 138)))
    draft.set_key(slope)
    shift = 6 / math.tan(math.radians(slope))
    draft.put(g, 0, 0)
    draft.put(h, shift, 6)
    draft.put(a, min(0, shift) - 5.5, 0)
    draft.put(b, max(0, shift) + 5.5, 0)
    draft.put(c, min(0, shift) - 5.5, 6)
    draft.put(d, max(0, shift) + 5.5, 6)
    draft.put(e, *polar((0, 0), 4, slope + 180))
    draft.put(f, *polar((shift, 6), 4, slope))
    draft.segments(a + b, c + d, e + f)
    draft.parallel(1, a + g, c + h)
    # The angle at G above the line towards B is the slope.
    pairs = (
        ((b, g, h), (d, h, g), slope),  # co-interior
        ((a, g, h), (d, h, f), 180 - slope),  # the supplement of the corresponding angle
        ((b, g, e), (c, h, g), 180 - slope),  # beside the alternate angle
    )
    given, asked, degrees = rng.choice(pairs)
    actual = 180 - degrees
    if draft.level.is_algebraic and rng.random() < 0.5:  # equal angles, hidden in an expression
        equal = {(b, g, h): (d, h, f), (a, g, h): (c, h, f), (b, g, e): (d, h, g)}
        asked, actual = equal[given], degrees
    draft.say(f"{a}{b} is parallel to {c}{d}.")
    draft.give(given_angle(*given, degrees))
    draft.ask_angle(*asked, actual)


def _bend(draft: Draft) -> None:
    """Put a point between two parallels: its angle is the sum of those that its sides make."""
    rng = draft.rng
    a, b, c, d, p = draft.names(5)
    low, high = draft.steps(28, 62), draft.steps(28, 62)
    draft.require(low != high and low + high != 90, "a symmetric or a right bend")
    draft.set_key(low, high)
    up, down = rng.uniform(4, 6), rng.uniform(4, 6)
    bottom, top = up / math.tan(math.radians(low)), down / math.tan(math.radians(high))
    end = max(bottom, top) + 6
    draft.put(p, 0, 0)
    draft.put(a, bottom, -up)
    draft.put(b, end, -up)
    draft.put(c, top, down)
    draft.put(d, end, down)
    draft.segments(a + b, c + d, a + p, c + p)
    draft.parallel(1, a + b, c + d)
    draft.say(f"{a}{b} is parallel to {c}{d}.")
    # The angle at A between AB and AP is the supplement of the ray's slope.
    draft.give(given_angle(b, a, p, 180 - low))
    if rng.random() < 0.5:
        draft.give(given_angle(d, c, p, 180 - high))
        draft.ask_angle(a, p, c, low + high)
    else:
        draft.give(given_angle(a, p, c, low + high))
        draft.ask_angle(d, c, p, 180 - high)
