"""A diagram as data: points in the problem's own units, shapes on them, text at pixel positions.

A figure is to scale, so every length and angle in it can be measured. It is plain JSON data inside
a task, and the image is a pure function of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import DatasetError
from envkit_geo3k.measure import Point

MIN_SIZE: Final = 256
MAX_SIZE: Final = 1024
REFERENCE_SIZE: Final = 384
"""Reference size in pixels for stroke widths, margins and font sizes."""
MARGIN: Final = 46
"""Space around the shapes for labels, at the reference size."""

Shape = tuple[Any, ...]
"""Kind, then operands: point names first, then numbers. `drawing` lists the kinds."""


@dataclass(frozen=True, slots=True)
class Label:
    """A run of text, centred at a pixel."""

    text: str
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A diagram as data."""

    size: int
    """Width and height in pixels."""
    points: Mapping[str, Point]
    """Positions; y points up."""
    shapes: tuple[Shape, ...]
    """In drawing order."""
    labels: tuple[Label, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "size": self.size,
            "points": {name: list(position) for name, position in self.points.items()},
            "shapes": [list(shape) for shape in self.shapes],
            "labels": [[label.text, label.x, label.y] for label in self.labels],
        }

    @classmethod
    def from_json(cls, data: Any) -> "Figure":  # noqa: ANN401  # a task may come from any file
        """Read what `to_json` returned.

        Raises:
            DatasetError: The data is not a figure, or its size is out of range.
        """
        try:
            size = int(data["size"])
            points = {str(name): (float(x), float(y)) for name, (x, y) in data["points"].items()}
            shapes = tuple(tuple(shape) for shape in data["shapes"])
            labels = tuple(Label(str(text), int(x), int(y)) for text, x, y in data["labels"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DatasetError(
                "a figure needs 'size', 'points' {name: [x, y]}, 'shapes' [[kind, ...]] and "
                f"'labels' [[text, x, y]]: {error!r}"
            ) from error
        if not all(math.isfinite(x) and math.isfinite(y) for x, y in points.values()):
            raise DatasetError(f"a figure's points must be finite, got {points}")
        if not MIN_SIZE <= size <= MAX_SIZE:
            raise DatasetError(
                f"a figure's size must be {MIN_SIZE} to {MAX_SIZE} pixels, got {size}"
            )
        return cls(size=size, points=points, shapes=shapes, labels=labels)


class Frame:
    """Transform from figure units to pixels, centred and scaled to fill the margins."""

    @classmethod
    def of(cls, figure: Figure) -> "Frame":
        """Return the frame of a figure.

        Raises:
            DatasetError: It has no points, or a shape that does not fit them.
        """
        try:
            return cls(figure)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DatasetError(
                f"a shape of the figure does not fit its points: {error!r}"
            ) from error

    def __init__(self, figure: Figure) -> None:
        xs, ys = _extent(figure)
        left, right, bottom, top = min(xs), max(xs), min(ys), max(ys)
        room = figure.size * (1 - 2 * MARGIN / REFERENCE_SIZE)
        self.unit: float = figure.size / REFERENCE_SIZE
        """Pixels per reference pixel."""
        self.scale: float = room / max(right - left, top - bottom, 1e-9)
        """Pixels per unit of the figure."""
        self._left = (figure.size - self.scale * (right - left)) / 2 - self.scale * left
        self._top = (figure.size - self.scale * (top - bottom)) / 2 + self.scale * top
        self._points = figure.points

    def position(self, x: float, y: float) -> Point:
        """Return the pixel of a position, y downwards."""
        return self._left + self.scale * x, self._top - self.scale * y

    def pixel(self, name: str) -> Point:
        """Return the pixel of a named point.

        Raises:
            DatasetError: The figure has no such point.
        """
        if name not in self._points:
            raise DatasetError(f"a shape names the point {name!r}, which the figure does not have")
        return self.position(*self._points[name])


def arc_positions(center: Point, start: Point, end: Point) -> list[Point]:
    """Return positions along the counter-clockwise arc from start to end, every ten degrees."""
    first = math.atan2(start[1] - center[1], start[0] - center[0])
    sweep = (math.atan2(end[1] - center[1], end[0] - center[0]) - first) % (2 * math.pi)
    radius = math.dist(center, start)
    count = max(2, math.ceil(math.degrees(sweep) / 10))
    turns = [first + sweep * n / count for n in range(count + 1)]
    return [(center[0] + radius * math.cos(t), center[1] + radius * math.sin(t)) for t in turns]


def _extent(figure: Figure) -> tuple[list[float], list[float]]:
    positions: list[Point] = list(figure.points.values())
    for kind, *operands in figure.shapes:
        positions += _shape_extent(kind, operands, figure.points)
    if not positions:
        raise DatasetError("a figure needs at least one point, got none")
    return [p[0] for p in positions], [p[1] for p in positions]


def _shape_extent(kind: str, operands: Sequence[Any], points: Mapping[str, Point]) -> list[Point]:
    if kind == "circle":
        x, y = points[operands[0]]
        radius = operands[1]
        return [(x - radius, y - radius), (x + radius, y + radius)]
    if kind == "arc":
        center, start, end = (points[name] for name in operands[:3])
        return arc_positions(center, start, end)
    if kind == "axes":
        left, right, bottom, top = operands
        return [(left, bottom), (right, top)]
    return []
