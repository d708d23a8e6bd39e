"""vLLM's token route: bodies, answers, images cached on the server, a 500's meaning, and flags.

A request holds ids with one placeholder per image, and the images. The server ignores unknown keys,
at the top level and in `sampling_params`, so extras are checked against the keys of release 0.32
(vllm/sampling_params.py and vllm/entrypoints/scale_out/token_in_token_out/protocol.py).
"""

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar, Final

from envkit import fast_json
from envkit.errors import EngineFault, FaultKind, LedgerFault
from envkit.images import Image
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, LogprobKind, Sampling
from envkit_remote.answers import AnswerReader, check_tokens, page_object, read_json
from envkit_remote.body import BodyRules, body_parts
from envkit_remote.dialect import Dialect, Fetch, FlagCheck, Outgoing, ServerInfo
from envkit_remote.faults import CONNECTION_ERRORS, asking, error_message
from envkit_remote.parts import Parts
from envkit_remote.prompt import check_length
from envkit_remote.transport import Answer, Transport

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
_READER: Final = AnswerReader("vLLM", "0.32")
_NO_LOGPROB: Final = -9998.0
"""Lower bound above -9999.0, which vLLM writes for NaN and unreported values."""
_FINAL: Final = ("index", "finish_reason", "stop_reason", "weight_versions", "routed_experts")
"""Fields of a streamed choice that have one value for the whole reply."""
_WHOLE: Final = ("request_id", "prompt_token_ids", "usage")
_PASSED_ON: Final = ("routed_experts", "sampling_mask")
_NAME_PREFIX: Final = "generate-tokens-"
"""Prefix that the server adds to a request id; aborts need the full id."""
_CACHE_MISS: Final = b"Cache miss for image"
_MAX_IMAGES: Final = 1 << 13
"""Maximum images assumed to be cached on the server; the oldest are sent again."""
_HEALTH_S: Final = 5.0
_PROBE_TOLERANCE: Final = 1e-3
_FLAGS_S: Final = 60.0
_PROBE_TOKEN: Final = 1


class VLLMDialect(Dialect):
    """See vllm/entrypoints/scale_out/token_in_token_out of vLLM 0.32.0."""

    name = "vllm"
    title = "vLLM"
    generate_path = "/inference/v1/generate"
    abort_path = "/inference/v1/abort_requests"
    session_header = "X-Session-ID"
    advice: ClassVar[Mapping[int, str]] = MappingProxyType(
        {
            401: "Pass api_key=... as the server was started with --api-key",
            403: "Start the server with --enable-scale-out",
            404: "Is this a vLLM server of release 0.32, its address without a path such as /v1, "
            'and is the adapter of extras["model"] loaded?',
        }
    )
    timeout_hint = ": vLLM 0.32 keeps new requests waiting after /pause"
    raw_advice = "start it with --logprobs-mode processed_logprobs"
    changed_hint = "the ids must be wire ids, one placeholder per image"

    def __init__(self) -> None:
        """Start with no image on the server."""
        self._known: OrderedDict[str, None] = OrderedDict()
        self._missed: set[str] = set()
        self._has_cache = True

    def generate_fields(
        self, request: GenerateRequest, *, max_new_tokens: int, with_prompt_ids: bool
    ) -> dict[str, Any]:
        """Return a request's body without its name, prompt and images.

        Raises:
            ConfigurationError: See `BodyRules.request_fields`.
        """
        fields: dict[str, Any] = {
            "sampling_params": _sampling_params(request.sampling, max_new_tokens=max_new_tokens),
            **RULES.request_fields(request.sampling.extras),
        }
        if request.top_logprobs:
            fields["sampling_params"]["logprobs"] = request.top_logprobs
        if with_prompt_ids:
            fields["return_token_ids"] = True
        return fields

    def stream_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with `stream`, and the token counts that `generation` checks."""
        return {**fields, "stream": True, "stream_options": {"include_usage": True}}

    def join(
        self, whole: dict[str, Any] | None, event: dict[str, Any]
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

    def score_fields(self) -> dict[str, Any]:
        """Return the body of a request that reports every prompt token and samples one."""
        return {
            "return_token_ids": True,
            "sampling_params": {
                "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False,
            },
        }  # fmt: skip

    def encode(self, outgoing: Outgoing, *, is_again: bool) -> Parts:
        """Return the body; cached images are sent by name, unless the server lost one."""
        known = self._known if self._has_cache and not is_again else ()
        ids = fast_json.Raw(outgoing.prompt.json)
        fields = {"request_id": outgoing.rid, "token_ids": ids, **outgoing.fields}
        parts = (_part(image, with_bytes=image.sha256 not in known) for image in outgoing.images)
        return body_parts(fields, "content_parts", parts)

    def settle(self, outgoing: Outgoing, answer: Answer) -> bool:
        """Record which images the server has; True if it lost one that was sent by name."""
        names = {image.sha256 for image in outgoing.images}
        # The server forgets images on its own, and says so only when one is asked for by name.
        if answer.status == 400 and _CACHE_MISS in answer.body:
            if not self._has_cache:
                return False
            # If an image is lost each time, the server has no cache.
            self._has_cache = not names <= self._missed
            self._missed = (self._missed | names) if self._has_cache else set()
            for name in names:
                self._known.pop(name, None)
            return True
        if answer.status == 200:
            for name in names:
                if name in self._known:
                    self._missed.discard(name)
                self._known[name] = None
                self._known.move_to_end(name)
            while len(self._known) > _MAX_IMAGES:
                self._known.popitem(last=False)
        return False

    def abort_fields(self, rid: str) -> dict[str, Any]:
        """Return the body, with the server's form of our id."""
        return {"request_ids": [_NAME_PREFIX + rid]}

    async def internal_error(self, http: Transport, answer: Answer) -> EngineFault:
        """Check the health route to interpret a 500; the texts differ between releases."""
        said = f"vLLM at {http.base_url} answered 500: {error_message(answer.body)}"
        # A server whose engine died answers requests for about a second before it exits.
        try:
            async with asyncio.timeout(_HEALTH_S):
                is_alive = (await http.get("/health")).status == 200
        except (TimeoutError, *CONNECTION_ERRORS):
            is_alive = False
        if is_alive:
            return EngineFault(f"{said}. The server's log has the traceback")
        return EngineFault(
            f"{said}, and its health route fails: its engine process died. See the end of "
            "its log and restart it",
            kind=FaultKind.CRASHED,
            is_unavailable=True,
        )

    def parse(self, answer: Answer) -> dict[str, Any]:
        """Return a 200 answer as a JSON object with one choice.

        Raises:
            EngineFault: It is something else.
        """
        fields = _READER.json_object(answer)
        choices = fields.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise _READER.malformed("one choice", choices)
        if not isinstance(fields.get("usage"), dict):
            raise _READER.malformed("a usage object", fields.get("usage"))
        return fields

    def generation(self, answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
        """Return the sampled reply, including the stop token or the tokens of a stop string.

        Only the server's count of the prompt reveals a wrong number of placeholders, which it
        accepts silently. The extras keep the request's id, for log lookups.

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

    def answered(self, answer: Mapping[str, Any]) -> str | None:
        """Return the id in our form."""
        found = answer.get("request_id")
        return found.removeprefix(_NAME_PREFIX) if isinstance(found, str) else None

    def prompt_ids(self, answer: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Return the expanded prompt, if it was requested."""
        return answer.get("prompt_token_ids")

    def prompt_logprobs(self, answer: Mapping[str, Any]) -> tuple[float | None, ...]:
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

    async def fetch_info(self, fetch: Fetch) -> ServerInfo:
        """Return the facts of `/v1/models` and `/version`."""
        models = page_object("/v1/models", await fetch("/v1/models"))
        version = page_object("/version", await fetch("/version")).get("version")
        try:
            card = models["data"][0]
            length, root, name = card["max_model_len"], card.get("root"), card["id"]
        except (TypeError, LookupError, AttributeError) as error:
            raise EngineFault(
                f"/v1/models must list the served model, got {models!r:.200}"
            ) from error
        return ServerInfo(
            version=version if isinstance(version, str) else None,
            model=root if isinstance(root, str) else None,
            served_model_name=name if isinstance(name, str) else None,
            context_length=length if isinstance(length, int) else None,
            is_deterministic=True,
        )

    def kind_matters(self, sampling: Sampling) -> bool:
        """Return whether the kinds differ; they agree for plain sampling at temperature 0 or 1."""
        return bool(
            sampling.temperature not in (0.0, 1.0)
            or sampling.top_p != 1.0
            or sampling.top_k
            or sampling.banned_ids
            or sampling.extras
        )

    def kind_probe(self, token: int) -> dict[str, Any]:
        """Allow a single token: its probability in the sampled distribution is 1."""
        return {
            "token_ids": [token],
            "sampling_params": {
                "max_tokens": 1, "temperature": 1.0, "logprobs": 0, "detokenize": False,
                "allowed_token_ids": [token],
            },
        }  # fmt: skip

    def probed_kind(self, body: bytes) -> LogprobKind | None:
        """Return the kind from the allowed token's log-probability."""
        try:
            entry: Any = json.loads(body)["choices"][0]["logprobs"]["content"][0]
            value = float(entry["logprob"])
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            return None
        if not math.isfinite(value):
            return None
        return LogprobKind.SAMPLED if abs(value) < _PROBE_TOLERANCE else LogprobKind.RAW

    async def flags(self, http: Transport) -> list[FlagCheck]:
        """Sample one token, and return the flags without which something fails silently.

        Raises:
            EngineFault: The server does not answer.
        """
        body = json.dumps(self.kind_probe(_PROBE_TOKEN)).encode()
        async with asking(http, _FLAGS_S, "for its flags"):
            answer = await http.post(self.generate_path, body)
            development = await http.get("/is_sleeping")
        if answer.status not in (200, 403):
            raise await self.status_fault(http, answer)
        is_open = answer.status == 200
        found = [
            FlagCheck(
                flag="--enable-scale-out",
                is_set=is_open,
                is_required=True,
                matters="the token route answers 403, so nothing can be sampled",
            )
        ]
        if is_open:
            found += _of_answer(answer, self)
        found.append(
            FlagCheck(
                flag="VLLM_SERVER_DEV_MODE=1",
                is_set=development.status == 200,
                is_required=False,
                matters="no pause, weight or cache routes, which a trainer that updates weights "
                "needs; do not expose them to an open network",
            )
        )
        return found


def _sampling_params(sampling: Sampling, *, max_new_tokens: int) -> dict[str, Any]:
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


def _part(image: Image, *, with_bytes: bool) -> tuple[bytes, ...]:
    """Return the JSON of an image, in parts.

    The server's name of an image is the hash of its pixels: the server trusts it, and would use
    another image's features under the same name.
    """
    name = b'{"type":"image_url","uuid":"%s"' % image.sha256.encode()
    if not with_bytes:
        return name, b"}"
    return name, b',"url":"', image.data_uri_bytes(), b'"}'


def _tokens(
    choice: Mapping[str, Any], usage: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    wanted = "choices[0].logprobs.content with token_id and logprob for every token"
    content = _content(choice, wanted)
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


def _content(choice: Mapping[str, Any], wanted: str) -> Any:  # noqa: ANN401  # whatever JSON holds
    logprobs = choice.get("logprobs") or {}
    if not isinstance(logprobs, dict):
        raise _READER.malformed(wanted, logprobs)
    return logprobs.get("content")


def _top_logprobs(choice: Mapping[str, Any]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the most probable tokens of each position, which are empty unless asked for."""
    wanted = "choices[0].logprobs.content with top_logprobs for every token"
    content: list[Any] = _content(choice, wanted) or []
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


def _of_answer(answer: Answer, dialect: VLLMDialect) -> list[FlagCheck]:
    try:
        usage: Any = read_json(dialect.title, answer.body)["usage"]
    except (TypeError, LookupError) as error:
        raise EngineFault(f"not an answer of vLLM's token route: {answer.body[:80]!r}") from error
    return [
        FlagCheck(
            flag="--logprobs-mode processed_logprobs",
            is_set=dialect.probed_kind(answer.body) is LogprobKind.SAMPLED,
            is_required=True,
            matters="log-probabilities are those before temperature, bans and top-p",
        ),
        FlagCheck(
            flag="--enable-prompt-tokens-details",
            is_set=isinstance(usage.get("prompt_tokens_details"), dict),
            is_required=False,
            matters="cached tokens are reported as 0",
        ),
    ]
