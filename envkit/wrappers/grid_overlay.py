"""Draws a coordinate grid over every picture."""

import functools

from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.fonts import sans
from envkit.images import Image
from envkit.ranges import within
from envkit.wrappers.env_wrapper import AnyEnv
from envkit.wrappers.image_wrapper import ImageWrapper


class GridOverlay(ImageWrapper):
    """Draws thin lines at equal distances, labelled in thousandths of the picture.

    It helps a model to name points and cells.
    """

    label = "grid"

    def __init__(self, env: AnyEnv, *, lines: int = 9) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            lines: Lines in each direction, 1 to 49; 9 divide the picture into tenths.

        Raises:
            ConfigurationError: The number is out of range.
        """
        within(1, 49, lines=lines)
        super().__init__(env, lines=lines)
        self.lines = lines

    def replace(self, image: Image, index: int) -> Image:
        """Return the image under a grid."""
        del index
        picture = image.pil().convert("RGB")
        mask = _grid(picture.size, self.lines)
        picture.paste((200, 0, 120), (0, 0), mask)
        return Image.from_pil(picture)


@functools.lru_cache(maxsize=8)
def _grid(size: tuple[int, int], lines: int) -> PilImage.Image:
    """Return the mask of the lines, half transparent, and of their labels."""
    mask = PilImage.new("L", size)
    pen, height = ImageDraw.Draw(mask), max(8, min(size) // 40)
    for at in range(1, lines + 1):
        part = at / (lines + 1)
        x, y = round(part * size[0]), round(part * size[1])
        pen.line((x, 0, x, size[1]), fill=110)
        pen.line((0, y, size[0], y), fill=110)
        pen.text((x + 2, 0), f"{1000 * part:.0f}", fill=255, font=sans(height))
        pen.text((1, y + 1), f"{1000 * part:.0f}", fill=255, font=sans(height))
    return mask
