"""Pictures without a subject: wavy bands of color with shapes on them, drawn from a seed.

A picture is made as an image of color numbers, which can be cut, turned and magnified without
blending, and is colored at the end.
"""

import functools
import math
import random
from collections.abc import Sequence
from typing import Final

import numpy as np
from PIL import Image as PilImage
from PIL import ImageDraw

from envkit_visual.canvas import COLORS, SHAPES, Canvas, Color, Look, centered

_THEMES: Final[tuple[tuple[Color, ...], ...]] = (
    ((240, 244, 222), (214, 230, 186), (180, 210, 150), (146, 186, 130), (112, 158, 118)),
    ((236, 244, 250), (202, 224, 240), (164, 200, 228), (124, 170, 212), (92, 138, 188)),
    ((252, 240, 220), (244, 220, 182), (230, 192, 144), (208, 160, 116), (178, 126, 92)),
    ((246, 236, 248), (226, 206, 236), (200, 174, 220), (170, 142, 200), (136, 110, 176)),
    ((240, 240, 236), (214, 216, 214), (184, 190, 194), (152, 162, 170), (118, 132, 146)),
)
BANDS: Final = 5
_SHAPE_COLORS: Final = 6
_INK: Final = BANDS + _SHAPE_COLORS
_LETTERS: Final = "abcdeABCDEF#"
"""A letter for each color number: bands, shapes, outlines."""
_COARSE: Final = 112
LEGEND: Final = "a to e are bands of color, A to F are colors of shapes, # is an outline."


_Wave = tuple[float, float, float, float]
"""How it changes across and down, its phase, and its height."""
_Blot = tuple[str, float, float, float, int]
"""A shape, its place, its radius, and the number of its color."""


@functools.lru_cache(maxsize=256)
def _plan(seed: int, *, is_deep: bool) -> tuple[list[_Wave], list[_Blot]]:
    """Return the waves and shapes of a picture whose side is 1.

    A deep one has detail at every scale around its center.
    """
    rng = random.Random(seed)
    waves, blots = list[_Wave](), list[_Blot]()
    for index in range(12 if is_deep else 9):
        frequency = 1.5 * (1.3 if is_deep else 1.18) ** index
        angle, phase = rng.uniform(0, math.tau), rng.uniform(0, math.tau)
        turn = math.tau * frequency
        height = frequency ** (-1.0 if is_deep else -0.6)
        waves.append((turn * math.cos(angle), turn * math.sin(angle), phase, height))
    for index in range(40 if is_deep else 16):
        reach = 0.5 * (0.93**index if is_deep else 1.0)
        radius, kind = reach * rng.uniform(0.08, 0.16), rng.choice(sorted(SHAPES))
        x, y = (0.5 + rng.uniform(-reach, reach) for _ in range(2))
        blots.append((kind, x, y, radius, BANDS + rng.randrange(_SHAPE_COLORS)))
    return waves, blots


@functools.lru_cache(maxsize=64)
def art(seed: int, pixels: int, *, side: float = 1.0, is_deep: bool = False) -> PilImage.Image:
    """Return a picture as color numbers; it is shared, so copy it before drawing on it.

    Args:
        seed: Decides the picture.
        pixels: Its width and height.
        side: The part around the center that is seen, of 1.
        is_deep: Whether the picture has detail at every scale around its center.
    """
    waves, blots = _plan(seed, is_deep=is_deep)
    near = (1 - side) / 2
    picture = _bands(waves, pixels, near, side)
    pen = ImageDraw.Draw(picture)
    for kind, *place, radius, color in blots:
        x, y = ((at - near) / side * pixels for at in place)
        radius = radius / side * pixels
        if not (-radius < x < pixels + radius and -radius < y < pixels + radius):
            continue
        line = max(1, round(pixels / 224))
        if kind == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), color, _INK, line)
        else:
            corners = [(x + radius * right, y + radius * low) for right, low in SHAPES[kind]]
            pen.polygon(corners, color, _INK, line)
    return picture


def _bands(waves: Sequence[_Wave], pixels: int, near: float, side: float) -> PilImage.Image:
    """Return the sum of waves, cut into bands.

    It is computed on a coarse grid, which is quicker, and at which small matrices stay on one core.
    """
    count = min(_COARSE, pixels // 3)
    places = near + side * (np.arange(count) + 0.5) / count
    rights, downs, phases, heights = np.array(waves).T
    across, down = np.outer(places, rights), np.outer(places, downs) + phases
    # cos(down + across) of every place as products of matrices needs few cosines
    field = (np.cos(down) * heights) @ np.cos(across).T
    field -= (np.sin(down) * heights) @ np.sin(across).T
    field *= 1.25 / math.sqrt(float((heights**2).sum()) / 2)
    levels = np.clip((field / BANDS + 0.5) * 256, 0, 255).astype(np.uint8)
    fine = PilImage.fromarray(levels).resize((pixels, pixels), PilImage.Resampling.BILINEAR)
    return fine.point([level * BANDS // 256 for level in range(256)])


def colored(picture: PilImage.Image, look: Look) -> PilImage.Image:
    """Return a picture of color numbers in the colors of a look."""
    theme = look.rng("theme").choice(_THEMES)
    shapes = [COLORS[name] for name in look.accents if name != "grey"][:_SHAPE_COLORS]
    palette = [value for color in (*theme, *shapes, look.ink) for value in color]
    painted = picture.copy()
    painted.putpalette(palette)
    return painted.convert("RGB")


def letters(picture: PilImage.Image, count: int) -> list[str]:
    """Return a picture of color numbers as rows of letters, `count` by `count`."""
    places = [(at + 0.5) / count for at in range(count)]
    return [letters_at(picture, [(x, y) for x in places]) for y in places]


def letters_at(picture: PilImage.Image, places: Sequence[tuple[float, float]]) -> str:
    """Return the letters of places, given as parts of a picture's width and height."""
    numbers = np.asarray(picture)
    height, width = numbers.shape
    seen = ((min(height - 1, int(y * height)), min(width - 1, int(x * width))) for x, y in places)
    return "".join(_LETTERS[numbers[spot]] for spot in seen)


def badge(canvas: Canvas, x: float, y: float, text: str, look: Look, *, size: float = 14) -> None:
    """Write a label on a white plate, centered at a place."""
    half = max(size * 0.62, canvas.text_width(text, size) / 2 + 3)
    canvas.box(*centered(x, y, half, size * 0.62), fill=(255, 255, 255), line=look.ink)
    canvas.text(x, y, text, color=look.ink, size=size)
