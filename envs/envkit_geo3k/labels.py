"""Put labels where they cover neither ink nor each other.

Each label has candidate positions in order of preference and takes the first that is free. A figure
whose labels do not all find a free place is refused: the caller draws another one.
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
_SLIDES: Final = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74)
_SWINGS: Final = tuple(math.radians(turn) for turn in (0, 20, -20, 40, -40, 60, -60, 85, -85))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest:
    """Text that belongs to one, two or three points: a vertex, a segment or an angle."""

    text: str
    at: tuple[str, ...]
    """One point: its name. Two: a segment. Three: an angle, its vertex in the middle."""


def place_labels(
    figure: Figure, painted: PilImage.Image, requests: Iterable[LabelRequest]
) -> tuple[Label, ...] | None:
    """Return the labels with their positions; None when one finds no free place.

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


def text_box(text: str, size: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a text about its centre, in pixels."""
    left, top, right, bottom = font(size).getbbox(text, anchor="mm")
    return math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)


class _Layout:
    def __init__(self, figure: Figure, painted: PilImage.Image) -> None:
        self._size = figure.size
        self._frame = Frame.of(figure)
        self._shapes = figure.shapes
        self._center = _mean([self._frame.pixel(name) for name in figure.points])
        self._ink: NDArray[np.bool_] = np.asarray(painted) < _INK_BELOW
        self._taken: list[tuple[int, int, int, int]] = []

    def place(self, request: LabelRequest) -> Label | None:
        box = text_box(request.text, self._size)
        width, height = box[2] - box[0], box[3] - box[1]
        for spot in self._candidates(request.at, width, height):
            x, y = round(spot[0]), round(spot[1])
            taken = (
                x + box[0] - _PADDING,
                y + box[1] - _PADDING,
                x + box[2] + _PADDING,
                y + box[3] + _PADDING,
            )
            if self._is_free(taken) and self._is_nearest(request.at, spot):
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

    def _is_free(self, box: tuple[int, int, int, int]) -> bool:
        """Whether a box lies on the canvas and covers no ink and no label."""
        left, top, right, bottom = box
        if left < 0 or top < 0 or right > self._size or bottom > self._size:
            return False
        for a, b, c, d in self._taken:
            if left < c and a < right and top < d and b < bottom:
                return False
        return not self._ink[top:bottom, left:right].any()

    def _around_point(self, name: str, width: int, height: int) -> Iterator[Point]:
        """Yield places, first in the widest gap between the lines that meet at the point."""
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
        """Yield places, first outside the middle of the segment."""
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

    def _is_nearest(self, ends: tuple[str, ...], spot: Point) -> bool:
        """Whether a segment's label would be nearer to it than to any other segment."""
        if len(ends) != 2:
            return True
        start, end = (self._frame.pixel(name) for name in ends)
        limit = _segment_distance(spot, start, end) * 1.15
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
        """Yield places outwards along the bisector, from just beyond the arc."""
        x, y = self._frame.pixel(vertex)
        first, second = (math.atan2(q[1] - y, q[0] - x) for q in map(self._frame.pixel, (a, b)))
        sweep = (second - first) % (2 * math.pi)
        if sweep > math.pi:
            first, sweep = second, 2 * math.pi - sweep
        arc = mark_radius(self._frame, a, vertex, b)
        for reach in (2.0, 6.0, 11.0, 17.0, 24.0, 32.0, 40.0):
            for share in (0.5, 0.4, 0.6, 0.3, 0.7):
                turn = first + sweep * share
                extent = arc + _support(turn, width, height) + (2 + reach) * self._frame.unit
                yield x + extent * math.cos(turn), y + extent * math.sin(turn)


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
