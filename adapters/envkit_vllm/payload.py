"""What is sent to `/inference/v1/generate`: ids with one placeholder per image, and the images.

The server ignores unknown keys, at the top and in `sampling_params`, so extras are checked against
the keys of release 0.32 (vllm/sampling_params.py and
vllm/entrypoints/scale_out/token_in_token_out/protocol.py).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Sampling

BAN_BIAS: Final = -100.0
"""Added to the logit of a banned token; vLLM cuts a bias to [-100, 100]."""

# Keys that leave one answer of one sequence, without those that Sampling owns.
EXTRA_SAMPLING_KEYS: Final = frozenset({
    "allowed_token_ids", "extra_args", "frequency_penalty", "ignore_eos", "logit_bias", "min_p",
    "min_tokens", "presence_penalty", "repetition_detection", "repetition_penalty",
    "routed_experts_prompt_start", "skip_reading_prefix_cache", "structured_outputs",
    "thinking_token_budget",
})  # fmt: skip
EXTRA_REQUEST_KEYS: Final = frozenset({
    "cache_salt", "kv_transfer_params", "model", "priority", "reasoning_ended",
})  # fmt: skip


def sampling_params(sampling: Sampling, *, max_new_tokens: int) -> dict[str, Any]:
    """Return the server's sampling parameters, each written out.

    An absent `max_tokens` would mean "up to the context's end", and a null `top_k` is refused.
    Banned ids become a logit bias, which the reported log-probabilities include.
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
    params.update(
        (key, value) for key, value in sampling.extras.items() if key in EXTRA_SAMPLING_KEYS
    )
    if sampling.banned_ids:
        bans = {str(token): BAN_BIAS for token in sampling.banned_ids}
        params["logit_bias"] = {**params.get("logit_bias", {}), **bans}
    return params


def request_fields(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras that stand beside the sampling parameters.

    Raises:
        ConfigurationError: An extra is not a known key, or belongs to a field of `Sampling`.
    """
    unknown = sorted(set(extras) - EXTRA_SAMPLING_KEYS - EXTRA_REQUEST_KEYS)
    if unknown:
        raise ConfigurationError(
            f"Sampling.extras for vLLM may hold {sorted(EXTRA_SAMPLING_KEYS)} or "
            f"{sorted(EXTRA_REQUEST_KEYS)}, got {unknown}; temperature, top_p, stop and the like "
            "are fields of Sampling"
        )
    return {key: value for key, value in extras.items() if key in EXTRA_REQUEST_KEYS}


def generate_fields(
    request: GenerateRequest, *, max_new_tokens: int, with_prompt_ids: bool
) -> dict[str, Any]:
    """Return a request's body without its name and its images.

    Raises:
        ConfigurationError: See `request_fields`.
    """
    fields: dict[str, Any] = {
        "token_ids": list(request.wire_ids),
        "sampling_params": sampling_params(request.sampling, max_new_tokens=max_new_tokens),
        **request_fields(request.sampling.extras),
    }
    if with_prompt_ids:
        fields["return_token_ids"] = True
    return fields


def score_fields(ids: Sequence[int]) -> dict[str, Any]:
    """Return the body of a request that reports every prompt token; it samples one, unread."""
    return {
        "token_ids": list(ids),
        "return_token_ids": True,
        "sampling_params": {
            "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False,
        },
    }  # fmt: skip


def encode_body(
    fields: Mapping[str, Any], images: Sequence[Image], *, known: Collection[str]
) -> bytes:
    """Return the JSON bytes of a body.

    Data URIs need no escaping, so they are joined as they are: a JSON encoder would hold the
    interpreter lock while it looks at every character of every image.

    Args:
        fields: Of the body, without images.
        images: One per placeholder. The name of an image at the server is the hash of its pixels:
            the server trusts it, and would use another image's features under the same name.
        known: Hashes of images that the server has; these travel by name only.
    """
    head = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    if not images:
        return head
    parts = b",".join(_part(image, with_bytes=image.sha256 not in known) for image in images)
    return b'%s,"content_parts":[%s]}' % (head[:-1], parts)


def _part(image: Image, *, with_bytes: bool) -> bytes:
    name = b'{"type":"image_url","uuid":"%s"' % image.sha256.encode()
    if not with_bytes:
        return name + b"}"
    return b'%s,"url":"%s"}' % (name, image.data_uri().encode("ascii"))
