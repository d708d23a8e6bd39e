"""Draw a figure: a grey canvas at twice the size, downsampled, with text at full sharpness.

Pixels depend only on the figure and the bundled font, never on system fonts.
"""

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont

from envkit.errors import DatasetError
from envkit.fonts import sans
from envkit.images import Image
from envkit_geo3k.figure import Figure, Frame
from envkit_geo3k.measure import Point

SUPERSAMPLING: Final = 2
INK: Final = 17
FILL: Final = 214
GRID: Final = 226
PAPER: Final = 255
_MAX_GRID: Final = 100
FONT_PIXELS: Final = 17
"""Height of the font at the reference size."""


def font(size: int) -> ImageFont.FreeTypeFont:
    """Return the label font for a figure of this size in pixels."""
    return sans(max(11, round(FONT_PIXELS * size / 384)))


def draw(figure: Figure) -> Image:
    """Return the image of a figure. Equal figures share one image object while it is cached.

    Raises:
        DatasetError: A shape that is unknown or does not fit the figure's points.
    """
    return _IMAGES.get(figure) or finish(figure, paint(figure))


def finish(figure: Figure, painted: PilImage.Image) -> Image:
    """Write the labels on the painted shapes, in place, and keep the image for `draw`.

    Args:
        figure: The figure with its labels.
        painted: What `paint` returned for its shapes.
    """
    pen = ImageDraw.Draw(painted)
    for label in figure.labels:
        pen.text((label.x, label.y), label.text, fill=INK, font=font(figure.size), anchor="mm")
    return _IMAGES.put(figure, Image.from_pil(painted))


class _Images:
    """Recent images by figure, so a group of episodes draws and encodes each once."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._images: OrderedDict[str, Image] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, figure: Figure) -> Image | None:
        with self._lock:
            return self._images.get(_key(figure))

    def put(self, figure: Figure, image: Image) -> Image:
        with self._lock:
            kept = self._images.setdefault(_key(figure), image)
            if len(self._images) > self._capacity:
                self._images.popitem(last=False)
            return kept


def _key(figure: Figure) -> str:
    return json.dumps(figure.to_json(), sort_keys=True)


_IMAGES: Final = _Images(64)


def paint(figure: Figure) -> PilImage.Image:
    """Return the shapes without the labels, as a grey image.

    Raises:
        DatasetError: A shape that is unknown or does not fit the figure's points.
    """
    side = figure.size * SUPERSAMPLING
    picture = PilImage.new("L", (side, side), PAPER)
    brush = _Brush(ImageDraw.Draw(picture), Frame.of(figure))
    for kind, *operands in figure.shapes:
        painter = _PAINTERS.get(kind)
        if painter is None:
            raise DatasetError(f"a shape must be one of {sorted(_PAINTERS)}, got {kind!r}")
        try:
            painter(brush, *operands)
        except (TypeError, ValueError, OverflowError) as error:
            raise DatasetError(
                f"the shape {[kind, *operands]!r} cannot be drawn: {error}"
            ) from error
    return picture.reduce(SUPERSAMPLING)


def mark_radius(frame: Frame, a: str, vertex: str, b: str) -> float:
    """Return the radius in pixels of an angle's arc: wider for a narrow angle, within its sides."""
    corner, first, second = (frame.pixel(name) for name in (vertex, a, b))
    sweep = _sweep(corner, first, second)[1]
    wanted = 22.0 if sweep > 70 else 28.0 if sweep > 40 else 36.0
    shorter = min(math.dist(corner, first), math.dist(corner, second))
    return min(wanted * frame.unit, 0.5 * shorter)


def _sweep(corner: Point, first: Point, second: Point) -> tuple[float, float]:
    """Return start and size in degrees of the angle below 180, clockwise on the screen."""
    start = math.degrees(math.atan2(first[1] - corner[1], first[0] - corner[0]))
    end = math.degrees(math.atan2(second[1] - corner[1], second[0] - corner[0]))
    size = (end - start) % 360
    return (start, size) if size <= 180 else (end, 360 - size)


class _Brush:
    """Draws in reference pixels on the enlarged canvas."""

    def __init__(self, pen: ImageDraw.ImageDraw, frame: Frame) -> None:
        self.pen = pen
        self.frame = frame
        self.unit = frame.unit * SUPERSAMPLING
        self.width = max(2, round(1.9 * self.unit))
        self.thin = max(2, round(1.4 * self.unit))

    def at(self, name: str) -> Point:
        x, y = self.frame.pixel(name)
        return x * SUPERSAMPLING, y * SUPERSAMPLING

    def path(self, points: Sequence[Point], width: int, shade: int = INK) -> None:
        self.pen.line(list(points), fill=shade, width=width, joint="curve")

    def arc(self, center: Point, radius: float, start: float, size: float, width: int) -> None:
        x, y = center
        box = (x - radius, y - radius, x + radius, y + radius)
        self.pen.arc(box, start, start + size, fill=INK, width=width)

    def ball(self, center: Point, radius: float, shade: int = INK) -> None:
        x, y = center
        self.pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shade)


def _unit_vector(a: Point, b: Point) -> Point:
    length = math.dist(a, b) or 1.0
    return (b[0] - a[0]) / length, (b[1] - a[1]) / length


def _segment(brush: _Brush, a: str, b: str) -> None:
    start, end = brush.at(a), brush.at(b)
    brush.path((start, end), brush.width)
    for point in (start, end):  # round ends close the corners
        brush.ball(point, brush.width / 2 - 0.5)


def _dashed(brush: _Brush, a: str, b: str) -> None:
    start, end = brush.at(a), brush.at(b)
    count = max(3, int(math.dist(start, end) / (7 * brush.unit)) | 1)
    steps = [
        (start[0] + (end[0] - start[0]) * n / count, start[1] + (end[1] - start[1]) * n / count)
        for n in range(count + 1)
    ]
    for n in range(0, count, 2):
        brush.path((steps[n], steps[n + 1]), brush.thin)


def _marks(brush: _Brush, a: str, b: str, count: int) -> list[tuple[Point, Point]]:
    """Return positions of repeated marks around a segment's middle, with its direction."""
    start, end = brush.at(a), brush.at(b)
    along = _unit_vector(start, end)
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    offsets = [(n - (count - 1) / 2) * 6 * brush.unit for n in range(count)]
    return [((middle[0] + along[0] * o, middle[1] + along[1] * o), along) for o in offsets]


def _ticks(brush: _Brush, a: str, b: str, count: int) -> None:
    """Draw tick marks of equal segments."""
    reach = 6.5 * brush.unit
    for (x, y), (dx, dy) in _marks(brush, a, b, count):
        ends = ((x - dy * reach, y + dx * reach), (x + dy * reach, y - dx * reach))
        brush.path(ends, brush.thin)


def _arrows(brush: _Brush, a: str, b: str, count: int) -> None:
    """Draw arrow marks of parallel lines."""
    reach = 7 * brush.unit
    for (x, y), (dx, dy) in _marks(brush, a, b, count):
        tip = (x + dx * reach / 2, y + dy * reach / 2)
        back = (x - dx * reach / 2, y - dy * reach / 2)
        left = (back[0] - dy * reach * 0.7, back[1] + dx * reach * 0.7)
        right = (back[0] + dy * reach * 0.7, back[1] - dx * reach * 0.7)
        brush.path((left, tip, right), brush.thin)


def _circle(brush: _Brush, center: str, radius: float) -> None:
    x, y = brush.at(center)
    reach = radius * brush.frame.scale * SUPERSAMPLING + brush.width / 2
    brush.pen.ellipse((x - reach, y - reach, x + reach, y + reach), outline=INK, width=brush.width)


def _arc(brush: _Brush, center: str, start: str, end: str) -> None:
    """Draw the counter-clockwise arc of a circle."""
    middle, first, last = brush.at(center), brush.at(start), brush.at(end)
    begin = math.degrees(math.atan2(last[1] - middle[1], last[0] - middle[0]))
    finish = math.degrees(math.atan2(first[1] - middle[1], first[0] - middle[0]))
    radius = math.dist(middle, first) + brush.width / 2
    brush.arc(middle, radius, begin, (finish - begin) % 360, brush.width)


def _right_angle(brush: _Brush, a: str, vertex: str, b: str) -> None:
    x, y = corner = brush.at(vertex)
    sides = min(math.dist(corner, brush.at(a)), math.dist(corner, brush.at(b)))
    reach = min(13 * brush.unit, sides * 0.4)
    u, v = _unit_vector(corner, brush.at(a)), _unit_vector(corner, brush.at(b))
    first = (x + u[0] * reach, y + u[1] * reach)
    tip = (first[0] + v[0] * reach, first[1] + v[1] * reach)
    brush.path((first, tip, (x + v[0] * reach, y + v[1] * reach)), brush.thin)


def _angle(brush: _Brush, a: str, vertex: str, b: str, count: int) -> None:
    corner = brush.at(vertex)
    start, size = _sweep(corner, brush.at(a), brush.at(b))
    radius = mark_radius(brush.frame, a, vertex, b) * SUPERSAMPLING
    for n in range(count):
        brush.arc(corner, radius - 4 * n * brush.unit, start, size, brush.thin)


def _fill_polygon(brush: _Brush, *names: str) -> None:
    brush.pen.polygon([brush.at(name) for name in names], fill=FILL)


def _fill_circle(brush: _Brush, center: str, radius: float, shade: int) -> None:
    reach = radius * brush.frame.scale * SUPERSAMPLING
    brush.ball(brush.at(center), reach, shade)


def _fill_sector(brush: _Brush, center: str, start: str, end: str) -> None:
    (x, y), first, last = brush.at(center), brush.at(start), brush.at(end)
    begin = math.degrees(math.atan2(last[1] - y, last[0] - x))
    finish = math.degrees(math.atan2(first[1] - y, first[0] - x))
    reach = math.dist((x, y), first)
    box = (x - reach, y - reach, x + reach, y + reach)
    brush.pen.pieslice(box, begin, begin + (finish - begin) % 360, fill=FILL)


def _clear_polygon(brush: _Brush, *names: str) -> None:
    brush.pen.polygon([brush.at(name) for name in names], fill=PAPER)


def _dot(brush: _Brush, name: str) -> None:
    brush.ball(brush.at(name), 3.2 * brush.unit)


def _axes(brush: _Brush, left: int, right: int, bottom: int, top: int) -> None:
    if right - left > _MAX_GRID or top - bottom > _MAX_GRID:
        raise ValueError(f"a grid has at most {_MAX_GRID} squares in a row")

    def at(x: float, y: float) -> Point:
        px, py = brush.frame.position(x, y)
        return px * SUPERSAMPLING, py * SUPERSAMPLING

    for x in range(left, right + 1):
        brush.path((at(x, bottom), at(x, top)), brush.thin, GRID)
    for y in range(bottom, top + 1):
        brush.path((at(left, y), at(right, y)), brush.thin, GRID)
    brush.path((at(0, bottom), at(0, top)), brush.thin)
    brush.path((at(left, 0), at(right, 0)), brush.thin)
    for end, along in ((at(right, 0), (1, 0)), (at(0, top), (0, -1))):
        back = (end[0] - along[0] * 9 * brush.unit, end[1] - along[1] * 9 * brush.unit)
        side = (along[1] * 4 * brush.unit, along[0] * 4 * brush.unit)
        wings = ((back[0] - side[0], back[1] - side[1]), (back[0] + side[0], back[1] + side[1]))
        brush.pen.polygon([end, *wings], fill=INK)


_PAINTERS: Final[dict[str, Callable[..., None]]] = {
    "angle": _angle,
    "arc": _arc,
    "arrows": _arrows,
    "axes": _axes,
    "circle": _circle,
    "clear_polygon": _clear_polygon,
    "dashed": _dashed,
    "dot": _dot,
    "fill_circle": _fill_circle,
    "fill_polygon": _fill_polygon,
    "fill_sector": _fill_sector,
    "right_angle": _right_angle,
    "segment": _segment,
    "ticks": _ticks,
}
"""Kind of shape -> painter of (brush, *operands)."""
