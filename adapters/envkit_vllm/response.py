"""Parse an answer of the token route, cross-check it and build a `Generation`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from envkit.errors import LedgerFault
from envkit.rollout.engine import FinishReason, Generation
from envkit_remote.answers import AnswerReader, check_tokens
from envkit_remote.prompt import check_length

_READER: Final = AnswerReader("vLLM", "0.32")
_NO_LOGPROB: Final = -9998.0
"""Lower bound above -9999.0, which vLLM writes for NaN and unreported values."""
_FINAL: Final = ("index", "finish_reason", "stop_reason", "weight_versions", "routed_experts")
"""Fields of a streamed choice that have one value for the whole reply."""
_WHOLE: Final = ("request_id", "prompt_token_ids", "usage")
_PASSED_ON: Final = ("routed_experts", "sampling_mask")


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a 200 body as a JSON object with one choice.

    Raises:
        EngineFault: It is something else.
    """
    answer = _READER.json_object(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise _READER.malformed("one choice", choices)
    if not isinstance(answer.get("usage"), dict):
        raise _READER.malformed("a usage object", answer.get("usage"))
    return answer


def join(
    whole: dict[str, Any] | None, event: dict[str, Any]
) -> tuple[dict[str, Any], Sequence[int]]:
    """Return the answer so far with a further event, and the ids that it adds.

    An event has its own tokens only, and the last one the counts (vllm/entrypoints/scale_out/
    token_in_token_out/serving.py).
    """
    joined = {"choices": [{"token_ids": []}]} if whole is None else whole
    choice: dict[str, Any] = joined["choices"][0]
    ids: list[int] = []
    for more in event["choices"]:
        ids = more.get("token_ids") or []
        choice["token_ids"] += ids
        if more.get("logprobs") is not None:
            known = choice.setdefault("logprobs", {"content": []})
            known["content"] += more["logprobs"]["content"]
        if more.get("sampling_mask") is not None:
            choice["sampling_mask"] = [*choice.get("sampling_mask", ()), *more["sampling_mask"]]
        choice |= {key: more[key] for key in _FINAL if more.get(key) is not None}
    joined |= {key: event[key] for key in _WHOLE if event.get(key) is not None}
    return joined, ids


def parse_generation(answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
    """Return the sampled reply, including the stop token or the tokens of a stop string.

    Args:
        answer: From `parse_object`.
        train_length: Prompt length with images expanded. Only the server's count reveals a wrong
            number of placeholders, which it accepts silently.
        rid: Id of the request; kept in the extras for log lookups.

    Raises:
        EngineFault: The answer is not one of vLLM's token route.
        LedgerFault: Counts or ids contradict each other, or the prompt had another length.
    """
    choice, usage = answer["choices"][0], answer["usage"]
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or reason not in set(FinishReason):
        raise _READER.malformed("a finish_reason stop, length or abort", reason)
    token_ids, logprobs = _tokens(choice, usage)
    prompt_tokens = _READER.count(usage, "prompt_tokens")
    if prompt_tokens is None:
        raise _READER.malformed("usage.prompt_tokens", sorted(usage))
    check_length(prompt_tokens, train_length)
    details = usage.get("prompt_tokens_details")
    cached = _READER.count(details, "cached_tokens") if isinstance(details, dict) else None
    extras: dict[str, Any] = {"rid": rid}
    extras |= {key: choice[key] for key in _PASSED_ON if choice.get(key) is not None}
    versions = _versions(choice.get("weight_versions"))
    if len(versions) > 1:
        extras["weight_versions"] = choice["weight_versions"]
    return Generation(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=FinishReason(reason),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached or 0,
        weight_version=versions[-1] if versions else None,
        top_logprobs=_top_logprobs(choice),
        extras=extras,
    )


def _tokens(
    choice: Mapping[str, Any], usage: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    wanted = "choices[0].logprobs.content with token_id and logprob for every token"
    content = (choice.get("logprobs") or {}).get("content")
    output_ids = choice.get("token_ids")
    if content is None and not output_ids:
        content = []  # aborted before its first token
    if not isinstance(content, list):
        raise _READER.malformed(wanted, choice.get("logprobs"))
    token_ids, logprobs = _READER.tokens(content, "logprob", "token_id", wanted)
    check_tokens(token_ids, output_ids or [], _READER.count(usage, "completion_tokens"))
    if logprobs and min(logprobs) < _NO_LOGPROB:
        raise LedgerFault(
            "vLLM reported -9999.0 as a log-probability, which means NaN or unreported"
        )
    return token_ids, logprobs


def _top_logprobs(choice: Mapping[str, Any]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the most probable tokens of each position, which are empty unless asked for."""
    wanted = "choices[0].logprobs.content with top_logprobs for every token"
    content: list[Any] = (choice.get("logprobs") or {}).get("content") or []
    rows = [entry.get("top_logprobs") or [] for entry in content]
    return _READER.ranked(rows, "logprob", "token_id", wanted)


def _versions(spans: Any) -> list[str]:  # noqa: ANN401  # whatever JSON holds
    """Return the weight versions of a reply in order; empty if the server does not report them.

    Raises:
        EngineFault: They are not spans.
    """
    if spans is None:
        return []
    try:
        found = [(span["version"], span["start"], span["end"]) for span in spans]
        if any(first[2] != second[1] for first, second in pairwise(found)):
            raise TypeError
    except (TypeError, LookupError) as error:
        raise _READER.malformed("weight_versions with version, start and end", spans) from error
    return [str(version) for version, _, _ in found if version is not None]


def parse_prompt_logprobs(answer: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Return the log-probability of every prompt token, images expanded; None for the first.

    Raises:
        EngineFault: The server did not return them.
    """
    wanted = "prompt_logprobs and prompt_token_ids"
    entries, ids = answer.get("prompt_logprobs"), answer.get("prompt_token_ids")
    try:
        pairs = list(zip(entries or (), ids or (), strict=True))
        values = [float(entry[str(token)]["logprob"]) for entry, token in pairs[1:]]
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise _READER.malformed(wanted, entries) from error
    if not pairs:
        raise _READER.malformed(wanted, entries)
    return (None, *values)
