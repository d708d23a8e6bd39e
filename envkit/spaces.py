"""Gymnasium spaces for text and pictures of any size."""

from collections.abc import Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envkit.images import Image

_SAMPLE_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?!\n"


class UnicodeText(gymnasium.Space[str]):
    """Any string up to a length. `gymnasium.spaces.Text` needs a character set, all of Unicode costs
    seconds and hundreds of megabytes there, and its default set has no space.
    """

    def __init__(
        self, max_length: int = 1_000_000, *, seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(shape=None, dtype=str, seed=seed)
        self.max_length = max_length

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:  # noqa: ANN401  # Gymnasium's signature
        """Return a short random string; masks are not supported and must be None."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText has no masked sampling: call sample() without arguments")
        length = int(self.np_random.integers(0, min(self.max_length, 24) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_CHARACTERS), size=length)
        return "".join(_SAMPLE_CHARACTERS[i] for i in picks)

    def contains(self, x: Any) -> bool:  # noqa: ANN401  # Gymnasium's signature
        """Whether x is a string within the length."""
        return isinstance(x, str) and len(x) <= self.max_length

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed shape."""
        return False

    def __repr__(self) -> str:
        return f"UnicodeText(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length


class ImageSpace(gymnasium.Space[Image]):
    """Any `envkit.Image` up to a number of pixels; `Box` would fix height and width."""

    def __init__(
        self, max_pixels: int = 64 * 1024 * 1024, *, seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.max_pixels = max_pixels

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> Image:  # noqa: ANN401  # Gymnasium's signature
        """Return a small random picture; masks are not supported and must be None."""
        if mask is not None or probability is not None:
            raise ValueError("ImageSpace has no masked sampling: call sample() without arguments")
        height, width = (int(n) for n in self.np_random.integers(1, 17, size=2))
        pixels: NDArray[np.uint8] = self.np_random.integers(
            0, 256, size=(height, width, 3), dtype=np.uint8
        )
        return Image.from_array(pixels)

    def contains(self, x: Any) -> bool:  # noqa: ANN401  # Gymnasium's signature
        """Whether x is an image within the pixel limit."""
        return isinstance(x, Image) and x.size[0] * x.size[1] <= self.max_pixels

    @property
    def is_np_flattenable(self) -> bool:
        """False: pictures have no fixed shape."""
        return False

    def __repr__(self) -> str:
        return f"ImageSpace(max_pixels={self.max_pixels})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageSpace) and self.max_pixels == other.max_pixels


class Choice(gymnasium.Space[str]):
    """One of some strings."""

    def __init__(
        self, values: Sequence[str], *, seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(shape=None, dtype=str, seed=seed)
        self.values = tuple(values)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:  # noqa: ANN401  # Gymnasium's signature
        """Return one of the values; masks are not supported and must be None."""
        if mask is not None or probability is not None:
            raise ValueError("Choice has no masked sampling: call sample() without arguments")
        return self.values[int(self.np_random.integers(len(self.values)))]

    def contains(self, x: Any) -> bool:  # noqa: ANN401  # Gymnasium's signature
        """Whether x is one of the values."""
        return x in self.values

    @property
    def is_np_flattenable(self) -> bool:
        """False: the values are strings."""
        return False

    def __repr__(self) -> str:
        return f"Choice({list(self.values)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self.values == other.values


def response_space() -> UnicodeText:
    """Return the action space of every environment: a raw model reply."""
    return UnicodeText()


def observation_space() -> gymnasium.spaces.Dict:
    """Return the observation space of every environment: text, images and a role."""
    return gymnasium.spaces.Dict(
        {
            "text": UnicodeText(),
            "images": gymnasium.spaces.Sequence(ImageSpace()),
            "role": Choice(("user", "tool")),
        }
    )
