"""DejaVu Sans, bundled so that drawn text has the same pixels on every machine."""

import functools
from importlib.resources import files

from PIL import ImageFont

__all__ = ["sans"]


@functools.lru_cache(maxsize=32)
def sans(pixels: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans at a given height.

    Args:
        pixels: Height of the font in pixels, at least 1.
    """
    path = str(files("envkit.fonts") / "DejaVuSans.ttf")
    # Pillow's complex layout depends on a library that not every machine has.
    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)
