"""Bodies of `/generate` requests, checked before sending.

Only documented keys are used, because servers from 0.5.23 on reject an unknown sampling parameter
with a 400 (python/sglang/api/v1/api_types.py). Ids are wire ids, one placeholder per image, and
`text` is never sent with them: with images a server would prefer the text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from envkit.images import Image
from envkit.rollout.engine import GenerateRequest, Sampling
from envkit_remote.body import BodyRules

BAN_BIAS: Final = -10_000.0
"""Bias added to the logit of a banned token: probability 0 even in float16, without infinities."""

STREAM_EVENTS: Final = 128
"""Events of a streamed reply that uses its whole budget."""

RULES: Final = BodyRules(
    title="SGLang",
    # python/sglang/srt/sampling/sampling_params.py of 0.5.23.
    sampling_keys=frozenset({
        "beam_width", "custom_params", "ebnf", "frequency_penalty", "ignore_eos", "json_schema",
        "logit_bias", "min_new_tokens", "min_p", "presence_penalty", "regex", "repetition_penalty",
        "spaces_between_special_tokens", "stop_regex", "structural_tag",
    }),
    # python/sglang/srt/managers/io_struct.py, those that keep a single answer with a single
    # sequence.
    request_keys=frozenset({
        "cache_salt", "custom_logit_processor", "extra_key", "lora_path", "max_thinking_tokens",
        "priority", "return_hidden_states", "return_prompt_token_ids", "return_routed_experts",
        "return_sampling_mask", "routed_dp_rank", "routed_experts_start_len", "routing_key",
        "token_ids_logprob", "top_logprobs_num",
    }),
    ban_bias=BAN_BIAS,
)  # fmt: skip


def sampling_params(sampling: Sampling, *, max_new_tokens: int) -> dict[str, Any]:
    """Return the server's sampling parameters."""
    params: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "skip_special_tokens": False,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.stop_ids:
        params["stop_token_ids"] = list(sampling.stop_ids)
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return RULES.sampling_params(params, sampling)


def generate_fields(
    request: GenerateRequest, *, max_new_tokens: int, return_prompt_token_ids: bool
) -> dict[str, Any]:
    """Return a request's body without its rid and its images.

    Raises:
        ConfigurationError: See `BodyRules.request_fields`.
    """
    fields: dict[str, Any] = {
        "input_ids": list(request.wire_ids),
        "sampling_params": sampling_params(request.sampling, max_new_tokens=max_new_tokens),
        "return_logprob": True,
        **RULES.request_fields(request.sampling.extras),
    }
    if request.top_logprobs:
        fields["top_logprobs_num"] = request.top_logprobs
    if return_prompt_token_ids:
        fields["return_prompt_token_ids"] = True
    return fields


def stream_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body for an answer as events.

    Each event repeats the ids and log-probabilities before it, so a budget gets a fixed number of
    events: with one per token, a reply of 8,192 tokens would be a gigabyte.
    """
    params = fields["sampling_params"]
    interval = max(1, params["max_new_tokens"] // STREAM_EVENTS)
    return {**fields, "stream": True, "sampling_params": {**params, "stream_interval": interval}}


def score_fields(ids: Sequence[int]) -> dict[str, Any]:
    """Return the body of a request that samples nothing and reports every prompt token."""
    return {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0, "skip_special_tokens": False},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


def image_parts(images: Iterable[Image]) -> Iterator[bytes]:
    """Yield the JSON of each image: its data URI."""
    for image in images:
        yield b'"%s"' % image.data_uri().encode("ascii")
