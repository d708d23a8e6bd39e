"""vLLM's token route: images cached on the server, the meaning of a 500, and its flags."""

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from envkit.errors import EngineFault, FaultKind
from envkit.rollout.engine import GenerateRequest, Generation, LogprobKind, Sampling
from envkit_remote import Dialect, FlagCheck, Outgoing, ServerInfo
from envkit_remote.answers import page_object, read_json
from envkit_remote.body import encode_body
from envkit_remote.dialect import Fetch
from envkit_remote.faults import CONNECTION_ERRORS, asking, error_message
from envkit_remote.transport import Answer, Transport
from envkit_vllm import payload, response

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
        """Return the body; see `payload`."""
        return payload.generate_fields(
            request, max_new_tokens=max_new_tokens, with_prompt_ids=with_prompt_ids
        )

    def stream_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with `stream`, and the token counts that `generation` checks."""
        return {**fields, "stream": True, "stream_options": {"include_usage": True}}

    def join(
        self, whole: dict[str, Any] | None, event: dict[str, Any]
    ) -> tuple[dict[str, Any], Sequence[int]]:
        """Return the answer with an event; see `response`."""
        return response.join(whole, event)

    def score_fields(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the body of a request that reports every prompt token."""
        return payload.score_fields(ids)

    def encode(self, outgoing: Outgoing, *, is_again: bool) -> bytes:
        """Return the body; cached images are sent by name, unless the server lost one."""
        known = self._known if self._has_cache and not is_again else ()
        fields = {"request_id": outgoing.rid, **outgoing.fields}
        parts = payload.image_parts(outgoing.images, known=known)
        return encode_body(fields, "content_parts", parts)

    def settle(self, outgoing: Outgoing, answer: Answer) -> bool:
        """Record which images the server has; True if it lost one that was sent by name.

        If an image is lost each time, the server has no cache: from then on, images are always sent
        in full.
        """
        names = {image.sha256 for image in outgoing.images}
        if answer.status == 400 and _CACHE_MISS in answer.body:
            if not self._has_cache:
                return False
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
        """Check the health route to interpret a 500; the texts differ between releases.

        A server whose engine died answers requests for about a second before it exits.
        """
        said = f"vLLM at {http.base_url} answered 500: {error_message(answer.body)}"
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

    def parse(self, body: bytes) -> dict[str, Any]:
        """Return a body with one choice."""
        return response.parse_object(body)

    def generation(self, answer: Mapping[str, Any], *, train_length: int, rid: str) -> Generation:
        """Return the sampled reply; see `response`."""
        return response.parse_generation(answer, train_length=train_length, rid=rid)

    def answered(self, answer: Mapping[str, Any]) -> str | None:
        """Return the id in our form."""
        found = answer.get("request_id")
        return found.removeprefix(_NAME_PREFIX) if isinstance(found, str) else None

    def prompt_ids(self, answer: Mapping[str, Any]) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Return the expanded prompt, if it was requested."""
        return answer.get("prompt_token_ids")

    def prompt_logprobs(self, answer: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Return one value per prompt token."""
        return response.parse_prompt_logprobs(answer)

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
        """Return the flags without which something fails silently."""
        return await _read_flags(http, self)


async def _read_flags(http: Transport, dialect: VLLMDialect) -> list[FlagCheck]:
    """Sample one token and inspect the answer.

    Raises:
        EngineFault: The server does not answer.
    """
    body = json.dumps(dialect.kind_probe(_PROBE_TOKEN)).encode()
    async with asking(dialect.title, http, _FLAGS_S, "for its flags"):
        answer = await http.post(dialect.generate_path, body)
        development = await http.get("/is_sleeping")
    if answer.status not in (200, 403):
        raise await dialect.status_fault(http, answer)
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
        found += _of_answer(answer, dialect)
    found.append(
        FlagCheck(
            flag="VLLM_SERVER_DEV_MODE=1",
            is_set=development.status == 200,
            is_required=False,
            matters="no pause, weight or cache routes, which a trainer that updates weights needs; "
            "do not expose them to an open network",
        )
    )
    return found


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
