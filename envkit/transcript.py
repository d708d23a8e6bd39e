"""Draw an episode's transcript on a page, for `render_mode="rgb_array"`."""

import textwrap
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.images import Image

PAGE_SIZE: Final = (768, 768)
"""Width and height of the page in pixels: fixed, because video writers need equal frames."""
_MARGIN: Final = 16
_LINE_HEIGHT: Final = 14
_COLUMNS: Final = 120
_IMAGE_HEIGHT: Final = 384


def draw_page(entries: Sequence[str], images: Sequence[Image] = ()) -> NDArray[np.uint8]:
    """Return a page of shape (height, width, 3) with the newest text and the newest images.

    Args:
        entries: The conversation so far; only its end is shown if it does not fit.
        images: Images of the newest observation, drawn side by side at the bottom.
    """
    width, height = PAGE_SIZE
    page = PilImage.new("RGB", PAGE_SIZE, "white")
    bottom = height - _MARGIN
    if images:
        bottom -= _IMAGE_HEIGHT
        _draw_images(page, images, top=bottom)
    lines = [line for entry in entries for line in _wrap(entry)]
    visible = max((bottom - 2 * _MARGIN) // _LINE_HEIGHT, 1)
    pen = ImageDraw.Draw(page)
    for row, line in enumerate(lines[-visible:]):
        pen.text((_MARGIN, _MARGIN + row * _LINE_HEIGHT), line, fill="black")
    return np.array(page, dtype=np.uint8).reshape(height, width, 3)


def _wrap(entry: str) -> list[str]:
    # Pillow's built-in font may lack a glyph, and its bitmap form raises outside Latin-1.
    plain = entry[-20_000:].encode("latin-1", "replace").decode("latin-1")
    lines: list[str] = []
    for paragraph in plain.splitlines():
        lines += textwrap.wrap(paragraph, _COLUMNS) or [""]
    return [*lines, ""]


def _draw_images(page: PilImage.Image, images: Sequence[Image], *, top: int) -> None:
    room = (PAGE_SIZE[0] - 2 * _MARGIN) // len(images)
    for column, image in enumerate(images):
        picture = image.pil().convert("RGB")
        picture.thumbnail((max(room, 1), _IMAGE_HEIGHT))
        page.paste(picture, (_MARGIN + column * room, top))
