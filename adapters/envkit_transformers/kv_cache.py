"""Keys and values of one session, in buffers that grow in steps and are kept between turns.

Axes: H key-value heads, C capacity in tokens, D head dimension.
"""

from typing import Final

import torch
from torch import Tensor

_SMALLEST: Final = 64
_GROWTH: Final = 1.5


class KeyValueCache:
    """Per layer two buffers of shape (H, C, D); the first `length` columns are valid."""

    __slots__ = ("_layers", "expected", "length")

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.length: int = 0
        """Tokens whose keys and values are in every layer."""
        self.expected: int = 0
        """Maximum tokens of the running request, which bounds growth."""

    @property
    def capacity(self) -> int:
        """Capacity of the buffers in tokens."""
        return max((keys.shape[1] for keys, _ in self._layers.values()), default=0)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers; 0 before the first forward."""
        return sum(
            buffer.shape[0] * buffer.shape[2] * buffer.element_size()
            for pair in self._layers.values()
            for buffer in pair
        )

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new columns (H, n, D) after the valid ones and return all of them.

        The length does not change until `advance`, so a failed forward changes nothing.
        """
        end = self.length + keys.shape[1]
        pair = self._layers.get(layer)
        if pair is None or end > pair[0].shape[1]:
            pair = self._grow(layer, end, like=(keys, values))
        pair[0][:, self.length : end] = keys
        pair[1][:, self.length : end] = values
        return pair[0][:, :end], pair[1][:, :end]

    def advance(self, count: int) -> None:
        """Mark the columns of the last forward as valid."""
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget everything after a prefix."""
        self.length = min(self.length, length)

    def drop(self) -> None:
        """Forget everything and free the memory."""
        self._layers = {}
        self.length = 0

    def copy_prefix(self, other: "KeyValueCache", length: int) -> None:
        """Replace the contents with the other cache's first columns."""
        capacity = max(length, min(self.expected, length + _SMALLEST))
        with torch.inference_mode():
            self._layers = {
                layer: (_resized(pair[0], length, capacity), _resized(pair[1], length, capacity))
                for layer, pair in other._layers.items()
            }
        self.length = length

    def _grow(
        self, layer: int, needed: int, *, like: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        old = self._layers.get(layer)
        wanted = _SMALLEST if old is None else int(_GROWTH * old[0].shape[1])
        capacity = max(needed, min(wanted, self.expected))
        source = like if old is None else old
        kept = 0 if old is None else self.length
        pair = (_resized(source[0], kept, capacity), _resized(source[1], kept, capacity))
        self._layers[layer] = pair
        return pair


def _resized(buffer: Tensor, kept: int, capacity: int) -> Tensor:
    fresh = buffer.new_empty((buffer.shape[0], capacity, buffer.shape[2]))
    fresh[:, :kept] = buffer[:, :kept]
    return fresh
