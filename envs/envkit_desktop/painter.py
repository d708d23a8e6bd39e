"""Draw with a clip rectangle, from two primitives: filled boxes and cached masks.

Text and marks are masks that are rendered once and pasted in a colour. Everything is clipped by
arithmetic, so a damaged rectangle is repainted in place on the canvas. Pixels depend on the bundled
font only, never on system fonts.
"""

import functools
import math
from typing import Final

from PIL import Image as PilImage
from PIL import ImageChops, ImageDraw

from envkit.fonts import sans
from envkit_desktop.theme import Color, Theme

Box = tuple[int, int, int, int]
"""Left, top, right, bottom; the last two are outside."""

_SUPERSAMPLE: Final = 4


@functools.lru_cache(maxsize=16384)
def text_width(text: str, pixels: int) -> int:
    """Return the text's rightmost extent, in pixels."""
    return math.ceil(sans(pixels).getlength(text))


@functools.lru_cache(maxsize=8)
def line_height(pixels: int) -> int:
    """Return the height of a line of text, in pixels."""
    return sum(sans(pixels).getmetrics())


@functools.lru_cache(maxsize=16384)
def _text_mask(text: str, pixels: int) -> PilImage.Image:
    ascent, descent = sans(pixels).getmetrics()
    mask = PilImage.new("L", (max(1, text_width(text, pixels) + 1), ascent + descent))
    pen = ImageDraw.Draw(mask)
    pen.text((0, ascent), text, fill=255, font=sans(pixels), anchor="ls")
    return mask


_POLYGONS: Final[dict[str, tuple[tuple[float, float], ...]]] = {
    "check": ((0.1, 0.5), (0.25, 0.38), (0.42, 0.6), (0.78, 0.14), (0.92, 0.26), (0.44, 0.88)),
    "down": ((0.12, 0.32), (0.88, 0.32), (0.5, 0.76)),
    "up": ((0.12, 0.68), (0.88, 0.68), (0.5, 0.24)),
    "right": ((0.32, 0.12), (0.76, 0.5), (0.32, 0.88)),
    "left": ((0.68, 0.12), (0.24, 0.5), (0.68, 0.88)),
    "folder": ((0.02, 0.16), (0.4, 0.16), (0.5, 0.28), (0.98, 0.28), (0.98, 0.88), (0.02, 0.88)),
    "file": ((0.16, 0.02), (0.62, 0.02), (0.86, 0.26), (0.86, 0.98), (0.16, 0.98)),
    "bin": ((0.08, 0.16), (0.92, 0.16), (0.78, 0.98), (0.22, 0.98)),
    "pointer": (
        (0.0, 0.0),
        (0.62, 0.6),
        (0.36, 0.62),
        (0.52, 0.94),
        (0.38, 1.0),
        (0.24, 0.68),
        (0.0, 0.86),
    ),
}


@functools.lru_cache(maxsize=256)
def _mark_mask(name: str, size: int) -> PilImage.Image:
    side = size * _SUPERSAMPLE
    mask = PilImage.new("L", (side, side))
    pen = ImageDraw.Draw(mask)
    if name == "disc":
        pen.ellipse((0, 0, side - 1, side - 1), fill=255)
    elif name == "cross":
        width = max(2, side // 6)
        pen.line((side * 0.15, side * 0.15, side * 0.85, side * 0.85), fill=255, width=width)
        pen.line((side * 0.15, side * 0.85, side * 0.85, side * 0.15), fill=255, width=width)
    else:
        pen.polygon([(x * side, y * side) for x, y in _POLYGONS[name]], fill=255)
    return mask.resize((size, size), PilImage.Resampling.BOX)


@functools.lru_cache(maxsize=4)
def _pointer_rim(size: int) -> PilImage.Image:
    """Return the mask of the pointer, one pixel wider on each side."""
    rim, mark = PilImage.new("L", (size + 2, size + 2)), _mark_mask("pointer", size)
    for place in ((0, 1), (2, 1), (1, 0), (1, 2)):
        shifted = PilImage.new("L", rim.size)
        shifted.paste(mark, place)
        rim = ImageChops.lighter(rim, shifted)
    return rim


def intersect(first: Box, second: Box) -> Box | None:
    """Return the common part of two boxes; None if there is none."""
    left, top, right, bottom = first
    other_left, other_top, other_right, other_bottom = second
    # Comparisons: max() and min() take twice as long, and this runs for every widget drawn.
    if other_left > left:
        left = other_left
    if other_top > top:
        top = other_top
    if other_right < right:
        right = other_right
    if other_bottom < bottom:
        bottom = other_bottom
    return (left, top, right, bottom) if left < right and top < bottom else None


class Painter:
    """Draws on a canvas, inside a clip rectangle only."""

    __slots__ = ("_canvas", "_pixels", "clip", "theme")

    def __init__(self, canvas: PilImage.Image, clip: Box, theme: Theme) -> None:
        self._canvas = canvas
        # Pillow's core object: its paste() takes clipped boxes directly, several times faster.
        self._pixels = canvas.im
        self.clip = clip
        self.theme = theme

    def inside(self, box: Box) -> "Painter | None":
        """Return a painter also clipped to the box, or None if nothing would be visible."""
        common = intersect(self.clip, box)
        if common is None:
            return None
        return self if common == self.clip else Painter(self._canvas, common, self.theme)

    def fill(self, x: int, y: int, width: int, height: int, color: Color) -> None:
        """Fill a box."""
        left, top, right, bottom = self.clip
        if x > left:
            left = x
        if y > top:
            top = y
        if x + width < right:
            right = x + width
        if y + height < bottom:
            bottom = y + height
        if left < right and top < bottom:
            self._pixels.paste(color, (left, top, right, bottom))

    def frame(self, x: int, y: int, width: int, height: int, color: Color) -> None:
        """Draw the outline of a box, one pixel thick, inside it."""
        self.fill(x, y, width, 1, color)
        self.fill(x, y + height - 1, width, 1, color)
        self.fill(x, y, 1, height, color)
        self.fill(x + width - 1, y, 1, height, color)

    def panel(
        self, x: int, y: int, width: int, height: int, color: Color, border: Color | None = None
    ) -> None:
        """Fill a box and draw its outline, by default in the border colour of the theme."""
        self.fill(x, y, width, height, self.theme.border if border is None else border)
        self.fill(x + 1, y + 1, width - 2, height - 2, color)

    def text(self, x: int, y: int, text: str, color: Color) -> None:
        """Write a line of text with the top left corner of its box at (x, y)."""
        if text:
            self._stamp(_text_mask(text, self.theme.type_pixels), x, y, color)

    def mark(self, name: str, x: int, y: int, size: int, color: Color) -> None:
        """Draw one of the marks, such as "check" or "folder", in a square of `size` pixels."""
        self._stamp(_mark_mask(name, size), x, y, color)

    def pointer(self, x: int, y: int, size: int) -> None:
        """Draw the mouse pointer, black with a white rim, with its tip at (x, y)."""
        self._stamp(_pointer_rim(size), x - 1, y - 1, (255, 255, 255))
        self.mark("pointer", x, y, size, (0, 0, 0))

    def width_of(self, text: str) -> int:
        """Return the width of the text in the theme's font, in pixels."""
        return text_width(text, self.theme.type_pixels)

    def _stamp(self, mask: PilImage.Image, x: int, y: int, color: Color) -> None:
        width, height = mask.size
        common = intersect(self.clip, (x, y, x + width, y + height))
        if common is None:
            return
        if common != (x, y, x + width, y + height):
            mask = mask.crop((common[0] - x, common[1] - y, common[2] - x, common[3] - y))
        self._pixels.paste(color, common, mask.im)
