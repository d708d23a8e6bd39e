"""Gymnasium spaces for text and images of any size.

`gymnasium.spaces.Text` needs a character set: all of Unicode costs seconds and hundreds of
megabytes there, and its default set has no space. `Box` fixes an image's height and width.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envkit.errors import ConfigurationError
from envkit.image_files import MAX_PIXELS
from envkit.images import Image
from envkit.seeds import checked_seed

MAX_TEXT_LENGTH: Final = 1_000_000
"""Maximum text length of an action or observation, in characters."""
_SAMPLE_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?!\n"

Seed = int | np.random.Generator | None
T = TypeVar("T", covariant=True)


class _ShapelessSpace(gymnasium.Space[T]):
    """Common base of the spaces: no shape and no masked sampling."""

    def __init__(self, seed: Seed) -> None:
        if seed is not None and not isinstance(seed, np.random.Generator):
            seed = checked_seed(seed)
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: the values have no fixed shape."""
        return False

    def _refuse_mask(self, mask: object, probability: object) -> None:
        if mask is not None or probability is not None:
            raise ConfigurationError(
                f"{type(self).__name__} has no masked sampling: call sample() without arguments"
            )


class UnicodeText(_ShapelessSpace[str]):
    """Any string up to a length in characters."""

    def __init__(self, max_length: int = MAX_TEXT_LENGTH, *, seed: Seed = None) -> None:
        super().__init__(seed)
        self.max_length = max_length

    def sample(self, mask: object = None, probability: object = None) -> str:
        """Return a short random string; masks must be None."""
        self._refuse_mask(mask, probability)
        length = int(self.np_random.integers(0, min(self.max_length, 24) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_CHARACTERS), size=length)
        return "".join(_SAMPLE_CHARACTERS[i] for i in picks)

    def contains(self, x: object) -> bool:
        """Whether x is a string within the length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"UnicodeText(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))


class ImageSpace(_ShapelessSpace[Image]):
    """Any `envkit.Image` up to a number of pixels."""

    def __init__(self, max_pixels: int = MAX_PIXELS, *, seed: Seed = None) -> None:
        super().__init__(seed)
        self.max_pixels = max_pixels

    def sample(self, mask: object = None, probability: object = None) -> Image:
        """Return a small random image; masks must be None."""
        self._refuse_mask(mask, probability)
        height, width = (int(n) for n in self.np_random.integers(1, 17, size=2))
        pixels: NDArray[np.uint8] = self.np_random.integers(
            0, 256, size=(height, width, 3), dtype=np.uint8
        )
        return Image.from_array(pixels)

    def contains(self, x: object) -> bool:
        """Whether x is an image within the pixel limit."""
        return isinstance(x, Image) and x.size[0] * x.size[1] <= self.max_pixels

    def __repr__(self) -> str:
        return f"ImageSpace(max_pixels={self.max_pixels})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageSpace) and self.max_pixels == other.max_pixels

    def __hash__(self) -> int:
        return hash((ImageSpace, self.max_pixels))


class Choice(_ShapelessSpace[str]):
    """One of a fixed set of strings."""

    def __init__(self, values: Sequence[str], *, seed: Seed = None) -> None:
        super().__init__(seed)
        self.values = tuple(values)

    def sample(self, mask: object = None, probability: object = None) -> str:
        """Return one of the values; masks must be None."""
        self._refuse_mask(mask, probability)
        return self.values[int(self.np_random.integers(len(self.values)))]

    def contains(self, x: object) -> bool:
        """Whether x is one of the values."""
        return x in self.values

    def __repr__(self) -> str:
        return f"Choice({list(self.values)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self.values == other.values

    def __hash__(self) -> int:
        return hash((Choice, self.values))


def response_space() -> UnicodeText:
    """Return the action space of every environment: a raw model reply."""
    return UnicodeText()


def observation_space() -> gymnasium.Space[Any]:
    """Return the observation space of every environment: text, images and a role."""
    return gymnasium.spaces.Dict(
        {
            "text": UnicodeText(),
            "images": gymnasium.spaces.Sequence(ImageSpace()),
            "role": Choice(("user", "tool")),
        }
    )
