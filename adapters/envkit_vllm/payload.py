"""Requests to `/inference/v1/generate`: ids with one placeholder per image, and the images.

The server ignores unknown keys, at the top level and in `sampling_params`, so extras are checked
against the keys of release 0.32 (vllm/sampling_params.py and
vllm/entrypoints/scale_out/token_in_token_out/protocol.py).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit_remote.body import BodyRules

BAN_BIAS: Final = -100.0
"""Added to the logit of a banned token; vLLM clamps a bias to [-100, 100]."""

RULES: Final = BodyRules(
    title="vLLM",
    # Keys that keep a single answer with a single sequence.
    sampling_keys=frozenset({
        "allowed_token_ids", "extra_args", "frequency_penalty", "ignore_eos", "logit_bias", "min_p",
        "min_tokens", "presence_penalty", "repetition_detection", "repetition_penalty",
        "routed_experts_prompt_start", "skip_reading_prefix_cache", "structured_outputs",
        "thinking_token_budget",
    }),
    request_keys=frozenset({
        "cache_salt", "kv_transfer_params", "model", "priority", "reasoning_ended",
    }),
    ban_bias=BAN_BIAS,
)  # fmt: skip


def sampling_params(sampling: Sampling, *, max_new_tokens: int) -> dict[str, Any]:
    """Return the server's sampling parameters, each written out.

    A missing `max_tokens` would mean "up to the context's end", and a null `top_k` is rejected.
    """
    params: dict[str, Any] = {
        "max_tokens": max_new_tokens,
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "top_k": sampling.top_k or 0,
        "logprobs": 0,
        "stop_token_ids": list(sampling.stop_ids),
        "skip_special_tokens": False,
        "detokenize": bool(sampling.stop),
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    return RULES.sampling_params(params, sampling)


def generate_fields(
    request: GenerateRequest, *, max_new_tokens: int, with_prompt_ids: bool
) -> dict[str, Any]:
    """Return a request's body without its name and its images.

    Raises:
        ConfigurationError: See `BodyRules.request_fields`.
    """
    fields: dict[str, Any] = {
        "token_ids": list(request.wire_ids),
        "sampling_params": sampling_params(request.sampling, max_new_tokens=max_new_tokens),
        **RULES.request_fields(request.sampling.extras),
    }
    if request.top_logprobs:
        fields["sampling_params"]["logprobs"] = request.top_logprobs
    if with_prompt_ids:
        fields["return_token_ids"] = True
    return fields


def score_fields(ids: Sequence[int]) -> dict[str, Any]:
    """Return the body of a request that reports every prompt token and samples one."""
    return {
        "token_ids": list(ids),
        "return_token_ids": True,
        "sampling_params": {
            "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False,
        },
    }  # fmt: skip


def image_parts(images: Iterable[Image], *, known: Collection[str]) -> Iterator[bytes]:
    """Yield the JSON of each image.

    The server's name of an image is the hash of its pixels: the server trusts it, and would use
    another image's features under the same name.

    Args:
        images: One per placeholder.
        known: Hashes of images that the server has; these are sent by name.
    """
    for image in images:
        yield _part(image, with_bytes=image.sha256 not in known)


def _part(image: Image, *, with_bytes: bool) -> bytes:
    name = b'{"type":"image_url","uuid":"%s"' % image.sha256.encode()
    if not with_bytes:
        return name + b"}"
    return b'%s,"url":"%s"}' % (name, image.data_uri().encode("ascii"))
