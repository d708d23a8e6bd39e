"""Put labels where they cover neither ink nor each other.

Each label has candidate positions in order of preference. Whether a candidate's box covers ink is
four look-ups in a summed-area table, for all candidates at once. A figure whose labels do not all
find a free place is refused: the caller draws another one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

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
        self._frame = Frame(figure)
        self._shapes = figure.shapes
        names = list(figure.points)
        self._center = _mean([self._frame.pixel(name) for name in names])
        ink = np.asarray(painted) < _INK_BELOW
        table = np.zeros((figure.size + 1, figure.size + 1), np.int32)
        np.cumsum(ink, axis=0, dtype=np.int32, out=table[1:, 1:])
        np.cumsum(table[1:, 1:], axis=1, out=table[1:, 1:])
        self._ink = table
        self._taken: list[tuple[int, int, int, int]] = []

    def place(self, request: LabelRequest) -> Label | None:
        box = text_box(request.text, self._size)
        width, height = box[2] - box[0], box[3] - box[1]
        if len(request.at) == 1:
            candidates = self._around_point(request.at[0], width, height)
        elif len(request.at) == 2:
            candidates = self._beside_segment(*request.at, width, height)
        else:
            candidates = self._inside_angle(*request.at, width, height)
        return self._first_free(request.text, box, candidates)

    def _first_free(
        self, text: str, box: tuple[int, int, int, int], candidates: Sequence[Point]
    ) -> Label | None:
        centers: NDArray[np.int32] = np.rint(np.asarray(candidates)).astype(np.int32)
        left, top = centers[:, 0] + box[0] - _PADDING, centers[:, 1] + box[1] - _PADDING
        right, bottom = centers[:, 0] + box[2] + _PADDING, centers[:, 1] + box[3] + _PADDING
        free = (left >= 0) & (top >= 0) & (right <= self._size) & (bottom <= self._size)
        x0, x1 = np.clip(left, 0, self._size), np.clip(right, 0, self._size)
        y0, y1 = np.clip(top, 0, self._size), np.clip(bottom, 0, self._size)
        table = self._ink
        free &= table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0] == 0
        for a, b, c, d in self._taken:
            free &= (right <= a) | (left >= c) | (bottom <= b) | (top >= d)
        first = int(np.argmax(free))
        if not free[first]:
            return None
        self._taken.append((int(left[first]), int(top[first]), int(right[first]), int(bottom[first])))
        return Label(text, int(centers[first, 0]), int(centers[first, 1]))

    def _around_point(self, name: str, width: int, height: int) -> list[Point]:
        """Candidates start in the widest gap between the lines that meet at the point."""
        x, y = self._frame.pixel(name)
        heading = _widest_gap(self._headings(name), (x, y), self._center)
        found: list[Point] = []
        for reach in (2.0, 5.0, 9.0, 14.0):
            for swing in (*_SWINGS, math.pi):
                turn = heading + swing
                extent = _support(turn, width, height) + (4 + reach) * self._frame.unit
                found.append((x + extent * math.cos(turn), y + extent * math.sin(turn)))
        return found

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

    def _beside_segment(self, a: str, b: str, width: int, height: int) -> list[Point]:
        """Candidates start outside the middle of the segment."""
        start, end = self._frame.pixel(a), self._frame.pixel(b)
        normal = math.atan2(end[0] - start[0], -(end[1] - start[1]))
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        outward = (middle[0] - self._center[0]) * math.cos(normal)
        outward += (middle[1] - self._center[1]) * math.sin(normal)
        if outward < 0:
            normal += math.pi
        found: list[Point] = []
        extent = _support(normal, width, height)
        for slide in _SLIDES:
            x = start[0] + (end[0] - start[0]) * slide
            y = start[1] + (end[1] - start[1]) * slide
            for reach in (5.0, 8.0):
                for side in (1, -1):
                    push = side * (extent + reach * self._frame.unit)
                    found.append((x + push * math.cos(normal), y + push * math.sin(normal)))
        return found

    def _inside_angle(self, a: str, vertex: str, b: str, width: int, height: int) -> list[Point]:
        """Candidates go outwards along the bisector, from just beyond the arc."""
        x, y = self._frame.pixel(vertex)
        first, second = (math.atan2(q[1] - y, q[0] - x) for q in map(self._frame.pixel, (a, b)))
        sweep = (second - first) % (2 * math.pi)
        if sweep > math.pi:
            first, sweep = second, 2 * math.pi - sweep
        arc = mark_radius(self._frame, a, vertex, b)
        found: list[Point] = []
        for reach in (2.0, 6.0, 11.0, 17.0, 24.0, 32.0, 40.0):
            for share in (0.5, 0.4, 0.6, 0.3, 0.7):
                turn = first + sweep * share
                extent = arc + _support(turn, width, height) + (2 + reach) * self._frame.unit
                found.append((x + extent * math.cos(turn), y + extent * math.sin(turn)))
        return found


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
