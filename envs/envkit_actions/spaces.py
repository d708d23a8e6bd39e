"""Coordinate spaces: convert a model's coordinates to screen pixels and back.

Three sizes are involved. The *screen* is what the environment draws and clicks on. The *sent* image
is the screenshot that the environment sends, which may be smaller. The *seen* image is the output
of the model's image processor. Families use pixels of one of the last two, or a fraction of either.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from envkit import ranges
from envkit.errors import ConfigurationError
from envkit.smart_resize import Size, SmartResize


class Point(NamedTuple):
    """A pixel of the screen."""

    x: int
    y: int
    is_inside: bool
    """Whether the model's numbers were in range; if not, they were clamped."""


QWEN25_VL_RESIZE: Final = SmartResize(factor=28, min_pixels=56 * 56, max_pixels=28 * 28 * 16384)
"""preprocessor_config.json of Qwen/Qwen2.5-VL-7B-Instruct."""
QWEN3_VL_RESIZE: Final = SmartResize(factor=32, min_pixels=256 * 256, max_pixels=4096 * 4096)
"""preprocessor_config.json of Qwen/Qwen3-VL-8B-Instruct, which calls them shortest and longest
edge."""
UI_TARS_RESIZE: Final = SmartResize(factor=28, min_pixels=100 * 28 * 28, max_pixels=16384 * 28 * 28)
"""bytedance/UI-TARS, codes/ui_tars/action_parser.py."""


class SpaceKind(StrEnum):
    """Unit of a model's coordinates."""

    SCREEN = "screen"
    """Pixels of the sent screenshot."""
    RESIZED = "resized"
    """Pixels of the image after the processor's resize."""
    NORMALISED = "normalised"
    """Fractions of width and height: 0 to `scale`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateSpace:
    """The coordinates of one model over one screenshot."""

    kind: SpaceKind
    screen: Size
    sent: Size
    """Size of the sent screenshot; equal to `screen` unless scaled."""
    resize: SmartResize | None = None
    """Resize of the model's processor; None if it keeps the size or is unknown."""
    scale: int = 1000
    """Range of a normalised space: 1000, 999 or 1."""

    def __post_init__(self) -> None:
        if min(*self.screen, *self.sent) < 1:
            raise ConfigurationError(
                f"sizes must be at least 1x1, got screen {self.screen} and sent {self.sent}"
            )
        ranges.one_of("scale", self.scale, (1000, 999, 1))
        if self.kind is SpaceKind.RESIZED and self.resize is None:
            raise ConfigurationError(
                "a resized space needs resize=, such as QWEN25_VL_RESIZE, to know what was seen"
            )
        _ = self.seen  # reject an impossible image here, not in the middle of a reply

    @classmethod
    def of(
        cls,
        kind: SpaceKind,
        screen: tuple[int, int],
        *,
        sent: tuple[int, int] | None = None,
        resize: SmartResize | None = None,
        scale: int = 1000,
    ) -> "CoordinateSpace":
        """Build a space; `sent` None means that the screenshot is sent at full size.

        Raises:
            ConfigurationError: A size, the scale or the resize is missing or impossible.
        """
        full = Size(*screen)
        shown = full if sent is None else Size(*sent)
        return cls(kind=kind, screen=full, sent=shown, resize=resize, scale=scale)

    @property
    def seen(self) -> Size:
        """The size of the image after the processor."""
        return self.sent if self.resize is None else self.resize.apply(self.sent)

    @property
    def extent(self) -> Size:
        """Largest x and y on the screen; the far edge counts as inside."""
        if self.kind is SpaceKind.NORMALISED:
            return Size(self.scale, self.scale)
        return self.seen if self.kind is SpaceKind.RESIZED else self.sent

    def to_screen(self, x: float, y: float) -> Point:
        """Return the screen pixel that the model means.

        Rounds once, at the end: floor(x / extent * screen), clamped to the screen.

        Args:
            x: Finite number in the units of the space, from the left.
            y: Like `x`, from the top.
        """
        extent = self.extent
        inside = 0 <= x <= extent.width and 0 <= y <= extent.height
        return Point(
            _pixel(x, extent.width, self.screen.width),
            _pixel(y, extent.height, self.screen.height),
            inside,
        )

    def offset_to_screen(self, dx: float, dy: float) -> tuple[int, int]:
        """Convert a distance from the units of the space to screen pixels."""
        extent = self.extent
        return (
            round(dx * self.screen.width / extent.width),
            round(dy * self.screen.height / extent.height),
        )

    def offset_from_screen(self, dx: int, dy: int) -> tuple[float, float]:
        """Convert a distance from screen pixels to the units of the space."""
        extent = self.extent
        across = dx * extent.width / self.screen.width
        down = dy * extent.height / self.screen.height
        return (across, down) if extent == (1, 1) else (round(across), round(down))

    def from_screen(self, x: int, y: int) -> tuple[int | float, int | float]:
        """Return the coordinates that a model would write for a pixel.

        They read back as the same pixel if the space is at least as fine as the screen, else within
        screen / (2 * extent) pixels, or twice that at the far edge, which is never returned. They
        are whole numbers, except for a scale of 1.
        """
        extent = self.extent
        if extent == (1, 1):
            return _fraction(x, self.screen.width), _fraction(y, self.screen.height)
        return (
            _nearest(x, extent.width, self.screen.width),
            _nearest(y, extent.height, self.screen.height),
        )


def _pixel(value: float, extent: int, pixels: int) -> int:
    clamped = min(max(value, 0), extent)
    return min(math.floor(clamped * pixels / extent), pixels - 1)


def _nearest(pixel: int, extent: int, pixels: int) -> int:
    middle = (pixel + 0.5) * extent / pixels
    choices = (math.floor(middle), min(math.ceil(middle), extent - 1))  # the far edge is no pixel
    return min(choices, key=lambda value: abs(value * pixels / extent - pixel - 0.5))


def _fraction(pixel: int, pixels: int) -> float:
    return round((pixel + 0.5) / pixels, 6)
