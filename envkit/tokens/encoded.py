"""What a chat codec returns: the two id sequences of some messages and their image tensors.

Axes: N images, P patches of one image. Wire ids hold one placeholder per image and go to an engine
together with the pictures; train ids hold the expanded placeholders and go to a trainer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envkit.images import Image

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageFeatures:
    """One image as a model's processor sees it, computed once."""

    tensors: Mapping[str, NDArray[Any]]
    """The processor's per-image outputs, such as pixel_values (P, D) and image_grid_thw (1, 3)."""
    token_count: int
    """How many placeholder tokens the image becomes in train ids."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Some messages as token ids.

    Masks are not here: everything a codec encodes is context, mask 0.
    """

    wire_ids: tuple[int, ...]
    train_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    """In the order of their placeholders."""
    features: tuple[ImageFeatures, ...] = field(default=(), repr=False)
    """One per image, in the same order."""
    is_prompt: bool = False
    """Whether the ids start a sequence instead of extending one."""

    @cached_property
    def tensors(self) -> Tensors:
        """The features of all images, concatenated once per key; empty without images."""
        return concatenate(self.features)


def concatenate(features: Iterable[ImageFeatures]) -> Tensors:
    """Join per-image tensors along their first axis, one concatenation per key."""
    columns: dict[str, list[NDArray[Any]]] = {}
    for feature in features:
        for key, value in feature.tensors.items():
            columns.setdefault(key, []).append(value)
    return {key: np.concatenate(parts) for key, parts in columns.items()}
