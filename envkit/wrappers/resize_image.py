"""Shows pictures in another size."""

from typing import Any

from PIL import Image as PilImage

from envkit.env import Observation
from envkit.images import Image
from envkit.marks import scale_marks
from envkit.ranges import within
from envkit.wrappers.env_wrapper import AnyEnv
from envkit.wrappers.image_wrapper import ImageWrapper

_LARGEST = 4096


class ResizeImage(ImageWrapper):
    """Scales every picture so that its longer side has a given length."""

    label = "resized"

    def __init__(self, env: AnyEnv, *, side: int = 336) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            side: Length of the longer side in pixels.

        Raises:
            ConfigurationError: It is out of range.
        """
        within(28, _LARGEST, side=side)
        super().__init__(env, side=side)
        self.side = side
        self._factor = 1.0

    def replace(self, image: Image, index: int) -> Image:
        """Return the image in its new size: enlarged without blur, or smoothed."""
        del index
        factor = self.side / max(image.size)
        self._factor = factor
        if factor == 1:
            return image
        width, height = (max(1, round(length * factor)) for length in image.size)
        way = PilImage.Resampling.NEAREST if factor > 1 else PilImage.Resampling.LANCZOS
        return Image.from_pil(image.pil().resize((width, height), way))

    def step(self, action: str) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        """Play one reply; its marks move to the pixels of the picture that the model saw."""
        factor = self._factor
        observation, reward, terminated, truncated, info = super().step(action)
        if info.get("marks"):
            info = {**info, "marks": scale_marks(info["marks"], factor)}
        return observation, reward, terminated, truncated, info
