"""Put labels where they cover neither ink nor each other.

Each label has candidate positions in order of preference and uses the first that is free and
unambiguous: an angle's label within its sides, a name next to its own point, a length next to its
own segment, none cut off by a line, next to a mark or next to another label. A figure whose labels
do not all fit is rejected, and the caller draws another.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from envkit.errors import ContractError
from envkit_geo3k.drawing import font, mark_radius
from envkit_geo3k.figure import Figure, Frame, Label, Shape
from envkit_geo3k.measure import Point

_INK_BELOW: Final = 190
_PADDING: Final = 2
_GAP: Final = 4
"""Gap between two labels, and between a label and a mark that could read as a digit."""
_SLIDES: Final = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74)
_SWINGS: Final = tuple(math.radians(turn) for turn in (0, 20, -20, 40, -40, 60, -60, 85, -85))


Box = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest:
    """Text for one, two or three points: a vertex, a segment or an angle."""

    text: str
    at: tuple[str, ...]
    """One point: its name. Two: a segment. Three: an angle, its vertex in the middle."""


def place_labels(
    figure: Figure, painted: PilImage.Image, requests: Iterable[LabelRequest]
) -> tuple[Label, ...] | None:
    """Return the labels with their positions; None if one does not fit.

    Args:
        figure: The figure without labels.
        painted: Its shapes as pixels.
        requests: What to write. Labels with the least freedom are placed first.
    """
    layout = _Layout(figure, painted)
    ordered = sorted(requests, key=lambda request: (-len(request.at), -len(request.text)))
    labels: list[Label] = []
    for request in ordered:
        label = layout.place(request)
        if label is None:
            return None
        labels.append(label)
    return tuple(labels)


def text_box(text: str, size: int) -> Box:
    """Return left, top, right and bottom of a text about its centre, in pixels."""
    left, top, right, bottom = font(size).getbbox(text, anchor="mm")
    return math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)


class _Layout:
    def __init__(self, figure: Figure, painted: PilImage.Image) -> None:
        self._size = figure.size
        self._frame = Frame.of(figure)
        self._shapes = figure.shapes
        self._points = figure.points
        self._center = _mean([self._frame.pixel(name) for name in figure.points])
        self._ink: NDArray[np.bool_] = np.asarray(painted) < _INK_BELOW
        self._lines = [
            (self._frame.position(*a), self._frame.position(*b)) for a, b in _lines(figure)
        ]
        self._circles = [
            (self._frame.pixel(operands[0]), _radius(self._frame, kind, operands))
            for kind, *operands in figure.shapes
            if kind in ("circle", "arc")
        ]
        self._taken = [box for shape in figure.shapes for box in _mark_boxes(self._frame, *shape)]

    def place(self, request: LabelRequest) -> Label | None:
        box = text_box(request.text, self._size)
        width, height = box[2] - box[0], box[3] - box[1]
        for spot in self._candidates(request.at, width, height):
            x, y = round(spot[0]), round(spot[1])
            taken = (x + box[0], y + box[1], x + box[2], y + box[3])
            if self._is_free(taken) and self._is_clear(request.at, spot, taken):
                self._taken.append(taken)
                return Label(request.text, x, y)
        return None

    def _candidates(self, at: tuple[str, ...], width: int, height: int) -> Iterator[Point]:
        match at:
            case (name,):
                return self._around_point(name, width, height)
            case (start, end):
                return self._beside_segment(start, end, width, height)
            case (first, vertex, second):
                return self._inside_angle(first, vertex, second, width, height)
            case _:
                raise ContractError(f"a label belongs to 1, 2 or 3 points, got {at!r}")

    def _is_free(self, box: Box) -> bool:
        """Return whether a box is on the canvas, covers no ink, and is not near a mark or label."""
        left, top, right, bottom = _grown(box, _PADDING)
        if left < 0 or top < 0 or right > self._size or bottom > self._size:
            return False
        for a, b, c, d in (_grown(taken, _PADDING + _GAP) for taken in self._taken):
            if left < c and a < right and top < d and b < bottom:
                return False
        return not self._ink[top:bottom, left:right].any()

    def _is_clear(self, at: tuple[str, ...], spot: Point, box: Box) -> bool:
        """Return whether a reader would assign a label at a spot only to its own points."""
        match at:
            case (name,):
                here = self._frame.pixel(name)
                others = (self._frame.pixel(other) for other in self._points if other != name)
                away = math.dist(spot, here)
                return all(math.dist(spot, other) > 1.2 * away for other in others) and (
                    not self._is_cut_off(here, spot)
                )
            case (start, end):
                return self._is_nearest((start, end), spot) and not self._is_in_a_corner(spot)
            case (first, vertex, second):
                corner, a, b = (self._frame.pixel(name) for name in (vertex, first, second))
                reach = max(math.dist(corner, a), math.dist(corner, b))
                arc = mark_radius(self._frame, first, vertex, second)
                return (
                    math.dist(corner, spot) < reach
                    and _gap(corner, box) < arc + 29 * self._frame.unit
                    and all(_is_between(corner, a, b, edge) for edge in _edges(box))
                    and not self._is_cut_off(corner, spot)
                )
            case _:
                return True

    def _is_cut_off(self, here: Point, spot: Point) -> bool:
        """Whether a line or a circle that misses the point lies between it and a spot."""
        for center, radius in self._circles:
            inside, before = math.dist(center, spot) - radius, math.dist(center, here) - radius
            if abs(before) > 2 and inside * before < 0:
                return True
        return any(
            _segment_distance(here, *line) > 2 and _cross_each_other(here, spot, *line)
            for line in self._lines
        )

    def _is_in_a_corner(self, spot: Point) -> bool:
        """Return whether a reader would look there for the label of a marked angle."""
        for kind, *operands in self._shapes:
            if kind == "angle":
                corner, a, b = (self._frame.pixel(operands[n]) for n in (1, 0, 2))
                arc = mark_radius(self._frame, *operands[:3])
                near = math.dist(corner, spot) < arc + 40 * self._frame.unit
                if near and _is_between(corner, a, b, spot):
                    return True
        return False

    def _around_point(self, name: str, width: int, height: int) -> Iterator[Point]:
        """Yield positions, first in the widest gap between the lines that meet at the point."""
        x, y = self._frame.pixel(name)
        heading = _widest_gap(self._headings(name), (x, y), self._center)
        for reach in (2.0, 5.0, 9.0, 14.0):
            for swing in (*_SWINGS, math.pi):
                turn = heading + swing
                extent = _support(turn, width, height) + (4 + reach) * self._frame.unit
                yield x + extent * math.cos(turn), y + extent * math.sin(turn)

    def _headings(self, name: str) -> list[float]:
        """Return the directions, in radians, in which ink leaves the point."""
        here = self._frame.pixel(name)
        found: list[float] = []
        for kind, *operands in self._shapes:
            if kind in ("segment", "dashed") and name in operands:
                other = self._frame.pixel(operands[1] if operands[0] == name else operands[0])
                found.append(math.atan2(other[1] - here[1], other[0] - here[0]))
            elif kind in ("circle", "arc") and operands[0] != name:
                center = self._frame.pixel(operands[0])
                radius = _radius(self._frame, kind, operands)
                if abs(math.dist(center, here) - radius) < 1.5:
                    outward = math.atan2(here[1] - center[1], here[0] - center[0])
                    found += [outward + 1.7, outward - 1.7]
        return found

    def _beside_segment(self, a: str, b: str, width: int, height: int) -> Iterator[Point]:
        """Yield positions, first outside the middle of the segment."""
        start, end = self._frame.pixel(a), self._frame.pixel(b)
        normal = math.atan2(end[0] - start[0], -(end[1] - start[1]))
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        outward = (middle[0] - self._center[0]) * math.cos(normal)
        outward += (middle[1] - self._center[1]) * math.sin(normal)
        if outward < 0:
            normal += math.pi
        extent = _support(normal, width, height)
        for slide in _SLIDES:
            x = start[0] + (end[0] - start[0]) * slide
            y = start[1] + (end[1] - start[1]) * slide
            for reach in (5.0, 8.0):
                for side in (1, -1):
                    push = side * (extent + reach * self._frame.unit)
                    yield x + push * math.cos(normal), y + push * math.sin(normal)

    def _is_nearest(self, ends: tuple[str, str], spot: Point) -> bool:
        """Whether a segment's label would be nearer to it than to any other segment."""
        start, end = (self._frame.pixel(name) for name in ends)
        limit = _segment_distance(spot, start, end) * 1.6
        for kind, *operands in self._shapes:
            if kind not in ("segment", "dashed"):
                continue
            first, second = (self._frame.pixel(name) for name in operands)
            along = _line_distance(first, start, end) < 2 and _line_distance(second, start, end) < 2
            if not along and _segment_distance(spot, first, second) < limit:
                return False
        return True

    def _inside_angle(
        self, a: str, vertex: str, b: str, width: int, height: int
    ) -> Iterator[Point]:
        """Yield positions outwards along the bisector, from just beyond the arc."""
        x, y = self._frame.pixel(vertex)
        first, second = (math.atan2(q[1] - y, q[0] - x) for q in map(self._frame.pixel, (a, b)))
        sweep = (second - first) % (2 * math.pi)
        if sweep > math.pi:
            first, sweep = second, 2 * math.pi - sweep
        arc = mark_radius(self._frame, a, vertex, b)
        for reach in (2.0, 6.0, 11.0, 17.0, 24.0):
            for share in (0.5, 0.4, 0.6, 0.3, 0.7):
                turn = first + sweep * share
                extent = arc + _support(turn, width, height) + (2 + reach) * self._frame.unit
                yield x + extent * math.cos(turn), y + extent * math.sin(turn)


def _lines(figure: Figure) -> Iterator[tuple[Point, Point]]:
    """Yield the ends of all straight lines except the grid's, in the figure's units."""
    for kind, *operands in figure.shapes:
        if kind in ("segment", "dashed"):
            (x, y), (u, v) = (figure.points[name] for name in operands)
            yield (x, y), (u, v)
        elif kind == "axes":
            left, right, bottom, top = operands
            yield (left, 0), (right, 0)
            yield (0, bottom), (0, top)


def _mark_boxes(frame: Frame, kind: str, *operands: object) -> Iterator[Box]:
    """Yield the boxes of marks that could read as part of an adjacent number."""
    names = [str(operand) for operand in operands]
    if kind in ("ticks", "arrows"):
        (x, y), (u, v) = frame.pixel(names[0]), frame.pixel(names[1])
        yield _box((x + u) / 2, (y + v) / 2, (4 + 3 * int(names[2])) * frame.unit)
    elif kind == "right_angle":
        corner, a, b = (frame.pixel(names[n]) for n in (1, 0, 2))
        along = [(p[0] - corner[0], p[1] - corner[1]) for p in (a, b)]
        shares = [6.5 * frame.unit / math.hypot(*side) for side in along]
        x, y = (sum(d[n] * share for d, share in zip(along, shares, strict=True)) for n in (0, 1))
        yield _box(corner[0] + x, corner[1] + y, 6.5 * frame.unit)


def _box(x: float, y: float, reach: float) -> Box:
    return round(x - reach), round(y - reach), round(x + reach), round(y + reach)


def _grown(box: Box, by: int) -> Box:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _gap(spot: Point, box: Box) -> float:
    """Return the distance of a spot from a box; 0 within it."""
    left, top, right, bottom = box
    return math.hypot(
        max(left - spot[0], 0, spot[0] - right), max(top - spot[1], 0, spot[1] - bottom)
    )


def _edges(box: Box) -> Iterator[Point]:
    """Yield the corners of a box."""
    left, top, right, bottom = box
    yield from ((left, top), (left, bottom), (right, top), (right, bottom))


def _turn_of(a: Point, b: Point, c: Point) -> float:
    """Return the cross product of AB and AC: its sign says on which side of AB is C."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _is_between(corner: Point, a: Point, b: Point, spot: Point) -> bool:
    """Whether a spot lies within the angle below 180 degrees of two rays from a corner."""
    side = _turn_of(corner, a, b)
    return side * _turn_of(corner, a, spot) > 0 and side * _turn_of(corner, spot, b) > 0


def _cross_each_other(a: Point, b: Point, c: Point, d: Point) -> bool:
    apart = _turn_of(a, b, c) * _turn_of(a, b, d) < 0
    return apart and _turn_of(c, d, a) * _turn_of(c, d, b) < 0


def _segment_distance(spot: Point, start: Point, end: Point) -> float:
    dx, dy = end[0] - start[0], end[1] - start[1]
    share = ((spot[0] - start[0]) * dx + (spot[1] - start[1]) * dy) / (dx * dx + dy * dy)
    share = min(1.0, max(0.0, share))
    return math.dist(spot, (start[0] + share * dx, start[1] + share * dy))


def _line_distance(spot: Point, start: Point, end: Point) -> float:
    dx, dy = end[0] - start[0], end[1] - start[1]
    return abs(dx * (spot[1] - start[1]) - dy * (spot[0] - start[0])) / math.hypot(dx, dy)


def _mean(points: Sequence[Point]) -> Point:
    return sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)


def _support(turn: float, width: int, height: int) -> float:
    """Return how far a box reaches from its centre in a direction."""
    return abs(math.cos(turn)) * width / 2 + abs(math.sin(turn)) * height / 2


def _radius(frame: Frame, kind: str, operands: Shape | list[object]) -> float:
    if kind == "circle":
        return float(str(operands[1])) * frame.scale
    return math.dist(frame.pixel(str(operands[0])), frame.pixel(str(operands[1])))


def _widest_gap(headings: Sequence[float], here: Point, center: Point) -> float:
    """Return the direction in the middle of the widest gap; away from the centre without lines."""
    if not headings:
        away = (here[0] - center[0], here[1] - center[1])
        return math.atan2(away[1], away[0]) if math.hypot(*away) > 1 else -0.9
    turns = sorted(heading % (2 * math.pi) for heading in headings)
    gaps = [
        ((later - earlier), earlier)
        for earlier, later in zip(turns, [*turns[1:], turns[0] + 2 * math.pi], strict=True)
    ]
    gap, start = max(gaps)
    return start + gap / 2
