"""The formula of TRL's packed attention, in place of a GPU kernel."""

import math

import torch


def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *_: object,
    softmax_scale: float | None = None,
    **__: object,
) -> torch.Tensor:
    """Attend causally in each packed sequence; the mask is aligned to the bottom right."""
    out, repeat = torch.empty_like(q), q.shape[1] // k.shape[1]
    for one in range(len(cu_q) - 1):
        rows = slice(int(cu_q[one]), int(cu_q[one + 1]))
        columns = slice(int(cu_k[one]), int(cu_k[one + 1]))
        queries = q[rows].transpose(0, 1)
        keys, values = (x[columns].repeat_interleave(repeat, 1).transpose(0, 1) for x in (k, v))
        scores = (queries @ keys.transpose(1, 2)) * (softmax_scale or queries.shape[-1] ** -0.5)
        n, m = scores.shape[-2:]
        visible = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
        out[rows] = (weights @ values).transpose(0, 1)
    return out
