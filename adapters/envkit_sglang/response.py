"""What comes back: a `/generate` answer, cross-checked and turned into a `Generation`.

Token ids and log-probabilities are read from `meta_info.output_token_logprobs`, whose entries are
`[log-probability, id, text or null]`, and must agree with `output_ids` and `completion_tokens`.
They include the stop token or the tokens of a stop string (SGLang 0.5.23,
python/sglang/srt/managers/scheduler_components/output_streamer.py). The `text` is ignored.
"""

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from envkit.errors import EngineFault, LedgerFault
from envkit.rollout.engine import FinishReason, Generation
from envkit_sglang import faults

# Read into fields of Generation, or repeated per token: not passed through as extras.
_CONSUMED: Final = frozenset({
    "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "weight_version",
    "output_token_logprobs", "output_token_logprobs_length", "queue_time",
})  # fmt: skip


def _malformed(what: str, got: object) -> EngineFault:
    return EngineFault(
        f"an SGLang answer must have {what}, got {reprlib.repr(got)[:200]}; is this an SGLang "
        "server of release 0.5.15 or later?"
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a 200 body as a JSON object with `meta_info`.

    Raises:
        EngineFault: It is something else.
    """
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _malformed("a JSON body", body[:80]) from error
    if not isinstance(answer, dict) or not isinstance(answer.get("meta_info"), dict):
        raise _malformed("a meta_info object", answer)
    return answer


def parse_generation(answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
    """Return what the server sampled.

    Args:
        answer: From `parse_object`.
        train_length: How long the prompt is with images expanded.
        rid: What the request was called at the server; kept in the extras for log look-ups.

    Raises:
        EngineFault: The answer is not one of SGLang's, or the server gave the request up.
        LedgerFault: Counts or ids contradict each other, or the prompt had another length.
    """
    meta: Mapping[str, Any] = answer["meta_info"]
    reason = _finish_reason(meta)
    token_ids, logprobs = _tokens(answer, meta)
    prompt_tokens = _count(meta, "prompt_tokens")
    if prompt_tokens is None and reason is not FinishReason.ABORT:
        raise _malformed("meta_info.prompt_tokens", sorted(meta))
    if prompt_tokens is not None and prompt_tokens != train_length:
        raise LedgerFault(
            f"the server saw a prompt of {prompt_tokens} tokens, the ledger has {train_length}; "
            "image size limits must equal those of the server's processor, and the server must "
            "take ids without re-tokenising them"
        )
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
        cached_tokens=_count(meta, "cached_tokens") or 0,
        weight_version=_weight_version(meta.get("weight_version")),
        queue_seconds=_seconds(meta.get("queue_time")),
        extras={"rid": rid, **extras},
    )


def _finish_reason(meta: Mapping[str, Any]) -> FinishReason:
    finish: Any = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else None
    if not isinstance(kind, str) or kind not in set(FinishReason):
        raise _malformed("a finish_reason of type stop, length or abort", finish)
    reason = FinishReason(kind)
    if reason is FinishReason.ABORT and finish.get("status_code"):
        status = finish["status_code"]
        if isinstance(status, bool) or not isinstance(status, int):
            raise _malformed("an integer as status_code of its finish_reason", status)
        raise faults.abort_fault(status, finish.get("message"))
    return reason


def _tokens(
    answer: Mapping[str, Any], meta: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    entries = meta.get("output_token_logprobs")
    if not isinstance(entries, list):
        raise _malformed("meta_info.output_token_logprobs", entries)
    logprobs, token_ids = _columns(entries)
    if not all(map(math.isfinite, logprobs)):
        raise LedgerFault(f"log-probabilities must be finite, got {reprlib.repr(logprobs)}")
    output_ids = answer.get("output_ids")
    if not isinstance(output_ids, list) or tuple(output_ids) != token_ids:
        raise LedgerFault(
            "output_ids must equal the ids of output_token_logprobs, got "
            f"{reprlib.repr(output_ids)} and {reprlib.repr(token_ids)}"
        )
    completion_tokens = _count(meta, "completion_tokens")
    if completion_tokens is not None and completion_tokens != len(token_ids):
        raise LedgerFault(
            f"completion_tokens must count the tokens, got {completion_tokens} for {len(token_ids)}"
        )
    return token_ids, logprobs


def _columns(entries: list[Any]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    wanted = "[log-probability, id, ...] for every token"
    try:
        logprobs = [entry[0] for entry in entries]
        token_ids = [entry[1] for entry in entries]
        if set(map(type, logprobs)) <= {int, float} and set(map(type, token_ids)) <= {int}:
            return tuple(map(float, logprobs)), tuple(token_ids)
    except (TypeError, ArithmeticError, LookupError) as error:
        raise _malformed(wanted, entries) from error
    raise _malformed(wanted, entries)


def _weight_version(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise _malformed("a text as meta_info.weight_version", value)
    return None if value is None else str(value)


def _count(meta: Mapping[str, Any], key: str) -> int | None:
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _malformed(f"a count as meta_info.{key}", value)
    return value


def _seconds(value: object) -> float:
    """Return a time that the server measured, 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        seconds = float(value)
    except OverflowError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def check_prompt_ids(
    answer: Mapping[str, Any], wire_ids: Sequence[int], image_token_id: int | None
) -> bool:
    """Compare the prompt that the server used with ours, token by token.

    Runs of placeholders count as one on both sides, since the server's are expanded. Where the
    placeholder is unknown every run does; the length is checked elsewhere, by `prompt_tokens`.

    Returns:
        False where there is nothing to compare: an older server, or an aborted request.

    Raises:
        LedgerFault: They differ.
    """
    theirs = answer.get("prompt_token_ids")
    if not isinstance(theirs, list):
        return False
    expected = _collapsed(wire_ids, image_token_id)
    found = _collapsed(theirs, image_token_id)
    if expected != found:
        first = next(
            (index for index, pair in enumerate(zip(expected, found, strict=False))
             if pair[0] != pair[1]),
            min(len(expected), len(found)),
        )  # fmt: skip
        raise LedgerFault(
            f"the server changed the prompt at token {first}: sent {expected[first : first + 8]}, "
            f"it used {reprlib.repr(found[first : first + 8])}; it decodes and re-tokenises ids "
            "instead of keeping them (SGLANG_MM_AVOID_RETOKENIZE, a patched image processor)"
        )
    return True


def _collapsed(ids: Sequence[int], image_token_id: int | None) -> list[int]:
    runs: list[int] = []
    for token, run in groupby(ids):
        runs.extend([token] if image_token_id in (None, token) else run)
    return runs


def parse_input_logprobs(answer: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return the log-probability of every prompt token, images expanded; None for the first.

    Raises:
        EngineFault: The server did not return them.
    """
    entries = answer["meta_info"].get("input_token_logprobs")
    if not isinstance(entries, list) or not entries:
        raise _malformed("meta_info.input_token_logprobs", entries)
    try:
        return tuple(None if entry[0] is None else float(entry[0]) for entry in entries)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise _malformed("[log-probability, id, ...] for every prompt token", entries) from error
