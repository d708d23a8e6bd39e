"""Measure a figure: compute the quantity of a label or question from coordinates.

A measure is plain JSON data: a number, or a list of an operation and its operands, such as
`["length", "A", "B"]` or `["solve", 3, 2, ["angle", "A", "B", "C"]]` (the x of 3x + 2 degrees).
Every given and every answer of a generated problem carries one, so figure, labels and answer can be
cross-checked without the underlying theorem.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from envkit.errors import DatasetError

Point = tuple[float, float]
Points = Mapping[str, Sequence[float]]
Measure = float | int | list[Any]
"""A number, or [operation, operand, ...]; operands are point names or measures. JSON data."""


def evaluate_measure(measure: Measure, points: Points) -> float | tuple[float, ...]:
    """Return the measure's value in the figure's units or degrees; a point gives two values.

    Raises:
        DatasetError: An unknown operation, or a point that the figure does not have.
    """
    if isinstance(measure, (int, float)):
        return float(measure)
    name, *operands = measure
    try:
        if name == "pair":
            return tuple(_number(operand, points) for operand in operands)
        if name in _ON_POINTS:
            return _ON_POINTS[name](*((points[o][0], points[o][1]) for o in operands))
        if name in _ON_NUMBERS:
            return _ON_NUMBERS[name](*(_number(operand, points) for operand in operands))
    except KeyError as error:
        raise DatasetError(f"the figure has no point {error} that {measure!r} measures") from error
    known = sorted((*_ON_POINTS, *_ON_NUMBERS, "pair"))
    raise DatasetError(f"a measure's operation must be one of {known}, got {name!r}")


def _number(measure: Measure, points: Points) -> float:
    value = evaluate_measure(measure, points)
    if isinstance(value, tuple):
        raise DatasetError(f"a pair cannot be an operand of a measure, got {measure!r}")
    return value


def distance(a: Point, b: Point) -> float:
    """Return the distance of two points."""
    return math.hypot(b[0] - a[0], b[1] - a[1])


def angle_at(a: Point, vertex: Point, b: Point) -> float:
    """Return the angle between two rays from a vertex, 0 to 180 degrees."""
    first = (a[0] - vertex[0], a[1] - vertex[1])
    second = (b[0] - vertex[0], b[1] - vertex[1])
    cross = first[0] * second[1] - first[1] * second[0]
    return math.degrees(math.atan2(abs(cross), first[0] * second[0] + first[1] * second[1]))


def area(*corners: Point) -> float:
    """Return the area of a simple polygon."""
    pairs = zip(corners, (*corners[1:], corners[0]), strict=True)
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in pairs)) / 2


def _perimeter(*corners: Point) -> float:
    pairs = zip(corners, (*corners[1:], corners[0]), strict=True)
    return sum(distance(a, b) for a, b in pairs)


def _over(a: float, b: float) -> float:
    return a / b


def _solve(slope: float, offset: float, value: float) -> float:
    """Return the x with slope * x + offset = value."""
    return (value - offset) / slope


def _round(digits: float, value: float) -> float:
    return round(value, int(digits))


_ON_POINTS: Final[dict[str, Callable[..., float]]] = {
    "angle": angle_at,
    "area": area,
    "length": distance,
    "perimeter": _perimeter,
    "x": operator.itemgetter(0),
    "y": operator.itemgetter(1),
}
_ON_NUMBERS: Final[dict[str, Callable[..., float]]] = {
    "minus": operator.sub,
    "over": _over,
    "plus": lambda *values: math.fsum(values),
    "root": math.sqrt,
    "round": _round,
    "solve": _solve,
    "times": lambda *values: math.prod(values),
}
