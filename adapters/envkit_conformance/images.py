"""Compare a row's images, as tensors, as images, or both."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import Row
from envkit_conformance.delivered import DeliveredRow


def image_difference(row: Row, got: DeliveredRow) -> str | None:
    """Return the first difference of a row's images, or None.

    Tensors are compared value by value if the recording has them. Without the processor's outputs,
    only the images themselves are compared.
    """
    tensors = {key: array for key, array in got.tensors.items() if np.size(array)}
    if not row.images:
        if tensors or got.images:
            what = f"tensors {sorted(tensors)}" if tensors else f"{len(got.images or ())} images"
            return f"a row without images was delivered with {what}"
        return None
    if not tensors and not got.images and (row.features or got.images is not None):
        return f"no image was delivered, expected {len(row.images)}"
    if got.images is not None:
        difference = _pictures(row.images, got.images)
        if difference is not None:
            return difference
    return _tensors(row, tensors) if tensors and row.features else None


def _pictures(expected: Sequence[Image], got: Sequence[Image]) -> str | None:
    for number, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one == other:
            continue
        text = f"image {number} is a different image"
        if other in expected:
            return f"{text}: image {list(expected).index(other)} of the row is there instead"
        return f"{text} than the recorded one"
    if len(expected) != len(got):
        return f"{len(got)} images were delivered, expected {len(expected)}"
    return None


def _tensors(row: Row, got: dict[str, NDArray[Any]]) -> str | None:
    expected = row.tensors
    if set(expected) != set(got):
        return f"tensors {sorted(got)} were delivered, expected {sorted(expected)}"
    for key, array in expected.items():
        difference = _tensor(key, array, np.asarray(got[key]), row.features)
        if difference is not None:
            return difference
    return None


def _tensor(
    key: str, expected: NDArray[Any], got: NDArray[Any], features: Sequence[ImageFeatures]
) -> str | None:
    if expected.shape != got.shape:
        text = f"tensor {key} has shape {got.shape}, expected {expected.shape}"
        return text + _count_hint(got, [feature.tensors[key] for feature in features])
    if _kind(expected) != _kind(got):
        return f"tensor {key} holds {got.dtype}, expected {expected.dtype}"
    if np.array_equal(expected, got):
        return None
    start = 0
    # name the image if images are laid out along this axis
    for number, feature in enumerate(features):
        part = feature.tensors[key]
        found = got[start : start + len(part)]
        if part.shape == found.shape and not np.array_equal(part, found):
            return f"tensor {key} differs in image {number}{_swap_hint(found, key, features)}"
        start += len(part)
    return f"tensor {key} differs"


def _count_hint(got: NDArray[Any], parts: Sequence[NDArray[Any]]) -> str:
    """Return how many images a tensor of another length holds, if it is a whole number."""
    total = 0
    for number, part in enumerate(parts):
        if total == len(got):
            return f": {number} of {len(parts)} images"
        total += len(part)
    return ""


def _swap_hint(found: NDArray[Any], key: str, features: Sequence[ImageFeatures]) -> str:
    for number, feature in enumerate(features):
        if np.array_equal(feature.tensors[key], found):
            return f": image {number} of the row is there instead"
    return ""


def _kind(array: NDArray[Any]) -> str:
    return "whole" if array.dtype.kind in "iub" else array.dtype.kind
