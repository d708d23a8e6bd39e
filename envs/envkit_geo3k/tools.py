"""The tools of the geometry environment, and the magnifier's crop."""

import math
from collections.abc import Sequence
from typing import Final

from PIL import Image as PilImage

from envkit.images import Image
from envkit.tools import ToolSpec

CALC_SCORE: Final = ToolSpec(
    name="calc_score",
    description="Check an answer. Returns score 1 if it is correct, else 0.",
    parameters={
        "type": "object",
        "properties": {
            "answer": {
                "type": "string",
                "description": "The answer as a number, a fraction or a LaTeX expression.",
            }
        },
        "required": ["answer"],
    },
)

ZOOM: Final = ToolSpec(
    name="zoom",
    description="Enlarge a part of the figure. Returns a picture.",
    parameters={
        "type": "object",
        "properties": {
            "region": {
                "type": "array",
                "items": {"type": "number"},
                "minItems": 4,
                "maxItems": 4,
                "description": "left, top, right and bottom as shares of the figure, 0 to 1.",
            }
        },
        "required": ["region"],
    },
)
MIN_SHARE: Final = 0.05
"""Smallest width and height of a region, as a share of the image."""


def crop(picture: Image, region: Sequence[float]) -> Image | None:
    """Return the region, scaled to the image's longer side; None if it is outside the image.

    Args:
        picture: The image.
        region: Left, top, right and bottom as fractions of the image, 0 to 1.
    """
    box = pixels(picture, region)
    if box is None:
        return None
    part = picture.pil().crop(box)
    factor = max(picture.size) / max(part.size)
    size = (max(1, round(part.width * factor)), max(1, round(part.height * factor)))
    return Image.from_pil(part.resize(size, PilImage.Resampling.BICUBIC))


def pixels(picture: Image, region: Sequence[float]) -> tuple[int, int, int, int] | None:
    """Return a region's edges in pixels, left, top, right and bottom; None outside the image.

    Args:
        picture: The image.
        region: Left, top, right and bottom as fractions of the image, 0 to 1.
    """
    left, top, right, bottom = region
    if not all(0 <= share <= 1 for share in region):
        return None
    if right - left < MIN_SHARE or bottom - top < MIN_SHARE:
        return None
    width, height = picture.size
    return (
        math.floor(left * width),
        math.floor(top * height),
        math.ceil(right * width),
        math.ceil(bottom * height),
    )
