"""Strict JSON for the free-form parts of a record: tasks, infos, messages, an engine's extras.

JSON has no image, no bytes, no array, no infinity and no key but text. Such a value is written as
an object with one tagged key, so that it comes back as it was::

    {"$image": sha256}   {"$float": "nan"}   {"$bytes": base64}   {"$array": [dtype, shape, base64]}
    {"$pairs": [[key, value], ...]}   for mappings with keys that are no text or look like a tag

Two things change: a tuple comes back as a list and a NumPy scalar as a Python number.
"""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from envkit.errors import StorageError
from envkit.images import Image

TAG: Final = "$"

# JSON values are foreign data on both sides of this file, hence Any.


def to_plain(value: Any, where: str, keep: Callable[[Image], None]) -> Any:  # noqa: ANN401
    """Return the value as strict JSON data.

    Args:
        value: What an environment, an engine or a caller put into a record.
        where: Its place in the record, for the error, such as "turns[2].info".
        keep: Called with every image, which is written by reference.

    Raises:
        StorageError: A value that is no JSON data and none of the types of the module's table.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return _number(value)
    if isinstance(value, Image):
        keep(value)
        return {"$image": value.sha256}
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        return [to_plain(item, f"{where}[{n}]", keep) for n, item in enumerate(items)]
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[Any, Any]", value), where, keep)
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        return _array(cast("NDArray[Any]", value), where)
    raise StorageError(
        f"{where} must be JSON data, bytes, an array or an image to be stored, "
        f"got {type(value).__name__}: {value!r:.80}; convert it where it is made"
    )


def from_plain(value: Any, where: str, image: Callable[[str], Image]) -> Any:  # noqa: ANN401
    """Return what `to_plain` was given.

    Args:
        value: JSON data.
        where: Its place in the record, for the error.
        image: Gives the image of a hash.

    Raises:
        StorageError: An object with an unknown or broken tag.
    """
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [from_plain(item, f"{where}[{n}]", image) for n, item in enumerate(items)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    if len(entries) == 1 and next(iter(entries)).startswith(TAG):
        tag, content = next(iter(entries.items()))
        try:
            return _untag(tag, content, where, image)
        except (TypeError, ValueError, KeyError, binascii.Error) as error:
            raise StorageError(f"{where} has a broken {tag!r} value: {error}") from error
    return {key: from_plain(item, f"{where}.{key}", image) for key, item in entries.items()}


def plain_float(value: float) -> float | dict[str, str]:
    """Return a float as strict JSON data."""
    return value if math.isfinite(value) else {"$float": repr(value)}


def _number(value: Any) -> Any:  # noqa: ANN401
    number: Any = cast("Any", value).item() if isinstance(value, np.generic) else value
    return plain_float(number) if isinstance(number, float) else number


def _mapping(value: Mapping[Any, Any], where: str, keep: Callable[[Image], None]) -> Any:  # noqa: ANN401
    def item(key: Any) -> Any:  # noqa: ANN401
        return to_plain(value[key], f"{where}.{key}", keep)

    looks_like_tag = len(value) == 1 and str(next(iter(value))).startswith(TAG)
    if all(isinstance(key, str) for key in value) and not looks_like_tag:
        return {key: item(key) for key in value}
    return {"$pairs": [[to_plain(key, f"{where} key", keep), item(key)] for key in value]}


def _array(value: NDArray[Any], where: str) -> dict[str, list[Any]]:
    if value.dtype.hasobject:
        raise StorageError(f"{where} must hold numbers to be stored, got an array of objects")
    payload = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
    return {"$array": [value.dtype.str, list(value.shape), payload]}


def _untag(tag: str, content: Any, where: str, image: Callable[[str], Image]) -> Any:  # noqa: ANN401
    if tag == "$image":
        return image(content)
    if tag == "$float":
        return float(content)
    if tag == "$bytes":
        return base64.b64decode(content, validate=True)
    if tag == "$array":
        dtype, shape, payload = content
        data = base64.b64decode(payload, validate=True)
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    if tag == "$pairs":
        pairs = ((from_plain(key, f"{where} key", image), item) for key, item in content)
        return {key: from_plain(item, f"{where}.{key}", image) for key, item in pairs}
    raise StorageError(f"{where} has the unknown tag {tag!r}; a newer envkit may have written it")
