"""Describe spaces and their values in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray
from PIL import Image as PilImage

from envkit.images import Image
from envkit_gymnasium.values import is_scalar, shape_of

_MAX_BOUNDS: Final = 32
"""Largest Box whose bounds are all listed, in entries."""
_MOST_FRAMES: Final = 8
"""Frames of a stack of grey images; a larger first side is a height."""
_SMALLEST_IMAGE: Final = 8
"""Minimum side in pixels; a smaller array of bytes counts as a table."""


def describe_space(space: Space[Any], names: Sequence[str] = ()) -> str:
    """Describe the values of a space in a phrase.

    Args:
        space: A space of actions or observations.
        names: Names of a Discrete's values 0, 1, ..., or of the entries of a list.
    """
    match space:
        case spaces.Discrete():
            return _describe_discrete(space, names)
        case spaces.Box() if is_picture(space):
            return "a picture"
        case spaces.Box() if stacked(space):
            return f"{shape_of(space)[0]} pictures, the latest last"
        case spaces.Box():
            return _describe_box(space, names)
        case spaces.MultiBinary():
            return f"a list of shape {shape_of(space)} of 0 and 1"
        case spaces.MultiDiscrete():
            return _describe_multi_discrete(space, names)
        case spaces.Text():
            return f"a text of {space.min_length} to {space.max_length} characters"
        case spaces.Tuple():
            return _describe_list([describe_space(part) for part in space.spaces], names)
        case spaces.Dict():
            parts = [f"{key!r}: {describe_space(part)}" for key, part in space.spaces.items()]
            return "an object with " + "; ".join(parts)
        case _:
            return f"a {type(space).__name__}"  # its own text may hold a memory address


def holds_picture(space: Space[Any]) -> bool:
    """Whether a value of a space has an image in it, at any depth."""
    match space:
        case spaces.Dict():
            return any(map(holds_picture, space.spaces.values()))
        case spaces.Tuple():
            return any(map(holds_picture, space.spaces))
        case _:
            return is_picture(space) or stacked(space)


def strings_in(value: Any) -> str:  # noqa: ANN401  # any observation
    """Return the strings of an observation that is an object, such as a mission, as lines."""
    if not isinstance(value, Mapping):
        return ""
    entries = cast("Mapping[str, Any]", value).items()
    return "\n".join(f"{key}: {entry}" for key, entry in entries if isinstance(entry, str))


def show_value(
    space: Space[Any],
    value: Any,  # noqa: ANN401  # whatever the space holds
    *,
    names: Sequence[str] = (),
    digits: int = 4,
) -> tuple[str, list[Image]]:
    """Return a value in words, and the images in it.

    Args:
        space: The space of the value.
        value: An element of the space.
        names: Names of the entries of a list.
        digits: Significant digits of a fraction.
    """
    images: list[Image] = []
    return _show(space, value, names, digits, images), images


def is_picture(space: Space[Any]) -> bool:
    """Whether a space holds images: bytes of shape (height, width[, 1, 3 or 4])."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    shape = shape_of(space)
    channels = shape[2] if len(shape) == 3 else 1
    sides = min(shape[:2], default=0)
    return len(shape) in (2, 3) and channels in (1, 3, 4) and sides >= _SMALLEST_IMAGE


def stacked(space: Space[Any]) -> bool:
    """Whether a space holds several images: bytes of shape (n, height, width[, 1, 3 or 4])."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or is_picture(space):
        return False
    shape = shape_of(space)
    is_colored = len(shape) == 4 and shape[3] in (1, 3, 4)
    is_stack = is_colored or (len(shape) == 3 and shape[0] <= _MOST_FRAMES)
    return is_stack and min(shape[1:3]) >= _SMALLEST_IMAGE


def picture(pixels: NDArray[np.uint8]) -> Image:
    """Return the image of an array of shape (height, width[, 1, 3 or 4])."""
    flat = pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    return Image.from_array(np.ascontiguousarray(flat))


def fitted(image: Image, *, min_side: int, max_side: int) -> Image:
    """Return an image whose longer side is of a useful length.

    Args:
        image: Any image.
        min_side: Pixels; a smaller screen is enlarged by a whole factor to about this length.
        max_side: Pixels; a larger screen is scaled down to this length.
    """
    longer = max(image.size)
    factor: float = max(1, round(min_side / longer))
    way = PilImage.Resampling.NEAREST
    if longer * factor > max_side:
        factor, way = max_side / longer, PilImage.Resampling.LANCZOS
    if factor == 1:
        return image
    width, height = (max(1, round(side * factor)) for side in image.size)
    return Image.from_pil(image.pil().resize((width, height), way))


def _show(
    space: Space[Any],
    value: Any,  # noqa: ANN401  # as above
    names: Sequence[str],
    digits: int,
    images: list[Image],
) -> str:
    if is_picture(space):
        images.append(picture(np.asarray(value, dtype=np.uint8)))
        return f"[image {len(images)}]"
    if stacked(space):
        frames = np.asarray(value, dtype=np.uint8)
        images += map(picture, frames)
        return f"[images {len(images) - len(frames) + 1} to {len(images)}, the latest last]"
    match space:
        case spaces.Tuple():
            pairs = zip(space.spaces, value, strict=True)
            return _named([_show(part, entry, (), digits, images) for part, entry in pairs], names)
        case spaces.Dict():
            shown = {
                key: _show(part, value[key], (), digits, images)
                for key, part in space.spaces.items()
            }
            return "\n".join(f"{key}: {text}" for key, text in shown.items())
        case spaces.Graph() | spaces.Sequence() | spaces.OneOf():
            return str(value)
        case _:
            return _show_plain(value, names, digits)


def _show_plain(value: Any, names: Sequence[str], digits: int) -> str:  # noqa: ANN401  # any value
    plain: Any = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(plain, list):
        entries = cast("list[Any]", plain)
        if len(entries) == len(names):
            return _named([_number(entry, digits) for entry in entries], names)
    return _number(plain, digits)


def _number(value: Any, digits: int) -> str:  # noqa: ANN401  # any value
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        separator = ",\n " if entries and isinstance(entries[0], list) else ", "
        return "[" + separator.join(_number(entry, digits) for entry in entries) + "]"
    if isinstance(value, float):
        return f"{value + 0.0:.{digits}g}"  # + 0.0 turns -0.0 into 0.0
    return str(value)


def _named(entries: Sequence[str], names: Sequence[str]) -> str:
    if len(entries) != len(names):
        return "[" + ", ".join(entries) + "]"
    return "\n".join(f"{name}: {entry}" for name, entry in zip(names, entries, strict=True))


def _describe_discrete(space: spaces.Discrete, names: Sequence[str]) -> str:
    first, count = int(space.start), int(space.n)
    if len(names) == count:
        return "one of " + ", ".join(f"{name} ({first + n})" for n, name in enumerate(names))
    return f"an integer from {first} to {first + count - 1}"


def _describe_box(space: spaces.Box, names: Sequence[str]) -> str:
    noun = "an integer" if np.issubdtype(space.dtype, np.integer) else "a number"
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if is_scalar(space):
        return f"{noun} {_bounds(low[0], high[0])}"
    shape = shape_of(space)
    if len(shape) == 1 and shape[0] <= _MAX_BOUNDS and (len(set(zip(low, high, strict=True))) > 1):
        parts = [f"{noun} {_bounds(*pair)}" for pair in zip(low, high, strict=True)]
        return _describe_list(parts, names)
    size = f"{shape[0]}" if len(shape) == 1 else f"shape {shape}"
    return f"a list of {size} numbers, each {_bounds(low.min(), high.max())}"


def _describe_multi_discrete(space: spaces.MultiDiscrete, names: Sequence[str]) -> str:
    if space.nvec.ndim != 1:
        return f"a list of shape {shape_of(space)} of integers below {space.nvec.tolist()}"
    pairs = zip(space.start.tolist(), space.nvec.tolist(), strict=True)
    parts = [f"an integer from {first} to {first + count - 1}" for first, count in pairs]
    return _describe_list(parts, names)


def _describe_list(parts: Sequence[str], names: Sequence[str]) -> str:
    if len(names) == len(parts):
        parts = [f"{name}, {part}" for name, part in zip(names, parts, strict=True)]
    return f"a list of {len(parts)}: " + "; ".join(parts)


def _bounds(low: Any, high: Any) -> str:  # noqa: ANN401  # NumPy's numbers
    if math.isinf(low) or math.isinf(high) or max(abs(low), abs(high)) > 1e30:
        return "of any size"
    return f"from {low:g} to {high:g}"
