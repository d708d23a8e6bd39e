"""Draw a code as an image: a pure function of code and look, with identical bytes everywhere."""

import random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envkit.images import Image
from envkit_canary.glyphs import GLYPH_HEIGHT, GLYPH_WIDTH, GLYPHS

_TILE: Final = 28
"""Pixels; a multiple of common vision models' patch sizes, so they do not resize the image."""
_CELL: Final = 8
"""Pixels of one glyph cell: a character is 40 x 56 pixels."""
_MARGIN: Final = 8
_DARK: Final = 128
"""Ink is darker than this grey, and paper is lighter."""


def draw_code(code: str, *, look: int = 0) -> Image:
    """Return the image of a code; codes of equal length give images of equal size.

    Args:
        code: Capital letters and digits only.
        look: Seed of the colours and the position, which say nothing about the code.
    """
    rng = random.Random(look)
    width = _round_up(len(code) * (GLYPH_WIDTH + 1) * _CELL + 2 * _MARGIN)
    height = _round_up(GLYPH_HEIGHT * _CELL + 2 * _MARGIN)
    ink = [rng.randrange(0, 90) for _ in range(3)]
    paper = [rng.randrange(190, 256) for _ in range(3)]
    mask = _cells(code).repeat(_CELL, axis=0).repeat(_CELL, axis=1)
    top = rng.randint(_MARGIN, height - mask.shape[0] - _MARGIN)
    left = rng.randint(_MARGIN, width - mask.shape[1] - _MARGIN)
    canvas: NDArray[np.uint8] = np.full((height, width, 3), paper, dtype=np.uint8)
    canvas[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = ink
    return Image.from_array(canvas)


def shows_code(image: Image, code: str) -> bool:
    """Return whether the dark pixels of an image spell the code, at any position."""
    ink = _cut(np.asarray(image.pil().convert("L")) < _DARK)
    cells = _cells(code).repeat(_CELL, axis=0).repeat(_CELL, axis=1)
    return np.array_equal(ink, _cut(cells))


def _cut(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Crop a mask to its ink."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return mask[:0, :0]
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _cells(code: str) -> NDArray[np.bool_]:
    """Return the code as cells of ink, with an empty column between the characters."""
    columns: list[NDArray[np.bool_]] = []
    for character in code:
        rows = [[cell == "#" for cell in row] + [False] for row in GLYPHS[character]]
        columns.append(np.array(rows, dtype=np.bool_))
    return np.concatenate(columns, axis=1)[:, :-1]


def _round_up(pixels: int) -> int:
    return -(-pixels // _TILE) * _TILE
