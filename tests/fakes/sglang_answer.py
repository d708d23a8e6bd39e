"""The body of the fake server's answers, with the keys that a real one has."""

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fakes.sglang_failures import Failure
from fakes.sglang_model import Prompt, logprob_of, prefix_hashes

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What was sampled before the end, or before an abort."""

    ids: tuple[int, ...]
    finish: dict[str, Any]
    stop_string: str | None
    versions: tuple[str, ...]
    """Weight version of every token."""


def build_answer(
    body: Mapping[str, Any],
    prompt: Prompt,
    sampled: Sampled,
    *,
    rid: str,
    cached: int,
    decode: Decode,
    raw_logprobs: bool,
    queue_seconds: float,
    seconds: float,
) -> dict[str, Any]:
    """Return the answer of a request that was scheduled."""
    params: Mapping[str, Any] = body.get("sampling_params") or {}
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": sampled.finish,
        "prompt_tokens": len(prompt.ids),
        "weight_version": sampled.versions[-1],
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(sampled.ids),
        "cached_tokens": cached,
        "weight_versions": spans(sampled.versions[: len(sampled.ids)] or sampled.versions[:1]),
        "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
        "dp_rank": None,
        "queue_time": queue_seconds,
        "e2e_latency": seconds,
        "response_sent_to_client_ts": time.time(),
    }
    if prompt.image_tokens:
        meta["image_tokens"] = prompt.image_tokens
    if body.get("return_logprob"):
        meta |= _logprobs(body, prompt, sampled, raw_logprobs)
    answer: dict[str, Any] = {
        "text": _text(sampled, params, decode),
        "output_ids": list(sampled.ids),
        "meta_info": meta,
    }
    if body.get("return_prompt_token_ids"):
        answer["prompt_token_ids"] = list(prompt.ids)
    return answer


def queue_abort_answer(rid: str, weight_version: str) -> dict[str, Any]:
    """Return the answer of a request that was aborted before it was scheduled."""
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": weight_version,
        "e2e_latency": 0.0,
        "input_token_logprobs": [],
        "output_token_logprobs": [],
        "output_token_logprobs_length": 0,
        "completion_tokens": 0,
    }
    return {"text": "", "output_ids": [], "meta_info": meta}


def _logprobs(
    body: Mapping[str, Any], prompt: Prompt, sampled: Sampled, raw: bool
) -> dict[str, Any]:
    hashes = prefix_hashes((*prompt.keys, *sampled.ids))
    values = [logprob_of(state) for state in hashes]
    split = len(prompt.ids)
    start = body.get("logprob_start_len", -1)
    inputs = (
        [[None, prompt.ids[0], None]]
        + [[value, token, None] for value, token in zip(values[1:], prompt.ids[1:], strict=False)]
        if start == 0
        else []
    )
    result: dict[str, Any] = {
        "input_token_logprobs": inputs,
        "output_token_logprobs": [
            [value, token, None] for value, token in zip(values[split:], sampled.ids, strict=True)
        ],
        "output_token_logprobs_length": len(sampled.ids),
    }
    top = body.get("top_logprobs_num") or 0
    if top:
        temperature = (body.get("sampling_params") or {}).get("temperature") or 1.0
        spread = 5.0 / (1.0 if raw else temperature) / top
        result["output_top_logprobs"] = [
            [[-8.0 - rank * spread, rank, None] for rank in range(top)] for _ in sampled.ids
        ]
    return result


def spans(versions: Sequence[str]) -> list[dict[str, Any]]:
    """Return the weight versions of tokens as runs."""
    runs: list[dict[str, Any]] = []
    for index, version in enumerate(versions):
        if not runs or runs[-1]["version"] != version:
            runs.append({"version": version, "start": index, "end": index})
        runs[-1]["end"] = index + 1
    return runs


def _text(sampled: Sampled, params: Mapping[str, Any], decode: Decode) -> str:
    ids = sampled.ids
    trims = not params.get("no_stop_trim")
    if trims and isinstance(sampled.finish.get("matched"), int):
        ids = ids[:-1]
    text = decode(ids)
    if trims and sampled.stop_string is not None:
        text = text.partition(sampled.stop_string)[0]
    return text


def add_routed_experts(
    answer: dict[str, Any], body: Mapping[str, Any], shape: tuple[int, int] | None
) -> None:
    """Add the experts of every position from the start on but the last, as base64 int32."""
    if shape is None or not body.get("return_routed_experts"):
        return
    meta = answer["meta_info"]
    rows = meta["prompt_tokens"] + meta["completion_tokens"] - 1
    rows -= body.get("routed_experts_start_len") or 0
    experts = np.arange(max(0, rows) * shape[0] * shape[1], dtype=np.int32) % 8
    meta["routed_experts"] = base64.b64encode(experts.tobytes()).decode()


def add_top_p(answer: dict[str, Any], body: Mapping[str, Any]) -> None:
    """Add the ids that top-p kept, as slime's patched server does: two of them for each token."""
    params: Mapping[str, Any] = body.get("sampling_params") or {}
    if not (params.get("custom_params") or {}).get("return_top_p_token_ids"):
        return
    ids = np.repeat(np.asarray(answer["output_ids"], dtype=np.int32), 2)
    offsets = np.arange(len(answer["output_ids"]) + 1, dtype=np.int32) * 2
    answer["meta_info"]["top_p_token_ids"] = base64.b64encode(ids.tobytes()).decode()
    answer["meta_info"]["top_p_token_offsets"] = base64.b64encode(offsets.tobytes()).decode()


def spoil(answer: dict[str, Any], failure: Failure | None) -> None:
    """Break an answer in place as the failure says."""
    meta = answer["meta_info"]
    if failure is Failure.WRONG_PROMPT_TOKENS:
        meta["prompt_tokens"] += 1
    if failure is Failure.MISSING_LOGPROB:
        meta["output_token_logprobs"] = meta["output_token_logprobs"][:-1]
