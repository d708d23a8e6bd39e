"""The tiny policy whose gradients are compared, identical for every trainer.

The recordings use a real model's vocabulary. Mapping its ids to a small one gives a model with 10^5
parameters in double precision, whose rounding differences stay near 1e-7.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from envkit.errors import MissingDependencyError
from envkit.trajectory import step_rows
from envkit_conformance.recordings import shipped_recordings

try:
    import torch
    import transformers
except ImportError as error:
    raise MissingDependencyError.for_extra(
        "comparing gradients", "torch", "transformers"
    ) from error

_VISION_TOKENS: Final = {"vision_start": 151652, "vision_end": 151653, "image": 151655}
"""Qwen2.5-VL's vision token ids, used by the recordings with images."""
_COMMON: Final[Mapping[str, Any]] = {"tie_word_embeddings": False, "attn_implementation": "sdpa"}
_SEED: Final = 20_26
_SPREAD: Final = 0.08
_OLDER: Final = 0.01
"""Standard deviation of the old policy's weight noise: a few ratios are clipped, most are not."""


class Policy:
    """A two-layer Qwen2, or Qwen2.5-VL for images, in double precision. Axes: n ids, V ids."""

    def __init__(self, *, has_images: bool = False) -> None:
        """Make the weights from a fixed seed.

        Args:
            has_images: Whether the policy takes images.
        """
        self._small, self.filler_id = _vocabulary()
        self.vocabulary_size = len(self._small)
        """V."""
        self.has_images = has_images
        self.model = self._make(noise=0.0)
        """The model whose parameters accumulate the gradient."""

    @cached_property
    def _older(self) -> torch.nn.Module:
        return self._make(noise=_OLDER)

    def small(self, ids: Sequence[int]) -> list[int]:
        """Return recorded ids in the small vocabulary, (n,)."""
        return [self._small[int(one)] for one in ids]

    def logits(self, ids: Sequence[int], tensors: Mapping[str, Any] | None = None) -> torch.Tensor:
        """Return (n, V) with their graph.

        Args:
            ids: Ids of the small vocabulary, (n,).
            tensors: The processor's outputs for the row's images; None or empty if there are none.
        """
        return self._logits(self.model, ids, tensors)

    def logprobs(
        self, ids: Sequence[int], tensors: Mapping[str, Any] | None = None
    ) -> torch.Tensor:
        """Return log p(ids[i + 1] | ids[: i + 1]), (n - 1,), with its graph."""
        return _chosen(self.logits(ids, tensors), ids)

    def old_logprobs(
        self, ids: Sequence[int], tensors: Mapping[str, Any] | None = None
    ) -> torch.Tensor:
        """Return the old policy's log-probabilities, (n - 1,), without a graph."""
        with torch.no_grad():
            return _chosen(self._logits(self._older, ids, tensors), ids)

    def take_gradient(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the gradient as one vector, ordered by parameter name, then clear it.

        A parameter without a gradient counts as zeros.
        """
        parts: list[torch.Tensor] = []
        for _, parameter in sorted(self.model.named_parameters()):
            found = parameter.grad
            parts.append((torch.zeros_like(parameter) if found is None else found).flatten())
        self.model.zero_grad(set_to_none=True)
        return torch.cat(parts).detach().double().numpy()

    def _make(self, noise: float) -> torch.nn.Module:
        model = _vision_model(self._small) if self.has_images else _text_model(self._small)
        draw, other = np.random.default_rng(_SEED), np.random.default_rng(_SEED + 1)
        with torch.no_grad():
            for _, parameter in sorted(model.named_parameters()):
                if parameter.ndim < 2:
                    continue  # norms stay at one, biases at zero
                shape = tuple(parameter.shape)
                weights = draw.normal(0, _SPREAD, shape) + other.normal(0, noise, shape)
                parameter.copy_(torch.as_tensor(weights))
        return model.train()  # it has no dropout

    def _logits(
        self, model: torch.nn.Module, ids: Sequence[int], tensors: Mapping[str, Any] | None
    ) -> torch.Tensor:
        given = torch.tensor([list(ids)])
        if not tensors or not len(tensors["pixel_values"]):
            return model(input_ids=given).logits[0]
        pixels = torch.as_tensor(tensors["pixel_values"]).double()
        grids = torch.as_tensor(tensors["image_grid_thw"]).long()
        kinds = (given == self._small[_VISION_TOKENS["image"]]).long()
        return model(
            input_ids=given, mm_token_type_ids=kinds, pixel_values=pixels, image_grid_thw=grids
        ).logits[0]


def _chosen(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    following = torch.tensor(list(ids)[1:])[:, None]
    return torch.log_softmax(logits[:-1], -1).gather(1, following)[:, 0]


def _vocabulary() -> tuple[dict[int, int], int]:
    recordings = shipped_recordings()
    seen = set(_VISION_TOKENS.values())
    for one in recordings:
        seen.add(one.filler_id)
        for row in step_rows(one.trajectory, filler_id=one.filler_id):
            seen.update(row.prompt_ids, row.response_ids)
    small = {real: number for number, real in enumerate(sorted(seen))}
    return small, small[recordings[0].filler_id]


def _shape(small: Mapping[int, int]) -> dict[str, Any]:
    return {
        "vocab_size": len(small),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _text_model(small: Mapping[int, int]) -> torch.nn.Module:
    config = transformers.Qwen2Config(**_shape(small), **_COMMON)
    return transformers.Qwen2ForCausalLM(config).double()


def _vision_model(small: Mapping[int, int]) -> torch.nn.Module:
    text = _shape(small) | {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [4, 6, 6],
        }
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "fullatt_block_indexes": [1],
        "window_size": 112,
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        **_COMMON,
        image_token_id=small[_VISION_TOKENS["image"]],
        video_token_id=len(small) - 1,
        vision_start_token_id=small[_VISION_TOKENS["vision_start"]],
        vision_end_token_id=small[_VISION_TOKENS["vision_end"]],
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config).double()
