"""Parse a `/generate` answer, cross-check it and build a `Generation`.

Token ids and log-probabilities are read from `meta_info.output_token_logprobs`, whose entries are
`[log-probability, id, text or null]`, and must agree with `output_ids` and `completion_tokens`.
They include the stop token or the tokens of a stop string (SGLang 0.5.23,
python/sglang/srt/managers/scheduler_components/output_streamer.py). The `text` is ignored.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.errors import EngineFault, FaultKind
from envkit.retry_after import UNAVAILABLE_STATUS
from envkit.rollout.engine import FinishReason, Generation
from envkit_remote.answers import AnswerReader, check_tokens
from envkit_remote.faults import shown
from envkit_remote.prompt import check_length

# Read into fields of Generation, or repeated per token: not passed through as extras.
_CONSUMED: Final = frozenset({
    "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "weight_version",
    "output_token_logprobs", "output_token_logprobs_length", "queue_time",
})  # fmt: skip


_SLICED: Final = (
    "output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs",
    "output_token_sampling_mask", "output_token_sampling_logprobs",
)  # fmt: skip
"""What an incremental event has of its own tokens only."""

_READER: Final = AnswerReader("SGLang", "0.5.15 or later")


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a 200 body as a JSON object with `meta_info`.

    Raises:
        EngineFault: It is something else.
    """
    answer = _READER.json_object(body)
    if not isinstance(answer.get("meta_info"), dict):
        raise _READER.malformed("a meta_info object", answer)
    return answer


def join(
    whole: dict[str, Any] | None, event: dict[str, Any]
) -> tuple[dict[str, Any], Sequence[int]]:
    """Return the answer so far with a further event, and the ids that it adds.

    An event repeats all before it, unless the server was started with
    `--incremental-streaming-output` (python/sglang/srt/managers/tokenizer_manager.py).
    """
    ids, meta = [*event["output_ids"]], event["meta_info"]
    if whole is None:
        return event, ids
    known: list[int] = whole["output_ids"]
    if meta.get("completion_tokens") == len(ids) or ids[: len(known)] == known:
        return event, ids[len(known) :]
    before = whole["meta_info"]
    joined = {key: [*before.get(key, ()), *meta[key]] for key in _SLICED if key in meta}
    return {**event, "output_ids": [*known, *ids], "meta_info": {**meta, **joined}}, ids


def parse_generation(answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
    """Return the sampled reply.

    Args:
        answer: From `parse_object`.
        train_length: Prompt length with images expanded.
        rid: Id of the request at the server; kept in the extras for log lookups.

    Raises:
        EngineFault: The answer is not one of SGLang's, or the server abandoned the request.
        LedgerFault: Counts or ids contradict each other, or the prompt had another length.
    """
    meta: Mapping[str, Any] = answer["meta_info"]
    reason = _finish_reason(meta)
    token_ids, logprobs = _tokens(answer, meta)
    prompt_tokens = _READER.count(meta, "prompt_tokens")
    if prompt_tokens is None and reason is not FinishReason.ABORT:
        raise _READER.malformed("meta_info.prompt_tokens", sorted(meta))
    check_length(prompt_tokens, train_length)
    extras = {
        key: value
        for key, value in meta.items()
        if value and key not in _CONSUMED and not key.endswith("_ts")
    }
    return Generation(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        cached_tokens=_READER.count(meta, "cached_tokens") or 0,
        weight_version=_weight_version(meta.get("weight_version")),
        queue_seconds=_seconds(meta.get("queue_time")),
        top_logprobs=_top_logprobs(meta.get("output_top_logprobs")),
        extras={"rid": rid, **extras},
    )


def _finish_reason(meta: Mapping[str, Any]) -> FinishReason:
    finish: Any = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else None
    if not isinstance(kind, str) or kind not in set(FinishReason):
        raise _READER.malformed("a finish_reason of type stop, length or abort", finish)
    reason = FinishReason(kind)
    if reason is FinishReason.ABORT and finish.get("status_code"):
        status = finish["status_code"]
        if isinstance(status, bool) or not isinstance(status, int):
            raise _READER.malformed("an integer as status_code of its finish_reason", status)
        raise _given_up(status, finish.get("message"))
    return reason


def _tokens(
    answer: Mapping[str, Any], meta: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    wanted = "meta_info.output_token_logprobs with [log-probability, id, ...] for every token"
    entries = meta.get("output_token_logprobs")
    if not isinstance(entries, list):
        raise _READER.malformed(wanted, entries)
    token_ids, logprobs = _READER.tokens(entries, 0, 1, wanted)
    check_tokens(token_ids, answer.get("output_ids"), _READER.count(meta, "completion_tokens"))
    return token_ids, logprobs


def _top_logprobs(rows: object) -> tuple[tuple[tuple[int, float], ...], ...]:
    wanted = "meta_info.output_top_logprobs with [log-probability, id, ...] for every token"
    return () if rows is None else _READER.ranked(rows, 0, 1, wanted)


def _given_up(status: int, message: object) -> EngineFault:
    """Return the fault of a request that the server abandoned with a status."""
    return EngineFault(
        f"SGLang abandoned the request with status {status}: {shown(message)}",
        kind=FaultKind.TRANSIENT if status >= 500 else FaultKind.PERMANENT,
        is_unavailable=status in UNAVAILABLE_STATUS,
    )


def _weight_version(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise _READER.malformed("a text as meta_info.weight_version", value)
    return None if value is None else str(value)


def _seconds(value: object) -> float:
    """Return the server's time measurement in seconds, 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        seconds = float(value)
    except OverflowError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def parse_input_logprobs(answer: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return the log-probability of every prompt token, images expanded; None for the first.

    Raises:
        EngineFault: The server did not return them.
    """
    entries = answer["meta_info"].get("input_token_logprobs")
    if not isinstance(entries, list) or not entries:
        raise _READER.malformed("meta_info.input_token_logprobs", entries)
    try:
        return tuple(None if entry[0] is None else float(entry[0]) for entry in entries)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise _READER.malformed(
            "[log-probability, id, ...] for every prompt token", entries
        ) from error
