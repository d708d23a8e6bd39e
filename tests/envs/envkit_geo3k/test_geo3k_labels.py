"""Labels can be read one way only: each is where a reader looks for it, and nowhere else."""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.matrix import share

from envkit_geo3k import FAMILIES, ProceduralSource
from envkit_geo3k.drawing import mark_radius, paint
from envkit_geo3k.figure import Figure, Frame, Label
from envkit_geo3k.labels import LabelRequest, place_labels, text_box
from envkit_geo3k.source import LEVELS

KINDS = [(family, level) for family in FAMILIES for level in LEVELS]
Point = tuple[float, float]


@functools.cache
def _problems(family: str, level: int, count: int) -> list[tuple[dict[str, Any], Figure]]:
    source = ProceduralSource(families=[family], level=level, seed=12)
    problems = [source.task(index) for index in range(count)]
    return [(problem, Figure.from_json(problem["figure"])) for problem in problems]


def _box(label: Label, size: int) -> tuple[float, float, float, float]:
    left, top, right, bottom = text_box(label.text, size)
    return label.x + left, label.y + top, label.x + right, label.y + bottom


def _gap(box: tuple[float, float, float, float], x: float, y: float) -> float:
    return math.hypot(max(box[0] - x, 0, x - box[2]), max(box[1] - y, 0, y - box[3]))


def _angle(vertex: Point, a: Point, b: Point) -> float:
    turn = math.atan2(b[1] - vertex[1], b[0] - vertex[0])
    turn -= math.atan2(a[1] - vertex[1], a[0] - vertex[0])
    return abs(math.degrees((turn + math.pi) % (2 * math.pi) - math.pi))


def _angle_labels(problem: dict[str, Any], figure: Figure) -> Iterator[tuple[Label, list[str]]]:
    """Yield the labels of angles with the points of their angle."""
    marked = [list(shape[1:4]) for shape in figure.shapes if shape[0] == "angle"]
    told: dict[str, list[str]] = {
        given["statement"].rpartition(" = ")[2]: given["measure"][1:]
        for given in problem["givens"]
        if given["measure"][0] == "angle" and given["shown"] == "figure"
    }
    asked = [at for at in marked if at not in told.values()]
    texts = [label.text for label in figure.labels]
    for label in figure.labels:
        if label.text in told and texts.count(label.text) == 1:
            yield label, told[label.text]
        elif "x" in label.text and label.text.endswith("°") and len(asked) == 1:
            yield label, asked[0]


def _check_angle_labels(problem: dict[str, Any], figure: Figure) -> None:
    frame = Frame.of(figure)
    for label, (a, vertex, b) in _angle_labels(problem, figure):
        corner, first, second = (frame.pixel(name) for name in (vertex, a, b))
        left, top, right, bottom = _box(label, figure.size)
        for edge in itertools.product((left, right), (top, bottom)):
            within = _angle(corner, first, edge) + _angle(corner, edge, second)
            assert within == pytest.approx(_angle(corner, first, second), abs=0.5), (label, problem)
        beyond_arc = _gap((left, top, right, bottom), *corner) - mark_radius(frame, a, vertex, b)
        assert beyond_arc < 30 * frame.unit, (label, problem)


def _check_names(problem: dict[str, Any], figure: Figure) -> None:
    frame = Frame.of(figure)
    segments = [shape[1:3] for shape in figure.shapes if shape[0] in ("segment", "dashed")]
    for label in figure.labels:
        if label.text not in figure.points:
            continue
        here, spot = frame.pixel(label.text), (label.x, label.y)
        away = math.dist(here, spot)
        for name in figure.points.keys() - {label.text}:
            assert math.dist(frame.pixel(name), spot) > away, (label, name, problem["id"])
        for ends in segments:
            a, b = (frame.pixel(name) for name in ends)
            passes = _distance(here, a, b) < 2
            assert passes or not _meet(here, spot, a, b), (label, ends, problem["id"])


def _distance(spot: Point, a: Point, b: Point) -> float:
    share = ((spot[0] - a[0]) * (b[0] - a[0]) + (spot[1] - a[1]) * (b[1] - a[1])) / (
        math.dist(a, b) ** 2
    )
    share = min(1.0, max(0.0, share))
    return math.dist(spot, (a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])))


def _meet(a: Point, b: Point, c: Point, d: Point) -> bool:
    def turn(p: Point, q: Point, r: Point) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0


def _check_marks(problem: dict[str, Any], figure: Figure) -> None:
    frame = Frame.of(figure)
    boxes = [(label, _box(label, figure.size)) for label in figure.labels]
    for kind, *operands in figure.shapes:
        if kind in ("ticks", "arrows"):
            (x, y), (u, v) = frame.pixel(operands[0]), frame.pixel(operands[1])
            for label, box in boxes:
                gap = _gap(box, (x + u) / 2, (y + v) / 2)
                assert gap > 10 * frame.unit, (label, operands, problem["id"])
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        across, down = max(b[0] - a[2], a[0] - b[2]), max(b[1] - a[3], a[1] - b[3])
        assert max(across, down) >= 5, (one, other, problem["id"])


def _check_lengths(problem: dict[str, Any], figure: Figure) -> None:
    frame = Frame.of(figure)
    segments = [shape[1:3] for shape in figure.shapes if shape[0] in ("segment", "dashed")]
    texts = [label.text for label in figure.labels]
    for given in problem["givens"]:
        kind, *names = given["measure"]
        text = given["statement"].rpartition(" = ")[2]
        if kind != "length" or given["shown"] != "figure" or texts.count(text) > 1:
            continue
        left, top, right, bottom = _box(figure.labels[texts.index(text)], figure.size)
        middle = (left + right) / 2, (top + bottom) / 2
        ends = [frame.pixel(name) for name in names]
        own = _distance(middle, *ends)
        for a, b in ((frame.pixel(one), frame.pixel(other)) for one, other in segments):
            is_same_line = all(_distance(end, a, b) < 2 for end in ends)
            assert is_same_line or _distance(middle, a, b) > own - 1, (text, problem["id"])


@pytest.mark.parametrize(("family", "level"), share(KINDS, of=4))
def test_labels_belong_to_one_thing_only(family: str, level: int) -> None:
    for problem, figure in _problems(family, level, 1):
        _check_angle_labels(problem, figure)
        _check_names(problem, figure)
        _check_marks(problem, figure)
        _check_lengths(problem, figure)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "level"), KINDS)
def test_labels_of_many_seeds_belong_to_one_thing_only(family: str, level: int) -> None:
    for problem, figure in _problems(family, level, 60):
        _check_angle_labels(problem, figure)
        _check_names(problem, figure)
        _check_marks(problem, figure)
        _check_lengths(problem, figure)


def _figure(points: dict[str, Point], *shapes: tuple[Any, ...]) -> Figure:
    return Figure(size=384, points=points, shapes=shapes)


TRIANGLE: dict[str, Point] = {"A": (0, 0), "B": (10, 0), "C": (3, 7)}
SIDES = (("segment", "A", "B"), ("segment", "B", "C"), ("segment", "C", "A"))


def test_length_near_a_tick_slides_along_its_segment() -> None:
    plain, ticked = (_figure(TRIANGLE, *SIDES, *more) for more in ((), (("ticks", "A", "B", 1),)))
    request = LabelRequest(text="27", at=("A", "B"))
    free, moved = (
        next(iter(place_labels(figure, paint(figure), [request]) or ()))
        for figure in (plain, ticked)
    )
    middle = (Frame.of(plain).pixel("A")[0] + Frame.of(plain).pixel("B")[0]) / 2
    assert abs(free.x - middle) < 2
    assert abs(moved.x - middle) > 15


def test_angle_too_narrow_for_its_label_is_refused() -> None:
    figure = _figure(
        {"A": (0, 0), "B": (10, 0), "C": (10, 0.9)}, *SIDES, ("angle", "B", "A", "C", 1)
    )
    request = LabelRequest(text="(4x - 100.5)°", at=("B", "A", "C"))
    assert place_labels(figure, paint(figure), [request]) is None


def test_length_between_two_segments_is_refused() -> None:
    points: dict[str, Point] = {"A": (0, 0), "B": (10, 0), "C": (10, 0.9), "D": (10, -0.9)}
    figure = _figure(points, *(("segment", "A", end) for end in "BCD"))
    assert place_labels(figure, paint(figure), [LabelRequest(text="8", at=("A", "B"))]) is None
