"""Attention over one packed row: every session attends only to its own keys and values.

A forward of the engine has one row of T tokens: a decode token of every running session and chunks
of prompts. There is no padding or mask; each segment attends separately to its session's cache.
Segments are thread-local, so two engines in one process do not interfere, and a forward without
segments (a trainer's, on the same model) is plain SDPA.

Axes: T tokens of the row, Q query heads, H key-value heads, D head dimension, L keys of a session.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that everybody knows it by
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from envkit.errors import ConfigurationError
from envkit_transformers.kv_cache import KeyValueCache

NAME: Final = "envkit_packed"
_UNSUPPORTED: Final = ("softcap", "s_aux", "position_bias")


@dataclass(eq=False, slots=True)
class Segment:
    """Columns [start, stop) of the packed row belong to the session of this cache."""

    cache: KeyValueCache
    start: int
    stop: int
    _masks: dict[int | None, Tensor] = field(default_factory=dict[int | None, Tensor])

    def mask(self, queries: Tensor, total: int, window: int | None, groups: int) -> Tensor:
        """Return what to add to the scores, (groups * n, total), built once per forward.

        The n queries of every head in a group are stacked.
        """
        if window not in self._masks:
            count = self.stop - self.start
            seen = torch.ones(count, total, dtype=torch.bool, device=queries.device)
            seen = seen.tril(total - count)
            if window is not None:
                seen = seen.triu(total - count - window + 1)
            added = queries.new_zeros((count, total)).masked_fill(~seen, float("-inf"))
            self._masks[window] = added.repeat(groups, 1)
        return self._masks[window]


class _ThreadState(threading.local):
    segments: Sequence[Segment] | None = None


_STATE: Final = _ThreadState()


_LOCK: Final = threading.RLock()  # an engine may be garbage-collected while this is held
_USERS: Final[dict[int, list[str]]] = {}
"""By configuration: one entry per engine that uses it, each with the attention before the first
one."""


def use_packed_attention(text_config: Any) -> Callable[[], None]:  # noqa: ANN401
    """Switch a text model to this attention and return the function that switches back.

    Several engines may run one model: the last one to close switches back.
    """
    key = id(text_config)
    with _LOCK:
        users = _USERS.setdefault(key, [])
        users.append(users[0] if users else text_config._attn_implementation)
        text_config._attn_implementation = NAME

    def restore() -> None:
        with _LOCK:
            before = users.pop()
            if not users:
                text_config._attn_implementation = before
                del _USERS[key]

    return restore


@contextmanager
def packed_row(segments: Sequence[Segment]) -> Generator[None]:
    """Run this thread's forwards inside the block as packed ones."""
    _STATE.segments = segments
    try:
        yield
    finally:
        _STATE.segments = None


def _packed_attention(
    module: Any,  # noqa: ANN401  # an attention module of any model
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,  # noqa: ANN401  # whatever the model passes on
) -> tuple[Tensor, None]:
    """Attend; query is (1, Q, T, D), key and value are (1, H, T, D), already rotated."""
    segments = _STATE.segments
    if segments is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
    for name in _UNSUPPORTED:
        if rest.get(name) is not None:
            raise ConfigurationError(
                f"the embedded engine does not implement this model's attention option {name!r}; "
                "serve the model with SGLang or vLLM"
            )
    output = query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))
    for segment in segments:
        columns = slice(segment.start, segment.stop)
        keys, values = segment.cache.extend(
            module.layer_idx, key[0, :, columns], value[0, :, columns]
        )
        queries = query[0, :, columns]
        if segment.stop - segment.start == 1:
            output[0, segment.start] = _decode(queries, keys, values, scaling, sliding_window)
        else:
            output[0, columns] = _chunk(segment, queries, keys, values, scaling, sliding_window)
    return output, None


def _decode(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Attend with one token, (Q, D): the heads of a group become the query axis, unmasked."""
    if window is not None:
        keys, values = keys[:, -window:], values[:, -window:]
    heads = keys.shape[0]
    folded = queries.reshape(heads, -1, queries.shape[-1])
    return F.scaled_dot_product_attention(
        folded[None], keys[None], values[None], scale=scaling
    ).reshape(queries.shape[0], -1)


def _chunk(
    segment: Segment,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Attend with a chunk of a prompt, (n, Q, D)."""
    heads, count, total = keys.shape[0], queries.shape[1], keys.shape[1]
    groups = queries.shape[0] // heads
    if window is not None and total <= window:
        window = None
    if count == total and window is None:
        if groups > 1:
            keys = keys.repeat_interleave(groups, dim=0)
            values = values.repeat_interleave(groups, dim=0)
        attended = F.scaled_dot_product_attention(
            queries[None], keys[None], values[None], is_causal=True, scale=scaling
        )
        return attended[0].transpose(0, 1)
    # As in a decode step, the heads of a group become queries: the keys are read once for all.
    attended = F.scaled_dot_product_attention(
        queries.reshape(heads, groups * count, -1)[None],
        keys[None],
        values[None],
        attn_mask=segment.mask(queries, total, window, groups)[None, None],
        scale=scaling,
    )
    return attended.reshape(queries.shape[0], count, -1).transpose(0, 1)


def _packed_mask(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # transformers' signature
    """Build no mask for a packed row, and SDPA's for every other forward."""
    return None if _STATE.segments is not None else sdpa_mask(*arguments, **options)


AttentionInterface.register(NAME, _packed_attention)
AttentionMaskInterface.register(NAME, _packed_mask)
