"""Turn a level 3 problem into level 4: move givens and add distractors.

Distractors are true: a segment is lengthened by a stated amount, or a figure of angles gets an
unneeded length. The figure stays to scale.
"""

import math
from dataclasses import replace

from envkit_geo3k.draft import Draft, Shown, between, given_length
from envkit_geo3k.measure import angle_at, distance


def harden(draft: Draft) -> None:
    """Move one given from the figure to the text and add a distractor if one fits.

    A number that the answer needs stays in the figure, so the text alone never gives the answer. A
    problem whose only such number cannot move gets a distractor in the text instead.
    """
    shown = Shown.FIGURE if _move_a_given(draft) else Shown.TEXT
    if draft.is_upright:
        return
    if _has_lengths(draft):
        _lengthen(draft, shown)
    else:
        _add_length(draft, shown)


def _move_a_given(draft: Draft) -> bool:
    in_figure = [n for n, given in enumerate(draft.givens) if given.shown is Shown.FIGURE]
    label = draft.question.label if draft.question is not None else None
    needed = len(in_figure) + (label is not None and label.text.strip("x°") != "")
    movable = [n for n in in_figure if not draft.givens[n].stays]
    if needed < 2 or not movable:
        return False
    n = draft.rng.choice(movable)
    given = draft.givens[n]
    draft.givens[n] = given.moved_to_text()
    mark = ("angle", *given.at, 1)
    if mark in draft.shapes:
        draft.shapes.remove(mark)
    return True


def _has_lengths(draft: Draft) -> bool:
    measures = [str(given.measure) for given in draft.givens]
    if draft.question is not None:
        measures.append(str(draft.question.goal))
    return any("length" in text or "area" in text for text in measures)


def _drawn_segments(draft: Draft) -> list[tuple[str, str]]:
    named = [shape for shape in draft.shapes if shape[0] == "segment"]
    return [(a, b) for _, a, b in named if not {a, b} & draft.unnamed]


def _add_length(draft: Draft, shown: Shown) -> None:
    """Scale a figure of angles so that one of its segments has a whole length, and say so."""
    whole = [pair for pair in _drawn_segments(draft) if not _is_divided(draft, *pair)]
    a, b = draft.rng.choice(whole)
    length = draft.rng.randint(5, 60)
    factor = length / distance(draft.points[a], draft.points[b])
    draft.points = {name: (x * factor, y * factor) for name, (x, y) in draft.points.items()}
    draft.shapes = [
        (shape[0], shape[1], shape[2] * factor) if shape[0] == "circle" else shape
        for shape in draft.shapes
    ]
    draft.give(replace(given_length(a, b, length), shown=shown))


def _is_divided(draft: Draft, a: str, b: str) -> bool:
    """Whether a point lies within the segment, whose label could be read as that of a part."""
    start, end = draft.points[a], draft.points[b]
    others = [position for name, position in draft.points.items() if name not in (a, b)]
    return any(angle_at(start, other, end) > 179 for other in others)


def _lengthen(draft: Draft, shown: Shown) -> None:
    """Extend a segment beyond its end, in a free direction, by a whole length."""
    candidates = _drawn_segments(draft)
    draft.rng.shuffle(candidates)
    for pair in candidates:
        a, b = draft.rng.sample(pair, 2)
        start, end = draft.points[a], draft.points[b]
        extra = max(2, round(_diameter(draft) * draft.rng.uniform(0.13, 0.42)))
        tip = between(start, end, 1 + extra / distance(start, end))
        stated = [
            float(given.value) for given in draft.givens
        ]  # the radius, to a point of a circle
        if extra not in stated and _is_free(draft, b, tip):
            (name,) = draft.names(1)
            draft.put(name, *tip)
            draft.segments(b + name)
            draft.give(replace(given_length(b, name, extra), shown=shown))
            return


def _diameter(draft: Draft) -> float:
    points = list(draft.points.values())
    return max(math.dist(a, b) for a in points for b in points)


def _is_free(draft: Draft, end: str, tip: tuple[float, float]) -> bool:
    """Whether no other point lies near the ray from the end to the tip."""
    here = draft.points[end]
    others = [position for name, position in draft.points.items() if name != end]
    return all(angle_at(tip, here, other) > 25 for other in others)
