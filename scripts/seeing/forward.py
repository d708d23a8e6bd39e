"""The forward pass of training: log-probabilities of replies, with shortcuts for a CPU."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from rows import Example

from envkit.tokens import join_features


def logprobs(model: Any, pad_id: int, examples: Sequence[Example]) -> torch.Tensor:  # noqa: ANN401  # a transformers model
    """Return the log-probabilities of the oracle's tokens, example by example, (N,)."""
    shape = len(examples), max(len(one.ids) for one in examples)
    ids = torch.full(shape, pad_id)
    attention, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for number, one in enumerate(examples):
        ids[number, : len(one.ids)] = torch.tensor(one.ids)
        attention[number, : len(one.ids)] = 1
        mask[number, : len(one.ids)] = torch.tensor(one.mask)
    pictures = join_features(features for one in examples for features in one.pictures)
    hidden = model.model(
        input_ids=ids,
        attention_mask=attention,
        mm_token_type_ids=(ids == model.config.image_token_id).long(),
        **{name: torch.from_numpy(array) for name, array in pictures.items()},
    ).last_hidden_state
    chosen = mask[:, 1:]
    logits = model.lm_head(hidden[:, :-1][chosen]).float()  # only if a reply is
    return logits.log_softmax(-1).gather(1, ids[:, 1:][chosen][:, None])[:, 0]


def multiply_patches(model: Any) -> None:  # noqa: ANN401  # a transformers model
    """Run the patch embedding, a convolution over single patches, as a matrix product.

    On a CPU the convolution would take a tenth of a step.
    """
    embed = model.model.visual.patch_embed
    weight = embed.proj.weight  # (hidden, 3, frames, patch, patch)

    def forward(pixels: torch.Tensor) -> torch.Tensor:
        pixels = pixels.to(weight.dtype)
        return torch.nn.functional.linear(pixels, weight.view(len(weight), -1), embed.proj.bias)

    embed.forward = forward


def batch_attention(model: Any) -> None:  # noqa: ANN401  # a transformers model
    """Let images of one size share the products of the vision tower's attention.

    Image by image, and with PyTorch's fused attention, bfloat16 takes twice as long.
    """
    model.model.language_model.config._attn_implementation = "eager"
    for block in model.model.visual.blocks:
        block.attn.forward = _attention_of(block.attn)


def _attention_of(module: Any) -> Any:  # noqa: ANN401  # a transformers module and its method
    def forward(
        hidden: torch.Tensor,
        cu_seqlens: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_: object,
    ) -> torch.Tensor:
        heads = module.qkv(hidden).view(len(hidden), 3, module.num_heads, -1)
        cos, sin = (part[:, None].to(heads.dtype) for part in position_embeddings)
        query, key, value = heads.unbind(1)
        query = (query * cos + _rotated(query) * sin) * module.scaling
        key = key * cos + _rotated(key) * sin
        done, start = list[torch.Tensor](), 0
        for length, same in itertools.groupby(cu_seqlens.diff().tolist()):
            end = start + length * len(list(same))
            q, k, v = (
                part[start:end].unflatten(0, (-1, length)).transpose(1, 2)
                for part in (query, key, value)
            )
            weights = (q @ k.transpose(-1, -2)).softmax(-1, dtype=q.dtype)
            done.append((weights @ v).transpose(1, 2).reshape(end - start, -1))
            start = end
        return module.proj(torch.cat(done))

    return forward


def _rotated(part: torch.Tensor) -> torch.Tensor:
    first, second = part.chunk(2, -1)
    return torch.cat((-second, first), -1)
