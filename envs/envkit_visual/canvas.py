"""Draw a picture in units that do not depend on its size, and choose how it looks."""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack

from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.fonts import sans
from envkit.seeds import derive_seed

Color = tuple[int, int, int]
Point = tuple[float, float]
Box = tuple[float, float, float, float]

SIDE: Final = 448
"""Width and height of a picture in its own units, which are pixels at the default size."""

COLORS: Final[dict[str, Color]] = {
    "red": (214, 39, 40),
    "blue": (31, 96, 196),
    "green": (30, 140, 60),
    "yellow": (240, 200, 20),
    "purple": (135, 70, 180),
    "orange": (250, 128, 20),
    "pink": (240, 130, 190),
    "cyan": (40, 190, 210),
    "brown": (125, 75, 45),
    "grey": (135, 135, 135),
}
"""Colours that are told apart by their names."""

_PAPERS: Final[tuple[Color, ...]] = (
    *((255, 255, 255), (250, 246, 235), (236, 242, 248)),
    *((240, 245, 236), (246, 238, 244)),
)
_INKS: Final[tuple[Color, ...]] = ((20, 20, 24), (32, 36, 60), (50, 34, 24), (20, 48, 40))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a task is drawn. It is drawn from a seed of its own, so it says nothing of the task."""

    seed: int
    paper: Color
    ink: Color
    """Dark enough for text on the paper."""
    accents: tuple[str, ...]
    """Names of `COLORS` in some order."""

    @classmethod
    def of(cls, seed: int) -> "Look":
        """Return the look of a seed."""
        rng = random.Random(seed)
        accents = tuple(rng.sample(sorted(COLORS), len(COLORS)))
        return cls(seed=seed, accents=accents, paper=rng.choice(_PAPERS), ink=rng.choice(_INKS))

    def rng(self, *parts: object) -> random.Random:
        """Return a generator for a part of the picture, the same for every turn."""
        return random.Random(derive_seed(self.seed, *parts))


class Style(TypedDict, total=False):
    """How a shape is painted."""

    fill: Color | None
    line: Color | None
    width: float
    """Of the line; 1 if it is not given."""


class BoxStyle(Style, total=False):
    """How a rectangle is painted."""

    round_by: float
    """Radius of its corners."""


class Canvas:
    """A square picture of `SIDE` units, drawn with its origin at the top left."""

    def __init__(self, pixels: int, paper: Color) -> None:
        """Create an empty picture.

        Args:
            pixels: Its width and height.
            paper: Its background.
        """
        self._scale = pixels / SIDE
        self.picture = PilImage.new("RGB", (pixels, pixels), paper)
        self._pen = ImageDraw.Draw(self.picture)

    def box(
        self, left: float, top: float, right: float, bottom: float, **style: Unpack[BoxStyle]
    ) -> None:
        """Draw a rectangle; right and bottom are outside."""
        corners = self._box(left, top, right, bottom)
        if round_by := style.get("round_by"):
            self._pen.rounded_rectangle(corners, self.pixels(round_by), *self._paint(style))
        else:
            self._pen.rectangle(corners, *self._paint(style))

    def disc(self, x: float, y: float, radius: float, **style: Unpack[Style]) -> None:
        """Draw a circle."""
        self._pen.ellipse(self._box(*centered(x, y, radius, radius)), *self._paint(style))

    def wedge(
        self, x: float, y: float, radius: float, start: float, end: float, *, fill: Color
    ) -> None:
        """Draw a slice of a disc, between two angles in degrees clockwise from three o'clock."""
        self._pen.pieslice(self._box(*centered(x, y, radius, radius)), start, end, fill)

    def path(self, points: Sequence[Point], *, color: Color, width: float = 1) -> None:
        """Draw a line through points, with round corners."""
        self._pen.line(self._points(points), color, self._width(width), joint="curve")

    def polygon(self, points: Sequence[Point], **style: Unpack[Style]) -> None:
        """Draw a polygon."""
        self._pen.polygon(self._points(points), *self._paint(style))

    def arrow(
        self, start: Point, end: Point, *, color: Color, width: float = 2, head: float = 9
    ) -> None:
        """Draw an arrow."""
        (x, y), angle = end, math.atan2(end[1] - start[1], end[0] - start[0])
        turns = (angle - 0.45, angle + 0.45)
        sides = [(x - head * math.cos(turn), y - head * math.sin(turn)) for turn in turns]
        neck = (x - head * 0.8 * math.cos(angle), y - head * 0.8 * math.sin(angle))
        self.path((start, neck), color=color, width=width)
        self.polygon((end, *sides), fill=color)

    def text(
        self, x: float, y: float, text: str, *, color: Color, size: float = 16, at: str = "mm"
    ) -> None:
        """Write one line.

        Args:
            x: Place of the anchor.
            y: Place of the anchor.
            text: What to write.
            color: Of the letters.
            size: Height of the font. Below 12 it is not legible at 336 pixels.
            at: Anchor: "l", "m" or "r", then "t", "m" or "b".
        """
        mask = _text_mask(text, self._width(size))
        left = x * self._scale - mask.width * "lmr".index(at[0]) / 2
        top = y * self._scale - mask.height * "tmb".index(at[1]) / 2
        self.picture.paste(color, (round(left), round(top)), mask)

    def text_width(self, text: str, size: float = 16) -> float:
        """Return the width of a line of text."""
        return sans(self._width(size)).getlength(text) / self._scale

    def shape(self, kind: str, x: float, y: float, radius: float, *, fill: Color) -> None:
        """Draw one of `SHAPES`, about as wide as a disc of this radius."""
        if kind == "circle":
            self.disc(x, y, radius, fill=fill)
        else:
            self.polygon([(x + radius * a, y + radius * b) for a, b in SHAPES[kind]], fill=fill)

    def paste(self, picture: PilImage.Image, left: float, top: float) -> None:
        """Paste a picture, whose pixels are not scaled; one with alpha is blended."""
        place = (round(left * self._scale), round(top * self._scale))
        self.picture.paste(picture, place, picture if picture.mode == "RGBA" else None)

    def pixels(self, units: float) -> int:
        """Return a length in pixels of the picture."""
        return round(units * self._scale)

    def _paint(self, style: Style) -> tuple[Color | None, Color | None, int]:
        return style.get("fill"), style.get("line"), self._width(style.get("width", 1))

    def _width(self, units: float) -> int:
        return max(1, self.pixels(units))

    def _box(self, left: float, top: float, right: float, bottom: float) -> list[int]:
        near = [round(left * self._scale), round(top * self._scale)]
        far = [round(right * self._scale) - 1, round(bottom * self._scale) - 1]
        return [*near, max(far[0], near[0]), max(far[1], near[1])]

    def _points(self, points: Sequence[Point]) -> list[Point]:
        return [(x * self._scale, y * self._scale) for x, y in points]


def around(center: Point, radius: float, angle: float) -> Point:
    """Return the point at a distance and an angle, in degrees clockwise from the top."""
    turn = math.radians(angle)
    return center[0] + radius * math.sin(turn), center[1] - radius * math.cos(turn)


def centered(x: float, y: float, half_width: float, half_height: float) -> Box:
    """Return the left, top, right and bottom of a rectangle around a point."""
    return x - half_width, y - half_height, x + half_width, y + half_height


def _star(points: int, inner: float) -> tuple[Point, ...]:
    turns = [math.pi * corner / points for corner in range(2 * points)]
    radii = [1.0, inner] * points
    return tuple(
        (r * math.sin(turn), -r * math.cos(turn)) for r, turn in zip(radii, turns, strict=True)
    )


_ARM: Final = ((-0.32, -0.95), (0.32, -0.95), (0.32, -0.32))
_HALF_CROSS: Final = (*_ARM, *((-y, x) for x, y in _ARM))

SHAPES: Final[dict[str, tuple[Point, ...]]] = {
    "circle": (),
    "square": ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    "triangle": ((0.0, -1.0), (0.95, 0.8), (-0.95, 0.8)),
    "diamond": ((0.0, -1.0), (0.75, 0.0), (0.0, 1.0), (-0.75, 0.0)),
    "star": _star(5, 0.42),
    "cross": (*_HALF_CROSS, *((-x, -y) for x, y in _HALF_CROSS)),
    "hexagon": tuple((math.cos(k * math.pi / 3), math.sin(k * math.pi / 3)) for k in range(6)),
}
"""Corners of shapes by name, for a radius of 1; a circle has none."""
SHAPE_NAMES: Final = ("circle", "square", "triangle", "diamond", "star", "cross")
"""Shapes that are told apart at any size."""


@functools.lru_cache(maxsize=8192)
def _text_mask(text: str, pixels: int) -> PilImage.Image:
    font = sans(pixels)
    ascent, descent = font.getmetrics()
    mask = PilImage.new("L", (max(1, math.ceil(font.getlength(text))), ascent + descent))
    ImageDraw.Draw(mask).text((0, ascent), text, fill=255, font=font, anchor="ls")
    return mask
