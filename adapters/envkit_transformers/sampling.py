"""Draw tokens, with their log-probabilities.

The log-probability of a token is log_softmax(logits / temperature) from the same forward that it
was sampled from, after banned ids were masked and before top-p and top-k cut the tail, as SGLang
reports it. A greedy token's is at temperature 1. Draws depend only on the request's seed and prompt
length, so they do not depend on batching.

Axes: R rows (requests that get a token), V vocabulary.
"""

import random
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from envkit.errors import EngineFault
from envkit.rollout.engine import Sampling

_LARGEST_TEMPERATURE: Final = 1e4
_ROWS_AT_ONCE: Final = 64
"""Bounds the memory of the distributions: 64 rows of 150,000 doubles are 80 MB."""


def check_sampling(sampling: Sampling) -> None:
    """Reject invalid sampling settings.

    Raises:
        EngineFault: A value out of range, or an unknown extra.
    """
    if not 0.0 <= sampling.temperature <= _LARGEST_TEMPERATURE:
        raise EngineFault(f"temperature must be in [0, 10000], got {sampling.temperature}")
    if not 0.0 < sampling.top_p <= 1.0:
        raise EngineFault(f"top_p must be in (0, 1], got {sampling.top_p}")
    if sampling.top_k is not None and sampling.top_k < 1:
        raise EngineFault(f"top_k must be at least 1 or None, got {sampling.top_k}")
    if sampling.max_new_tokens < 1:
        raise EngineFault(f"max_new_tokens must be at least 1, got {sampling.max_new_tokens}")
    if sampling.extras:
        raise EngineFault(
            f"the embedded engine takes no sampling extras, got {sorted(sampling.extras)}"
        )


class Draw:
    """Sampling state of one request: settings and random generator."""

    __slots__ = ("_random", "banned", "sampling")

    def __init__(self, sampling: Sampling, *, banned: Sequence[int], seed: int, start: int) -> None:
        self.sampling = sampling
        self.banned: tuple[int, ...] = tuple(sorted({*banned, *sampling.banned_ids}))
        self._random = random.Random(f"{seed}:{start}")

    def uniform(self) -> float:
        """Return the next number in [0, 1)."""
        return self._random.random()


@torch.inference_mode()
def sample(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Draw one token for each row of logits (R, V) and return it with its log-probability.

    A row whose logits are not finite gets a log-probability that is not finite.
    """
    if len(draws) > _ROWS_AT_ONCE:
        half = len(draws) // 2
        parts = [sample(logits[:half], draws[:half]), sample(logits[half:], draws[half:])]
        return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
    logits = logits.float()
    temperatures = [draw.sampling.temperature or 1.0 for draw in draws]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    logits = _mask_banned(logits, draws)
    logprobs = torch.log_softmax(logits, dim=-1)
    tokens = logprobs.argmax(dim=-1)
    random_rows = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0.0]
    if random_rows:
        rows = torch.tensor(random_rows, device=logits.device)
        tokens[rows] = _draw(logprobs[rows].exp(), [draws[row] for row in random_rows])
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()


def _mask_banned(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    rows_by_ids: dict[tuple[int, ...], list[int]] = {}
    for row, draw in enumerate(draws):
        if draw.banned:
            rows_by_ids.setdefault(draw.banned, []).append(row)
    if not rows_by_ids:
        return logits
    logits = logits.clone()
    for ids, rows in rows_by_ids.items():
        columns = torch.tensor(ids, device=logits.device)
        logits[torch.tensor(rows, device=logits.device)[:, None], columns] = float("-inf")
    return logits


def _draw(probabilities: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Invert the cumulative distribution at each request's own random number."""
    filtered = [
        row
        for row, draw in enumerate(draws)
        if draw.sampling.top_p < 1.0 or draw.sampling.top_k is not None
    ]
    if filtered:
        rows = torch.tensor(filtered, device=probabilities.device)
        probabilities[rows] = _keep_top(probabilities[rows], [draws[row] for row in filtered])
    # Doubles, if the device has them: float32 loses the tail of a large vocabulary.
    wide = torch.float32 if probabilities.device.type == "mps" else torch.float64
    cumulative = probabilities.cumsum(dim=-1, dtype=wide)
    uniforms = [draw.uniform() for draw in draws]
    total = cumulative[:, -1:]
    targets = torch.tensor(uniforms, dtype=wide, device=cumulative.device)[:, None] * total
    # Below the total, so the result always has a probability above zero.
    targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    return drawn.clamp(max=probabilities.shape[-1] - 1)  # a row of NaN ends past the last


def _keep_top(probabilities: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Zero everything outside top-k, and outside the smallest head that reaches top-p."""
    device = probabilities.device
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    top_p = torch.tensor([draw.sampling.top_p for draw in draws], device=device)[:, None]
    size = ordered.shape[-1]
    top_k = torch.tensor([draw.sampling.top_k or size for draw in draws], device=device)[:, None]
    ranks = torch.arange(size, device=device)
    ordered = ordered.masked_fill((before > top_p) | (ranks >= top_k), 0.0)
    return torch.zeros_like(probabilities).scatter(1, order, ordered)
