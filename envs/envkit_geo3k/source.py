"""Generated problems: an endless task source whose rows are functions of (seed, index).

Training and test problems never share their numbers: a hash of the family and its numbers decides
the split, so the same triangle is in the same split at every level and with any letters.

`harden` turns a level 3 problem into level 4: it moves a given and adds a distractor. Distractors
are true: a segment is lengthened by a stated amount, or a figure of angles gets an unneeded length.
The figure stays to scale.
"""

import contextlib
import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.seeds import checked_seed
from envkit.tasks import Task
from envkit_geo3k.draft import (
    Draft,
    Given,
    Level,
    Question,
    Shown,
    Unsuitable,
    between,
    given_length,
)
from envkit_geo3k.drawing import finish, paint
from envkit_geo3k.families import FAMILIES
from envkit_geo3k.figure import MAX_SIZE, MIN_SIZE, Figure, Frame
from envkit_geo3k.labels import LabelRequest, place_labels
from envkit_geo3k.measure import angle_at, distance

Split = Literal["train", "test"]

VERSION: Final = "geo3k-v0"
"""Part of every hash: a new version draws different problems."""
LEVELS: Final = (1, 2, 3, 4)
TEST_SHARE: Final = 1 / 8
_MAX_ATTEMPTS: Final = 3000
_POSITIONS: Final = 4
_MIN_GAP_PIXELS: Final = 26
"""Minimum distance of two points, at the reference size."""


class ProceduralSource:
    """An endless source of generated geometry problems."""

    size: int | None = None
    """None: the source is endless."""

    def __init__(
        self,
        *,
        split: str = "train",
        level: int | None = None,
        families: Sequence[str] | None = None,
        image_size: int = 384,
        seed: int = 0,
    ) -> None:
        """Choose the problems to draw from.

        Args:
            split: "train" or "test".
            level: 1 to 4; None mixes all.
            families: Names from `FAMILIES`; None means all.
            image_size: Side of the square figures in pixels.
            seed: Determines the sequence within the split.

        Raises:
            ConfigurationError: A value is out of range.
            UnknownNameError: A family does not exist.
        """
        ranges.one_of("split", split, ("train", "test"))
        ranges.one_of("level", level, (*LEVELS, None))
        ranges.within(MIN_SIZE, MAX_SIZE, image_size=image_size)
        self._split = split
        self._levels = LEVELS if level is None else (level,)
        self._families = ranges.some_of("geometry family", families, FAMILIES)
        self._image_size = image_size
        self._seed = checked_seed(seed)

    def task(self, index: int) -> Task:
        """Return the problem at this index as JSON data.

        Raises:
            ConfigurationError: The figure size leaves no room for a problem of this kind.
        """
        draws = random.Random(_digest(VERSION, self._seed, index, self._split))
        family = draws.choice(self._families)
        level = draws.choice(self._levels)
        identity = (VERSION, self._seed, index, self._split, family, level)
        for attempt in range(_MAX_ATTEMPTS):
            draft = Draft(random.Random(_digest(*identity, attempt)), level)
            try:
                FAMILIES[family](draft)
                if split_of(family, draft.key) != self._split:
                    continue
                problem = _finish(draft, self._image_size)
            except Unsuitable:
                continue
            return {
                "id": f"{VERSION}/{self._split}/{self._seed}/{index}",
                "source": "generated",
                "split": self._split,
                "seed": self._seed,
                "index": index,
                "family": family,
                "level": level,
                **problem,
            }
        raise ConfigurationError(
            f"no {family} problem of level {level} fits in {self._image_size} pixels after "
            f"{_MAX_ATTEMPTS} draws; choose a larger image_size"
        )


def split_of(family: str, key: Sequence[int]) -> Split:
    """Return the split to which the numbers of a problem belong."""
    return (
        "test"
        if _digest(VERSION, "split", family, list(key)) % 1000 < 1000 * TEST_SHARE
        else "train"
    )


def _digest(*parts: Any) -> int:  # noqa: ANN401  # any JSON data
    text = json.dumps(parts, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _finish(draft: Draft, image_size: int) -> dict[str, Any]:
    """Convert a family's draft to the problem fields of a task row.

    Raises:
        Unsuitable: The problem gives its answer away, or its figure is cluttered.
    """
    if draft.level == Level(4):
        harden(draft)
    question = draft.question
    if question is None:
        raise Unsuitable("no question was asked")
    _check_numbers(draft.givens, question)
    figure = _placed(draft, image_size)
    return {
        "question": _question_text(draft, question),
        "answer": question.answer,
        "key": list(draft.key),
        "givens": [
            {
                "measure": given.measure,
                "value": float(given.value),
                "statement": given.statement,
                "shown": str(given.shown),
            }
            for given in draft.givens
        ],
        "goal": question.goal,
        "values": list(question.values),
        "figure": figure.to_json(),
    }


def _placed(draft: Draft, image_size: int) -> Figure:
    """Return the labelled figure, in the first of a few orientations with room for the labels.

    Without retries, answers with long labels would be rarer.

    Raises:
        Unsuitable: No orientation has room.
    """
    points, shapes = draft.points, draft.shapes
    for _ in range(_POSITIONS - 1):
        _turn(draft)
        with contextlib.suppress(Unsuitable):
            return _with_labels(draft, _figure(draft, image_size))
        draft.points, draft.shapes = points, shapes
    _turn(draft)
    return _with_labels(draft, _figure(draft, image_size))


def _check_numbers(givens: Sequence[Given], question: Question) -> None:
    """Reject a problem that states a quantity twice, or states its answer."""
    stated = [json.dumps(_canonical(given)) for given in givens]
    if len(set(stated)) != len(stated):
        raise Unsuitable("a quantity is given twice")
    if question.label is not None and question.label.at in [given.at for given in givens]:
        raise Unsuitable("the unknown is given")
    printed = [float(given.value) for given in givens]
    if any(math.isclose(a, b, abs_tol=1e-9) for a in printed for b in question.values):
        raise Unsuitable("the answer is printed")


def _canonical(given: Given) -> Any:  # noqa: ANN401  # a measure is nested JSON data
    measure = given.measure
    if isinstance(measure, list) and measure[0] in ("length", "angle"):
        ends = measure[1:] if measure[1] < measure[-1] else measure[:0:-1]
        return [measure[0], *ends]
    return measure


def _turn(draft: Draft) -> None:
    """Turn and mirror the figure at random, and round its coordinates."""
    if not draft.is_upright:
        angle = draft.rng.uniform(0, 2 * math.pi)
        if draft.rng.random() < 0.4:  # many textbook figures are level
            angle = draft.rng.choice((0.0, math.pi / 2, math.pi, 3 * math.pi / 2))
        cosine, sine = math.cos(angle), math.sin(angle)
        mirror = draft.rng.choice((1, -1))
        draft.points = {
            name: (x * cosine - mirror * y * sine, x * sine + mirror * y * cosine)
            for name, (x, y) in draft.points.items()
        }
        if mirror == -1:
            draft.shapes = [
                (shape[0], shape[1], shape[3], shape[2])
                if shape[0] in ("arc", "fill_sector")
                else shape
                for shape in draft.shapes
            ]
    # Nine digits are far below a pixel and hide differences between math libraries.
    draft.points = {
        name: (round(x, 9) + 0.0, round(y, 9) + 0.0) for name, (x, y) in draft.points.items()
    }
    draft.shapes = [
        tuple(round(item, 9) if isinstance(item, float) else item for item in shape)
        for shape in draft.shapes
    ]


def _figure(draft: Draft, image_size: int) -> Figure:
    figure = Figure(size=image_size, points=draft.points, shapes=tuple(draft.shapes))
    frame = Frame.of(figure)
    pixels = [frame.pixel(name) for name in draft.points]
    for n, first in enumerate(pixels):
        for second in pixels[:n]:
            if math.dist(first, second) < _MIN_GAP_PIXELS * frame.unit:
                raise Unsuitable("two points are too close")
    return figure


def _with_labels(draft: Draft, figure: Figure) -> Figure:
    """Place all labels.

    Raises:
        Unsuitable: One does not fit.
    """
    requests = [
        LabelRequest(text=given.text, at=given.at)
        for given in draft.givens
        if given.shown is Shown.FIGURE
    ]
    if draft.question is not None and draft.question.label is not None:
        requests.append(draft.question.label)
    requests += [
        LabelRequest(text=name, at=(name,)) for name in draft.points if name not in draft.unnamed
    ]
    painted = paint(figure)
    labels = place_labels(figure, painted, requests)
    if labels is None:
        raise Unsuitable("a label does not fit")
    figure = replace(figure, labels=labels)
    finish(figure, painted)
    return figure


def _question_text(draft: Draft, question: Question) -> str:
    stated = [given.statement for given in draft.givens if given.shown is Shown.TEXT]
    named = [statement for statement in stated if not statement.startswith("The ")]
    sentences = [*draft.facts, *(f"{s}." for s in stated if s not in named)]
    if named:
        sentences.append(_enumerate(named) + ".")
    return " ".join([*sentences, question.prompt])


def _enumerate(phrases: Sequence[str]) -> str:
    if len(phrases) == 1:
        return phrases[0]
    return ", ".join(phrases[:-1]) + " and " + phrases[-1]


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
