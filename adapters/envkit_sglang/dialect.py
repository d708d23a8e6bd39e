"""SGLang's native `/generate`: bodies, answers and advice."""

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from envkit.errors import EngineFault
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind, Sampling
from envkit_remote import Dialect, Outgoing, ServerInfo
from envkit_remote.answers import page_object
from envkit_remote.body import encode_body
from envkit_remote.dialect import Fetch
from envkit_remote.faults import error_message
from envkit_remote.transport import Answer, Transport
from envkit_sglang import payload, response

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
        """Return the body; see `payload`."""
        return payload.generate_fields(
            request, max_new_tokens=max_new_tokens, return_prompt_token_ids=with_prompt_ids
        )

    def stream_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with `stream`; see `payload`."""
        return payload.stream_fields(fields)

    def join(
        self, whole: dict[str, Any] | None, event: dict[str, Any]
    ) -> tuple[dict[str, Any], Sequence[int]]:
        """Return the answer with an event; see `response`."""
        return response.join(whole, event)

    def score_fields(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the body of a request that samples nothing."""
        return payload.score_fields(ids)

    def encode(self, outgoing: Outgoing, *, is_again: bool) -> bytes:
        """Return the body with its rid and all its images."""
        del is_again
        fields = {**outgoing.fields, "rid": outgoing.rid}
        return encode_body(fields, "image_data", payload.image_parts(outgoing.images))

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

    def parse(self, body: bytes) -> dict[str, Any]:
        """Return a body with `meta_info`."""
        return response.parse_object(body)

    def generation(self, answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
        """Return what was sampled; see `response`."""
        return response.parse_generation(answer, train_length=train_length, rid=rid)

    def answered(self, answer: Mapping[str, Any]) -> str | None:
        """Return the id in `meta_info`."""
        return _text(answer["meta_info"].get("id"))

    def prompt_ids(self, answer: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Return the prompt; None from older servers and aborted requests."""
        return answer.get("prompt_token_ids")

    def prompt_logprobs(self, answer: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Return one value per prompt token."""
        return response.parse_input_logprobs(answer)

    async def fetch_info(self, fetch: Fetch) -> ServerInfo:
        """Return the facts of `/server_info`, which not every router offers."""
        return parse_server_info(await fetch("/server_info"))

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


def parse_server_info(body: bytes) -> ServerInfo:
    """Return the facts of a `/server_info` body; absent and odd values become None.

    Older servers keep the scheduler's numbers under "scheduler_info", newer ones at the top level.

    Raises:
        EngineFault: The body is not a JSON object.
    """
    answer = page_object("/server_info", body)
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


def _integer(value: Any) -> int | None:  # noqa: ANN401  # whatever JSON holds
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:  # noqa: ANN401  # whatever JSON holds
    return value if isinstance(value, str) else None
