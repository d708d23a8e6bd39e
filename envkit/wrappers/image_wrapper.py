"""Wrappers that replace every image the model sees and leave the text unchanged.

A wrapper is a pure function of the image and its own arguments. It has no state that a snapshot, a
replay or another process could lose, so an episode resumed in a fresh environment shows the same
images.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from PIL import Image as PilImage

from envkit.env import Observation
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.messages import Message
from envkit.wrappers.env_wrapper import AnyEnv, ObservationWrapper

INFO_KEY = "image_wrapper"
"""Key of reset info, and so of a record's `reset_info`, that names the wrappers, joined by "+"."""


class ImageWrapper(ObservationWrapper):
    """The base class: subclasses define the replacement of an image.

    Every observation passes through it: `reset`, `step`, and the environment's own
    `format_observation` and `shorten`, of which the rollout calls the outermost. Rewards, info,
    tasks and state are unchanged.
    """

    label: ClassVar[str] = ""
    """The wrapper's name in the record."""

    def replace(self, image: Image, index: int) -> Image:
        """Return the image that the model sees instead.

        Args:
            image: The environment's own image.
            index: Its position in the observation.
        """
        raise NotImplementedError(f"{type(self).__name__} must define replace(image, index)")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode and replace the images of its first observation."""
        observation, info = super().reset(seed=seed, options=options)
        labels = "+".join(filter(None, (info.get(INFO_KEY), self.label)))
        return observation, {**info, INFO_KEY: labels}

    def changed(self, observation: Observation, *, is_first: bool, is_last: bool) -> Observation:
        """Return the observation with other images."""
        del is_first, is_last
        return self._replaced(observation)

    def format_observation(self, observation: Observation) -> Message:
        """Return the environment's message, with its own additional images replaced too."""
        entry: Message = self.env.get_wrapper_attr("format_observation")(observation)
        content = entry["content"]
        if isinstance(content, str):
            return entry
        shown = set(observation["images"])
        changed: list[Any] = [
            {**part, "image": self.replace(part["image"], index)}
            if part["type"] == "image" and part["image"] not in shown
            else part
            for index, part in enumerate(content)
        ]
        return {**entry, "content": changed}

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return the environment's shorter form, with its own additional images replaced too."""
        shorter = self.inner_shorten(observation, tokens)
        return None if shorter is None else self._replaced(shorter, known=observation["images"])

    def _replaced(self, observation: Observation, known: Sequence[Image] = ()) -> Observation:
        images = tuple(
            image if image in known else self.replace(image, index)
            for index, image in enumerate(observation["images"])
        )
        return {**observation, "images": images}


class BlankImage(ImageWrapper):
    """Replaces every image with a plain grey one of the same size and mode.

    A policy that scores as well with it does not use the images.
    """

    label: ClassVar[str] = "blank"

    def __init__(self, env: AnyEnv, *, grey: int = 128) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not.
            grey: Brightness of the image, 0 (black) to 255 (white).

        Raises:
            ConfigurationError: The brightness is out of range.
        """
        if not 0 <= grey <= 255:
            raise ConfigurationError(f"grey must be from 0 to 255, got {grey}")
        super().__init__(env, grey=grey)
        self.grey = grey

    def replace(self, image: Image, index: int) -> Image:
        """Return an image of one colour."""
        del index
        colour = self.grey if image.mode == "L" else (self.grey,) * 3
        return Image.from_pil(PilImage.new(image.mode, image.size, colour))
