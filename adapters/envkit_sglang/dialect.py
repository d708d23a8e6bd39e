"""SGLang's native `/generate`: bodies, answers and advice.

Only documented keys are used, because servers from 0.5.23 on reject an unknown sampling parameter
with a 400 (python/sglang/api/v1/api_types.py). Ids are wire ids, one placeholder per image, and
`text` is never sent with them: with images a server would prefer the text.

Token ids and log-probabilities are read from `meta_info.output_token_logprobs`, whose entries are
`[log-probability, id, text or null]`, and must agree with `output_ids` and `completion_tokens`.
They include the stop token or the tokens of a stop string (SGLang 0.5.23,
python/sglang/srt/managers/scheduler_components/output_streamer.py). The `text` is ignored.
"""

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from envkit import fast_json
from envkit.errors import EngineFault, FaultKind
from envkit.retry_after import UNAVAILABLE_STATUS
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, LogprobKind, Sampling
from envkit_remote.answers import AnswerReader, check_tokens, page_object
from envkit_remote.body import BodyRules, body_parts
from envkit_remote.dialect import Dialect, Fetch, Outgoing, ServerInfo
from envkit_remote.faults import error_message, shown
from envkit_remote.parts import Parts
from envkit_remote.prompt import check_length
from envkit_remote.transport import Answer, Transport

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
_KEY: Final = "pass api_key=... as the server was started with --api-key"
_PROBE_TEMPERATURE: Final = 1000.0
_PROBE_TOKENS: Final = 20
_PROBE_SPREAD: Final = 0.05


class SGLangDialect(Dialect):
    """See python/sglang/srt/entrypoints/http_server.py of SGLang 0.5.23."""

    name = "sglang"
    title = "SGLang"
    generate_path = "/generate"
    abort_path = "/abort_request"
    # SGLang's router keeps the requests of one key on one worker (consistent hashing), where the
    # episode's prefix is cached. SGLang's own python/sglang/benchmark/serving.py and slime's
    # slime/rollout/sglang_rollout.py send the same header.
    session_header = "X-SMG-Routing-Key"
    advice: ClassVar[Mapping[int, str]] = MappingProxyType(
        {
            401: _KEY,
            403: _KEY,
            404: "Is this the address of an SGLang server, without a path such as /v1?",
        }
    )
    timeout_hint = (
        ": a healthy /health with a request that never ends is how Qwen2.5-VL servers treat "
        "expanded image placeholders"
    )
    raw_advice = "start it without SGLANG_RETURN_ORIGINAL_LOGPROB, or sample at temperature 1"
    changed_hint = (
        "it decodes and re-tokenises ids instead of keeping them (SGLANG_MM_AVOID_RETOKENIZE, a "
        "patched image processor)"
    )

    def generate_fields(
        self, request: GenerateRequest, *, max_new_tokens: int, with_prompt_ids: bool
    ) -> dict[str, Any]:
        """Return a request's body without its rid, prompt and images.

        Raises:
            ConfigurationError: See `BodyRules.request_fields`.
        """
        fields: dict[str, Any] = {
            "sampling_params": _sampling_params(request.sampling, max_new_tokens=max_new_tokens),
            "return_logprob": True,
            **RULES.request_fields(request.sampling.extras),
        }
        if request.top_logprobs:
            fields["top_logprobs_num"] = request.top_logprobs
        if with_prompt_ids:
            fields["return_prompt_token_ids"] = True
        return fields

    def stream_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's body for an answer as events.

        Each event repeats the ids and log-probabilities before it, so a budget gets a fixed number
        of events: with one per token, a reply of 8,192 tokens would be a gigabyte.
        """
        params = fields["sampling_params"]
        interval = max(1, params["max_new_tokens"] // STREAM_EVENTS)
        paced = {**params, "stream_interval": interval}
        return {**fields, "stream": True, "sampling_params": paced}

    def join(
        self, whole: dict[str, Any] | None, event: dict[str, Any]
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

    def score_fields(self) -> dict[str, Any]:
        """Return the body of a request that samples nothing and reports every prompt token."""
        params = {"max_new_tokens": 0, "temperature": 1.0, "skip_special_tokens": False}
        return {
            "sampling_params": params,
            "return_logprob": True,
            "logprob_start_len": 0,
        }

    def encode(self, outgoing: Outgoing, *, is_again: bool) -> Parts:
        """Return the body with its rid and all its images."""
        del is_again
        ids = fast_json.Raw(outgoing.prompt.json)
        fields = {**outgoing.fields, "rid": outgoing.rid, "input_ids": ids}
        images = ((b'"', image.data_uri_bytes(), b'"') for image in outgoing.images)
        return body_parts(fields, "image_data", images)

    def abort_fields(self, rid: str) -> dict[str, Any]:
        """Return the body; SGLang aborts every rid with this prefix."""
        return {"rid": rid}

    async def internal_error(self, http: Transport, answer: Answer) -> EngineFault:
        """Return a retryable fault: a 500 is an unexpected exception, which may be transient."""
        return EngineFault(
            f"SGLang at {http.base_url} answered 500: {error_message(answer.body)}. A 500 for a "
            "request with images often means that the ids held expanded image placeholders; send "
            "one per image. The server's log has the traceback",
            retryable=True,
        )

    def parse(self, answer: Answer) -> dict[str, Any]:
        """Return a 200 answer as a JSON object with `meta_info`.

        Raises:
            EngineFault: It is something else.
        """
        fields = _READER.json_object(answer)
        if not isinstance(fields.get("meta_info"), dict):
            raise _READER.malformed("a meta_info object", fields)
        return fields

    def generation(self, answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
        """Return the sampled reply; the extras keep the rid, for log lookups.

        Raises:
            EngineFault: The answer is not one of SGLang's, or the server abandoned the request.
            LedgerFault: Counts or ids contradict each other, or the prompt had another length.
        """
        meta: Mapping[str, Any] = answer["meta_info"]
        reason = _finish_reason(meta)
        token_ids, logprobs = _tokens(answer, meta)
        prompt_tokens = _READER.count(meta, "prompt_tokens")
        # A request that was aborted in the queue has no count yet.
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

    def answered(self, answer: Mapping[str, Any]) -> str | None:
        """Return the id in `meta_info`."""
        return _text(answer["meta_info"].get("id"))

    def prompt_ids(self, answer: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Return the prompt; None from older servers and aborted requests."""
        return answer.get("prompt_token_ids")

    def prompt_logprobs(self, answer: Mapping[str, Any]) -> tuple[float | None, ...]:
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

    async def fetch_info(self, fetch: Fetch) -> ServerInfo:
        """Return the facts of `/server_info`, which not every router offers.

        Absent and odd values become None. Older servers keep the scheduler's numbers under
        "scheduler_info", newer ones at the top level.

        Raises:
            EngineFault: The body is not a JSON object.
        """
        answer = page_object("/server_info", await fetch("/server_info"))
        nested = answer.get("scheduler_info")
        scheduler: dict[str, Any] = nested if isinstance(nested, dict) else {}
        longest = answer.get("max_req_input_len", scheduler.get("max_req_input_len"))
        return ServerInfo(
            version=_text(answer.get("version")),
            model=_text(answer.get("model_path")),
            served_model_name=_text(answer.get("served_model_name")),
            context_length=_integer(answer.get("context_length")),
            max_prompt_length=_integer(longest),
            weight_version=_text(answer.get("weight_version")),
            is_deterministic=bool(answer.get("enable_deterministic_inference")),
            returns_routed_experts=bool(answer.get("enable_return_routed_experts")),
        )

    def kind_matters(self, sampling: Sampling) -> bool:
        """Return whether the kinds differ; they agree at temperature 0 and 1."""
        return sampling.temperature not in (0.0, 1.0)

    def kind_probe(self, token: int) -> dict[str, Any]:
        """Sample at a very high temperature, where all tokens are almost equally likely.

        The top tokens of the sampled distribution are close together; those of the unscaled one are
        not.
        """
        return {
            "input_ids": [token],
            "sampling_params": {"max_new_tokens": 1, "temperature": _PROBE_TEMPERATURE},
            "return_logprob": True,
            "top_logprobs_num": _PROBE_TOKENS,
        }

    def probed_kind(self, body: bytes) -> LogprobKind | None:
        """Return the kind from the spread of the top tokens."""
        try:
            top: Any = json.loads(body)["meta_info"]["output_top_logprobs"][0]
            values = [float(entry[0]) for entry in top]
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            return None
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return None
        spread = max(values) - min(values)
        return LogprobKind.SAMPLED if spread < _PROBE_SPREAD else LogprobKind.RAW


def _sampling_params(sampling: Sampling, *, max_new_tokens: int) -> dict[str, Any]:
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


def _finish_reason(meta: Mapping[str, Any]) -> FinishReason:
    finish: Any = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else None
    if not isinstance(kind, str) or kind not in set(FinishReason):
        raise _READER.malformed("a finish_reason of type stop, length or abort", finish)
    reason = FinishReason(kind)
    # SGLang reports a request that it gave up as an abort with a status, in an answer of 200.
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


def _integer(value: Any) -> int | None:  # noqa: ANN401  # whatever JSON holds
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:  # noqa: ANN401  # whatever JSON holds
    return value if isinstance(value, str) else None
