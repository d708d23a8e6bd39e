"""Gymnasium wrappers that change what the model sees, for ablations."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from envkit.wrappers.image_wrapper import AnyEnv, BlankImage, ImageWrapper
from envkit.wrappers.swap_image import SwapImage

__all__ = ["WRAPPERS", "BlankImage", "ImageWrapper", "SwapImage"]

WRAPPERS: Final[Mapping[str, Callable[[AnyEnv], ImageWrapper]]] = MappingProxyType(
    {"blank-image": BlankImage, "swap-image": SwapImage}
)
"""By the names that commands know them by."""
