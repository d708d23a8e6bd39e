"""Zoom: a part of the screen, enlarged to the screen's size."""

from dataclasses import dataclass
from typing import Final

from PIL import Image as PilImage

from envkit.images import Image
from envkit_actions.action import Action, ActionKind

_SMALLEST: Final = 32
"""Minimum width of a region in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A region of the screen, in the screen's shape."""

    box: tuple[int, int, int, int]
    """Left, top, right and bottom; the last two are outside."""
    screen: tuple[int, int]
    """Width and height in pixels."""

    @classmethod
    def of(cls, corners: tuple[int, int, int, int], screen: tuple[int, int]) -> "View":
        """Return the smallest view that shows a rectangle.

        Args:
            corners: x and y of two opposite corners, in any order, both shown. They may lie outside
                the screen: the view is moved onto it.
            screen: Width and height in pixels.
        """
        (left, right), (top, bottom) = sorted(corners[::2]), sorted(corners[1::2])
        width = max(_SMALLEST, right + 1 - left, -(-(bottom + 1 - top) * screen[0] // screen[1]))
        width = min(screen[0], width)
        height = max(1, min(screen[1], round(width * screen[1] / screen[0])))
        x = min(max(0, (left + right + 1 - width) // 2), screen[0] - width)
        y = min(max(0, (top + bottom + 1 - height) // 2), screen[1] - height)
        return cls(box=(x, y, x + width, y + height), screen=screen)

    @classmethod
    def of_zoom(cls, action: Action, screen: tuple[int, int]) -> "View | None":
        """Return what a zoom shows; None for every other action.

        Args:
            action: Any action, in screen pixels.
            screen: Width and height in pixels.
        """
        if action.kind is not ActionKind.ZOOM or action.x is None or action.y is None:
            return None
        return cls.of((action.x, action.y, *action.path[0]), screen)

    @property
    def label(self) -> str:
        """Text next to the image."""
        left, top, right, bottom = self.box
        return (
            f"The picture shows x from {left} to {right} and y from {top} to {bottom} of the "
            f"screen's {self.screen[0]}x{self.screen[1]} pixels, enlarged. Places still count on "
            "the whole screen."
        )

    def enlarge(self, picture: PilImage.Image) -> Image:
        """Return the view of an image of the screen, as large as the screen."""
        part = picture.resize(self.screen, PilImage.Resampling.BICUBIC, box=self.box)
        return Image.from_pil(part)
