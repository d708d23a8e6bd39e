"""Strict JSON for the free-form parts of a record: tasks, infos, messages, an engine's extras.

JSON cannot represent images, bytes, arrays, infinities or keys other than strings. Such a value
becomes an object with one tagged key, so it reads back unchanged::

    {"$image": sha256}   {"$float": "nan"}   {"$bytes": base64}   {"$array": [dtype, shape, base64]}
    {"$pairs": [[key, value], ...]}   for mappings whose keys are not strings or look like a tag

Two types change: a tuple reads back as a list, and a NumPy scalar as a Python number.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from envkit.errors import StorageError
from envkit.images import Image

TAG: Final = "$"

Keep = Callable[[Image], None]
"""Called with every image that is written by reference."""
Find = Callable[[str], Image]
"""Returns the image with a given hash."""

MAX_DEPTH: Final = 100
"""Maximum nesting of lists and objects; readers hit their recursion limit near 300."""
MAX_VALUES: Final = 10_000_000
"""Maximum number of values in one free-form part; nested shared objects can expand endlessly."""

_CHUNK: Final = 1 << 13
"""Values per call of the C encoder, which holds the GIL for a few milliseconds."""
_CHARACTERS: Final = 1 << 20
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""ASCII escapes keep a record on one line even if a model emits unusual line breaks, and can
represent lone surrogates."""
_CONTAINERS: Final = frozenset({list, dict})
_PLAIN_TYPES: Final = frozenset({type(None), bool, str})
_TEXT: Final = frozenset({str})
_SMALL: Final = 1 << 63
"""Smaller integers need no check of their bit length."""

# JSON values are foreign data on both sides of this file, hence Any.


def to_plain(value: Any, where: str, keep: Keep) -> Any:  # noqa: ANN401
    """Return the value as strict JSON data.

    Args:
        value: Data from an environment, an engine or a caller.
        where: Its place in the record, for the error, such as "turns[2].info".
        keep: Called with every image, which is written by reference.

    Raises:
        StorageError: The value is neither JSON data nor of a type in the module's table, or it is
            nested too deeply or too large.
    """
    return value if _is_scalar(value) else _Plain(keep).convert(value, where, 0)


def check_plain(value: Any, where: str) -> None:  # noqa: ANN401
    """Check that `to_plain` accepts the value; fast if nothing is nested.

    Args:
        value: As for `to_plain`.
        where: As for `to_plain`.

    Raises:
        StorageError: As for `to_plain`.
    """
    if type(value) is not dict or not _is_flat(cast("dict[object, object]", value)):
        to_plain(value, where, lambda _: None)


def _is_flat(entries: dict[object, object]) -> bool:
    """Whether nothing is nested and everything is certainly JSON data."""
    for key, item in entries.items():
        if type(key) is not str:
            return False
        is_empty = type(item) in _CONTAINERS and not item
        if not (_is_scalar(item) or type(item) is float or is_empty):
            return False
    return True


def from_plain(value: Any, where: str, image: Find, depth: int = 0) -> Any:  # noqa: ANN401
    """Return the value that `to_plain` converted.

    Args:
        value: JSON data.
        where: Its place in the record, for the error.
        image: Returns the image with a given hash.
        depth: How many lists and objects hold the value.

    Raises:
        StorageError: An object has an unknown tag or an invalid value for it, or the value is
            nested too deeply, so that `to_plain` would not have written it.
    """
    if not isinstance(value, list | dict):
        return value
    if depth >= MAX_DEPTH:
        raise _too_deep(where)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [from_plain(item, f"{where}[{n}]", image, depth + 1) for n, item in enumerate(items)]
    entries = cast("dict[str, Any]", value)
    if len(entries) == 1 and next(iter(entries)).startswith(TAG):
        tag, content = next(iter(entries.items()))
        try:
            return _untag(tag, content, where, image, depth)
        except (TypeError, ValueError, KeyError, binascii.Error) as error:
            raise StorageError(f"{where} has an invalid {tag!r} value: {error}") from error
    return {
        key: from_plain(item, f"{where}.{key}", image, depth + 1) for key, item in entries.items()
    }


def is_untagged(value: Any, depth: int) -> bool:  # noqa: ANN401
    """Whether `from_plain` returns the value as it is: nothing is tagged or nested too deeply.

    Args:
        value: JSON data.
        depth: As for `from_plain`.
    """
    if type(value) not in _CONTAINERS:
        return True
    if depth >= MAX_DEPTH:
        return False
    items: Any = value
    if type(value) is dict:
        if len(items) == 1 and next(iter(items)).startswith(TAG):
            return False
        items = items.values()
    if not _CONTAINERS.isdisjoint(map(type, items)):
        for item in items:  # a loop, since most have a few items
            if type(item) in _CONTAINERS and not is_untagged(item, depth + 1):
                return False
    return True


def _too_deep(where: str) -> StorageError:
    return StorageError(f"{where[:80]}... can be nested at most {MAX_DEPTH} levels deep, got more")


def detached(value: Any) -> Any:  # noqa: ANN401
    """Return the value with dicts and lists that nothing else holds; what they contain is shared.

    Args:
        value: A free-form part of a record.
    """
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return {key: detached(item) for key, item in entries.items()}
    if isinstance(value, list):
        return [detached(item) for item in cast("list[Any]", value)]
    if type(value) is tuple:
        return tuple(detached(item) for item in cast("tuple[Any, ...]", value))
    return value


def plain_float(value: float) -> float | dict[str, str]:
    """Return a float as strict JSON data."""
    return value if math.isfinite(value) else {"$float": float.__repr__(value)}


def plain_number(value: Any) -> Any:  # noqa: ANN401
    """Return a Python or NumPy number as strict JSON data, and anything else unchanged."""
    number = value
    if isinstance(value, np.floating):
        number = float(cast("Any", value))
    elif isinstance(value, np.integer | np.bool_):
        number = cast("Any", value).item()
    return plain_float(number) if isinstance(number, float) else number


def json_text(value: Mapping[str, Any], where: str) -> str:
    """Return free-form data as JSON text, with images by hash as in trajectory files.

    Args:
        value: The data.
        where: Its name, for the error.

    Raises:
        StorageError: JSON cannot represent it.
    """
    return json.dumps(to_plain(value, where, lambda _: None), sort_keys=True)


def json_chunks(value: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield strict, compact JSON text in parts that each block other threads only briefly.

    The joined parts equal the output of `json.dumps`.

    Args:
        value: Strict JSON data.
    """
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if _is_small(entries.values()):
            yield _ENCODER.encode(entries)
            return
        opening = "{"
        for key, item in entries.items():
            yield f"{opening}{_ENCODER.encode(key)}:"
            yield from json_chunks(item)
            opening = ","
        yield "}"
    elif isinstance(value, list):
        yield from _list_chunks(cast("list[Any]", value))
    elif isinstance(value, str) and len(value) > _CHARACTERS:
        parts = (value[n : n + _CHARACTERS] for n in range(0, len(value), _CHARACTERS))
        yield f'"{"".join(_ENCODER.encode(part)[1:-1] for part in parts)}"'
    else:
        yield _ENCODER.encode(value)


def _list_chunks(values: list[Any]) -> Iterator[str]:
    if _is_small(values):
        yield _ENCODER.encode(values)
        return
    opening = "["
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        if _is_small(part):
            yield opening + _ENCODER.encode(part)[1:-1]
            opening = ","
            continue
        for item in part:
            yield opening
            yield from json_chunks(item)
            opening = ","
    yield "]"


_MAX_BITS: Final = 4096
"""Other languages reject far shorter integers; Python refuses to parse 4,300 digits or more."""


def _is_small(values: Any) -> bool:  # noqa: ANN401  # a sized iterable of JSON data
    """Whether one call may write them: few values, nothing nested, and no long strings."""
    if len(values) > _CHUNK or not _CONTAINERS.isdisjoint(map(type, values)):
        return False
    return all(len(value) <= _CHARACTERS for value in values if type(value) is str)


class _Plain:
    """Converts one value and counts its parts."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._values = 0

    def convert(self, value: Any, where: str, depth: int) -> Any:  # noqa: ANN401
        if type(value) in _PLAIN_TYPES or isinstance(value, str):
            return value
        if isinstance(value, dict):  # before types that are slower to check
            entries = cast("dict[Any, Any]", value)
            self._count(len(entries), where, depth)
            return self._mapping(entries, where, depth + 1)
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise StorageError(
                f"{where} can only hold integers of at most {_MAX_BITS} bits, got one of "
                f"{value.bit_length()} bits"
            )
        if isinstance(value, int | float | np.integer | np.floating | np.bool_):
            return plain_number(value)
        if isinstance(value, Image):
            self._keep(value)
            return {"$image": value.sha256}
        if isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            self._count(len(items), where, depth)
            return [
                item if _is_scalar(item) else self.convert(item, f"{where}[{n}]", depth + 1)
                for n, item in enumerate(items)
            ]
        if isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value)
            self._count(len(entries), where, depth)
            return self._mapping(entries, where, depth + 1)
        if isinstance(value, bytes | bytearray):
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        if isinstance(value, np.ndarray):
            return _array(cast("NDArray[Any]", value), where)
        raise StorageError(
            f"{where} must be JSON data, bytes, an array or an image to be stored, "
            f"got {type(value).__name__}; convert it where it is created"
        )

    def _count(self, number: int, where: str, depth: int) -> None:
        self._values += number
        if depth >= MAX_DEPTH:
            raise _too_deep(where)
        if self._values > MAX_VALUES:
            raise StorageError(
                f"a free-form part of a record can have at most {MAX_VALUES} values, got more at "
                f"{where}"
            )

    def _mapping(self, entries: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        # Almost all keys are exactly strings, and a set compares their types without a loop.
        is_text = {*map(type, entries)} <= _TEXT or all(isinstance(key, str) for key in entries)
        if is_text and not (len(entries) == 1 and next(iter(entries)).startswith(TAG)):
            return {  # most items need no conversion, for which a call and a place cost much
                key: item if _is_scalar(item) else self.convert(item, f"{where}.{key}", depth)
                for key, item in entries.items()
            }
        pairs: list[list[Any]] = []
        for key, item in entries.items():
            _check_key(key, where)
            plain = self.convert(key, f"{where} key", depth)
            place = f"{where}.{key}" if isinstance(key, str) else f"{where}[{len(pairs)}]"
            pairs.append([plain, self.convert(item, place, depth)])
        return {"$pairs": pairs}


def _is_scalar(value: Any) -> bool:  # noqa: ANN401
    """Whether strict JSON has the value as it is."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is float:
        return math.isfinite(value)
    return kind in _PLAIN_TYPES or (kind is int and -_SMALL < value < _SMALL)


def _check_key(key: object, where: str) -> None:
    """Check that a key can be read back: lists and objects cannot be keys."""
    if isinstance(key, tuple):
        for part in cast("tuple[Any, ...]", key):
            _check_key(part, where)
    elif not (key is None or isinstance(key, str | bytes | int | float | np.number | np.bool_)):
        raise StorageError(
            f"{where} can only have keys that are strings, numbers, bytes or tuples of these, "
            f"got one of type {type(key).__name__}"
        )


def _array(value: NDArray[Any], where: str) -> dict[str, list[Any]]:
    if value.dtype.hasobject or not value.dtype.itemsize:
        raise StorageError(f"{where} must be an array of numbers, got an array of objects")
    payload = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
    return {"$array": [value.dtype.str, list(value.shape), payload]}


def _untag(tag: str, content: Any, where: str, image: Find, depth: int) -> Any:  # noqa: ANN401
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
        pairs = ((from_plain(key, f"{where} key", image, depth + 1), item) for key, item in content)
        return {
            _key(key): from_plain(item, f"{where}.{key}", image, depth + 1) for key, item in pairs
        }
    raise StorageError(f"{where} has the unknown tag {tag!r}; a newer envkit may have written it")


def _key(key: Any) -> Any:  # noqa: ANN401
    """Return the original key; a list in JSON was a tuple."""
    if isinstance(key, list):
        return tuple(_key(part) for part in cast("list[Any]", key))
    return key
