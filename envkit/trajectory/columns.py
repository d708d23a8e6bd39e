"""The columns of a segment: typed arrays that read as tuples of Python numbers.

Each id takes 4 bytes, or 8 if any id of the column is 2**31 or more. Each log-probability takes 4
bytes, or 8 if single precision would change any value of the column. A column therefore reads back
as exactly the recorded numbers. A column that follows from the segment's kind takes no space.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from envkit.errors import LedgerFault

T = TypeVar("T", int, float)
Packed = NDArray[Any]
"""A read-only array: int32 or int64, float32 or float64, int8 for masks."""

_FLOATS: Final[frozenset[type]] = frozenset({float})


class Column(Generic[T]):
    """A dataclass field that packs its values when set and returns a tuple when read."""

    def __init__(
        self,
        pack: Callable[[Sequence[T]], Packed],
        implied: Callable[[Any], tuple[T, ...]] | None = None,
    ) -> None:
        """Choose how values are stored.

        Args:
            pack: Converts the values to an array.
            implied: Computes the column of an object that stores None for it; None if the column is
                always given.
        """
        self._pack, self._implied = pack, implied
        self.slot = ""
        """The attribute that holds the array."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.slot = f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> None: ...

    @overload
    def __get__(self, instance: object, owner: type) -> tuple[T, ...]: ...

    def __get__(self, instance: object | None, owner: type) -> tuple[T, ...] | None:
        if instance is None:  # the dataclass reads the default of its field
            if self._implied is None:
                raise AttributeError(self.slot[1:])
            return None
        packed: Packed | None = getattr(instance, self.slot)
        if packed is None and self._implied is not None:
            return self._implied(instance)
        return tuple(packed.tolist()) if packed is not None else ()

    def __set__(self, instance: object, value: Sequence[T] | None) -> None:
        if value is None and self._implied is not None:
            packed = None
        else:
            packed = self._pack(() if value is None else value)
        instance.__dict__[self.slot] = packed


def packed_ids(ids: Sequence[int]) -> Packed:
    """Return ids in 32 bits each, or 64 if one needs them.

    Raises:
        LedgerFault: A value is not an integer of at most 64 bits.
    """
    # A copy, because bytes would be read as memory.
    numbers = cast("list[int]", ids) if type(ids) is list else [*ids]
    try:
        try:
            return _owned(array("i", numbers), np.intc)
        except OverflowError:
            return _owned(array("q", numbers), np.int64)
    except (TypeError, OverflowError) as error:
        raise LedgerFault(f"token ids must be integers of at most 64 bits: {error}") from error


def _owned(numbers: "array[int]", dtype: type[np.signedinteger[Any]]) -> Packed:
    """Return a copy: a view would keep the array and two objects more, 1.5 bytes per token."""
    return _frozen(np.frombuffer(numbers, dtype).copy())


def packed_mask(mask: Sequence[int]) -> Packed:
    """Return a loss mask, one byte per value.

    Raises:
        LedgerFault: A value is neither 0 nor 1.
    """
    values = set(mask)
    if not values <= {0, 1}:
        raise LedgerFault(f"loss masks must be 0 or 1, got {sorted(values)}")
    return _frozen(np.array(mask, np.int8))


def packed_logprobs(values: Sequence[float]) -> Packed:
    """Return log-probabilities in single precision if that is lossless, else in double.

    It is lossless for engines that compute in single precision.

    Raises:
        LedgerFault: A value is not a number.
    """
    try:
        if not set(map(type, values)) <= _FLOATS:
            values = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise LedgerFault(f"log-probabilities must be numbers: {error}") from error
    exact = np.array(values, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        single = exact.astype(np.float32)
    return _frozen(single if (single == exact).all() else exact)


def _frozen(packed: Packed) -> Packed:
    packed.setflags(write=False)
    return packed
