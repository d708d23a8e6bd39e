"""Results of a chat codec: two id sequences of messages, and their image tensors.

Axes: N images, P patches of one image. Wire ids hold one placeholder per image and go to an engine
together with the images; train ids hold the expanded placeholders and go to a trainer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from envkit.images import Image
from envkit.tokens.joining import CONCATENATION, Joining

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageFeatures:
    """One image as a model's processor sees it, computed once."""

    tensors: Mapping[str, NDArray[Any]]
    """The processor's per-image outputs, such as pixel_values (P, D) and image_grid_thw (1, 3)."""
    token_count: int
    """Number of tokens of the image in train ids."""
    joining: Joining = CONCATENATION
    """How the processor joins this image's tensors with those of others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Some messages as token ids.

    There is no mask: everything a codec encodes is context, mask 0.
    """

    wire_ids: tuple[int, ...]
    train_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    """In the order of their placeholders."""
    features: tuple[ImageFeatures, ...] = field(default=(), repr=False)
    """One per image, in the same order."""
    is_prompt: bool = False
    """Whether the ids start a sequence instead of extending one."""
    neutralised: int = 0
    """Number of texts in which control tokens were broken or characters replaced."""

    @cached_property
    def tensors(self) -> Tensors:
        """Tensors of all images, as from one call of the processor; empty without images."""
        return join_features(self.features)


def join_features(features: Iterable[ImageFeatures]) -> Tensors:
    """Return the tensors of several images as their processor returns them in one call.

    Raises:
        TemplateError: The images cannot be joined.
    """
    known = list(features)
    return known[0].joining.join([one.tensors for one in known]) if known else {}
