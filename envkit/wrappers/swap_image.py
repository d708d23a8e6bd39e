"""Swaps images between tasks: the text is correct, the images are wrong."""

import copy
from typing import ClassVar, Final, cast

from envkit.env import Env
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.seeds import checked_seed, derive_seed
from envkit.wrappers.env_wrapper import AnyEnv
from envkit.wrappers.image_wrapper import ImageWrapper

_ATTEMPTS: Final = 32
"""Maximum tasks searched for a different image."""


class SwapImage(ImageWrapper):
    """Replaces images with the first image of another task of the same environment.

    The model gets a plausible image that does not belong to the question. It is a function of
    the seed and the true image, so a group sees the same wrong images and a replay shows them
    again. The wrong image keeps its own size.

    The other task may happen to have the same answer. A policy that ignores images therefore stays
    at the environment's chance level rather than falling below it.
    """

    label: ClassVar[str] = "swap"

    def __init__(self, env: AnyEnv, *, seed: int = 0) -> None:
        """Wrap an environment.

        Args:
            env: An `envkit.Env`, wrapped or not; a second instance is created on first use.
            seed: Chooses the other images.

        Raises:
            ConfigurationError: The environment allows only one live instance.
        """
        self.seed = checked_seed(seed)
        super().__init__(env, seed=self.seed)
        if self.inner.capabilities.max_sessions == 1:
            raise ConfigurationError(
                f"SwapImage takes its images from a second {type(self.inner).__name__}, which "
                "declares max_sessions=1; use BlankImage"
            )
        # Copy now, before an episode opens resources in the original.
        self._donor: Env | None = _copy(self.inner) if self.inner.spec is None else None

    def replace(self, image: Image, index: int) -> Image:
        """Return another task's image.

        Raises:
            ConfigurationError: No task starts with a different image.
        """
        if self._donor is None:
            spec = self.inner.spec
            made = _copy(self.inner) if spec is None else spec.make(disable_env_checker=True)
            self._donor = cast(Env, made.unwrapped)
        for attempt in range(_ATTEMPTS):
            drawn = derive_seed("swap-image", self.seed, image.sha256, index, attempt)
            pictures = self._donor.reset(seed=drawn).observation["images"]
            task = self._donor.task  # empty in an environment without a task source
            others = [found for found in pictures if found != image]
            if others and (not task or task != self.inner.task):
                return others[drawn % len(others)]
        raise ConfigurationError(
            f"SwapImage found no other image at the start of {_ATTEMPTS} tasks of "
            f"{type(self.inner).__name__}; use BlankImage, or give the environment more tasks"
        )

    def close(self) -> None:
        """Close the environment and the second instance."""
        donor, self._donor = self._donor, None
        try:
            if donor is not None:
                donor.close()
        finally:
            super().close()  # pyright: ignore[reportUnknownMemberType]  # untyped


def _copy(env: Env) -> Env:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ConfigurationError(
            f"SwapImage needs a second {type(env).__name__}, which cannot be copied ({error!r}); "
            "make the environment by its id"
        ) from error
