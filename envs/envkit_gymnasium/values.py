"""Read and write values of Gymnasium's spaces as JSON, with their schema.

| space | JSON |
| --- | --- |
| Discrete | an integer, or a name if names are given |
| Box | a number if it holds one, else nested lists of numbers |
| MultiBinary, MultiDiscrete | nested lists of integers |
| Text | a string |
| Tuple, Dict | a list, an object |

Other spaces are not supported.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from envkit.errors import ConfigurationError

_SHOWN: Final = 80
_PLAYED: Final = (
    spaces.Discrete,
    spaces.Box,
    spaces.MultiBinary,
    spaces.MultiDiscrete,
    spaces.Text,
    spaces.Tuple,
    spaces.Dict,
)


class NoValue(Exception):  # a sentence for the model, not a failure
    """A JSON value is not in the space; the argument is a sentence that says why."""


def check_playable(space: Space[Any]) -> None:
    """Reject a space whose values cannot be written as JSON.

    Raises:
        ConfigurationError: It, or a part of it, is not supported.
    """
    if not isinstance(space, _PLAYED):
        kinds = ", ".join(kind.__name__ for kind in _PLAYED)
        raise ConfigurationError(
            f"actions must be of a space of {kinds}, got {type(space).__name__}; "
            "put a wrapper such as gymnasium.wrappers.TransformAction around the environment"
        )
    for part in _parts(space):
        check_playable(part)


def json_schema(space: Space[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a space's values."""
    match space:
        case spaces.Discrete():
            first = int(space.start)
            return {"type": "integer", "minimum": first, "maximum": first + int(space.n) - 1}
        case spaces.Box() if is_scalar(space):
            return _number_schema(space)
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete():
            return _list_schema(shape_of(space), _number_schema(space))
        case spaces.Text():
            return {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
        case spaces.Tuple():
            parts = [json_schema(part) for part in space.spaces]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        case spaces.Dict():
            return {
                "type": "object",
                "properties": {key: json_schema(part) for key, part in space.spaces.items()},
                "required": list(space.spaces),
                "additionalProperties": False,
            }
        case _:
            raise ConfigurationError(f"a {type(space).__name__} has no JSON form")


def read_value(space: Space[Any], value: object) -> Any:  # noqa: ANN401  # the space's own type
    """Return the element of a space that a JSON value means.

    Numbers may be written as strings, because some tool-call formats only have strings.

    Raises:
        NoValue: The value is not in the space.
    """
    match space:
        case spaces.Discrete():
            return _read_discrete(space, value)
        case spaces.Text():
            if not isinstance(value, str):
                raise NoValue(f"it must be a string, got {_shown(value)}")
            element: Any = value
        case spaces.Tuple():
            entries = _list(value, len(space.spaces))
            pairs = zip(space.spaces, entries, strict=True)
            element = tuple(read_value(part, entry) for part, entry in pairs)
        case spaces.Dict():
            element = _read_dict(space, value)
        case _:
            element = _read_array(space, value)
    if not space.contains(element):
        raise NoValue(f"it must be in {_range(space)}, got {_shown(value)}")
    return element


def write_value(space: Space[Any], value: Any) -> Any:  # noqa: ANN401  # any space's value; JSON
    """Return an element of a space as JSON data; numbers keep all their digits."""
    match space:
        case spaces.Tuple():
            pairs = zip(space.spaces, value, strict=True)
            return [write_value(part, entry) for part, entry in pairs]
        case spaces.Dict():
            return {key: write_value(part, value[key]) for key, part in space.spaces.items()}
        case spaces.Box() if is_scalar(space):
            return np.asarray(value).reshape(-1)[0].item()
        case _:
            return plain_json(value)


def plain_json(value: Any) -> Any:  # noqa: ANN401  # any value; JSON
    """Return JSON data for values that environments return, including NumPy scalars and arrays.

    Raises:
        TypeError: It has no JSON form, like NaN and infinity.
    """
    if isinstance(value, np.ndarray | np.generic):
        return plain_json(value.tolist())  # pyright: ignore[reportUnknownMemberType]  # NumPy's
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, Any]", value).items()
        return {str(key): plain_json(entry) for key, entry in entries}
    if isinstance(value, list | tuple):
        return [plain_json(entry) for entry in cast("Sequence[Any]", value)]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise TypeError(f"no JSON form for {type(value).__name__}")


def is_scalar(space: Space[Any]) -> bool:
    """Whether the space is a Box with a single number in it."""
    return isinstance(space, spaces.Box) and int(np.prod(space.shape)) == 1


def shape_of(space: Space[Any]) -> tuple[int, ...]:
    """Return the shape of a space; empty for one without."""
    return tuple(int(size) for size in space.shape or ())


def _parts(space: Space[Any]) -> Sequence[Space[Any]]:
    if isinstance(space, spaces.Tuple):
        return tuple(space.spaces)
    return tuple(space.spaces.values()) if isinstance(space, spaces.Dict) else ()


def _number_schema(space: Space[Any]) -> dict[str, Any]:
    if not isinstance(space, spaces.Box):
        return {"type": "integer"}
    schema: dict[str, Any] = {
        "type": "integer" if np.issubdtype(space.dtype, np.integer) else "number"
    }
    low, high = float(space.low.min()), float(space.high.max())
    if math.isfinite(low):
        schema["minimum"] = low
    if math.isfinite(high):
        schema["maximum"] = high
    return schema


def _list_schema(shape: tuple[int, ...], entry: dict[str, Any]) -> dict[str, Any]:
    schema = entry
    for size in reversed(shape):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    return schema


def _read_discrete(space: spaces.Discrete, value: object) -> Any:  # noqa: ANN401  # NumPy's integer
    first, last = int(space.start), int(space.start) + int(space.n) - 1
    number = _number(value)
    if not number.is_integer() or not first <= number <= last:
        raise NoValue(f"it must be an integer from {first} to {last}, got {_shown(value)}")
    return space.dtype.type(int(number)) if hasattr(space.dtype, "type") else int(number)


def _read_dict(space: spaces.Dict, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise NoValue(f"it must be an object, got {_shown(value)}")
    given = cast("Mapping[str, object]", value)
    if set(given) != set(space.spaces):
        raise NoValue(f"it must have the keys {sorted(space.spaces)}, got {sorted(given)!r:.80}")
    return {key: read_value(part, given[key]) for key, part in space.spaces.items()}


def _read_array(space: Space[Any], value: object) -> NDArray[Any]:
    shape = shape_of(space)
    numbers: list[float] = []
    if is_scalar(space) and not isinstance(value, list):
        numbers.append(_number(value))
    else:
        _flatten(value, shape, numbers)
    element = np.array(numbers, dtype=np.float64).reshape(shape)
    if np.issubdtype(space.dtype, np.integer):
        if not np.array_equal(element, np.trunc(element)):
            raise NoValue(f"it must hold whole numbers, got {_shown(value)}")
        if np.abs(element).max(initial=0) > 2**53:
            raise NoValue(f"its numbers are too large, got {_shown(value)}")
        limits = np.iinfo(cast(Any, space.dtype))
        if element.size and (element.min() < limits.min or element.max() > limits.max):
            raise NoValue(f"it must be in {_range(space)}, got {_shown(value)}")
    with np.errstate(over="ignore"):  # a value that overflows the dtype is out of range
        return element.astype(space.dtype)


def _flatten(value: object, shape: tuple[int, ...], into: list[float]) -> None:
    if not shape:
        into.append(_number(value))
        return
    for entry in _list(value, shape[0]):
        _flatten(entry, shape[1:], into)


def _list(value: object, size: int) -> list[object]:
    if not isinstance(value, list) or len(cast("list[object]", value)) != size:
        raise NoValue(f"it must be a list of {size}, got {_shown(value)}")
    return cast("list[object]", value)


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise NoValue(f"it must be a number, got {_shown(value)}")
    return number


def _range(space: Space[Any]) -> str:
    if isinstance(space, spaces.Box):
        return f"the bounds {space.low.min():g} to {space.high.max():g}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"the ranges that begin at {space.start.tolist()} and have {space.nvec.tolist()}"
    return str(space)[:_SHOWN]


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN]
