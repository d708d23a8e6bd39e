"""Image sizes after resizing by the Qwen-VL image processors."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from envkit.errors import ConfigurationError

MAX_ASPECT_RATIO: Final = 200
"""Maximum aspect ratio that the processors accept."""


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SmartResize:
    """The resize rule of the Qwen-VL image processors.

    Both sides become multiples of `factor`. An image whose area is out of bounds is scaled into
    them, keeping its aspect ratio. The result equals `smart_resize` of transformers
    (src/transformers/models/qwen2_vl/image_processing_qwen2_vl.py), which also rounds halves to
    even.
    """

    factor: int
    """Patch size times merge size: 28 for Qwen2.5-VL, 32 for Qwen3-VL."""
    min_pixels: int
    max_pixels: int

    def __post_init__(self) -> None:
        if self.factor < 1 or not 0 < self.min_pixels <= self.max_pixels:
            raise ConfigurationError(
                "a resize needs factor >= 1 and 0 < min_pixels <= max_pixels, got "
                f"factor={self.factor}, {self.min_pixels} and {self.max_pixels}"
            )

    def apply(self, size: tuple[int, int]) -> Size:
        """Return the size that the model sees.

        Args:
            size: Width and height of the original image in pixels.

        Raises:
            ConfigurationError: The processor would reject the aspect ratio.
        """
        width, height = size
        if max(size) > MAX_ASPECT_RATIO * min(size):
            raise ConfigurationError(
                f"an image's aspect ratio can be at most {MAX_ASPECT_RATIO}, got {width}x{height}"
            )
        factor = self.factor
        # A side below half a factor rounds to 0, so the image counts as too small.
        seen = Size(round(width / factor) * factor, round(height / factor) * factor)
        area = seen.width * seen.height
        if area > self.max_pixels:
            shrink = math.sqrt(width * height / self.max_pixels)
            return Size(*(max(factor, math.floor(s / shrink / factor) * factor) for s in size))
        if area < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (width * height))
            return Size(*(math.ceil(s * grow / factor) * factor for s in size))
        return seen
