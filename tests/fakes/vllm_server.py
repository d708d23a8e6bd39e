"""A fake vLLM server, as strict and as careless as release 0.32.0, for tests without a real one.

    async with FakeVLLM(lambda request: [5, 6, 7]) as server:
        engine = VLLMEngine(server.url)

It refuses what a real server refuses, and takes what a real one takes silently: unknown keys, ids
that are expanded already, placeholders without an image, another image under a known name.
"""

import asyncio
import base64
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from fakes.port_server import STATUS_FAILURES, PortServer, stream_events
from fakes.sglang_answer import spans
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_model import (
    FakeRequest,
    finish_reply,
    logprob_of,
    prefix_hashes,
    qwen_image_tokens,
)
from fakes.vllm_schema import Refusal, check_body, check_length, check_sampling, internal_error
from PIL import Image

Script = Callable[[FakeRequest], Sequence[int]]
_PREFIX = "generate-tokens-"
_BLOCK = 4
_RAW_SHIFT = 0.25


@dataclass(kw_only=True)
class VLLMSettings:
    """How the server was started, and what it serves."""

    model: str = "fake"
    vocabulary_size: int | None = None
    image_token_id: int | None = None
    context_length: int = 8192
    eos_ids: tuple[int, ...] = (2,)
    weight_version: str = "default"
    is_scaled_out: bool = True
    """`--enable-scale-out`."""
    is_processed: bool = True
    """`--logprobs-mode processed_logprobs`."""
    has_details: bool = True
    """`--enable-prompt-tokens-details`."""
    is_development: bool = False
    """`VLLM_SERVER_DEV_MODE=1`."""
    has_image_cache: bool = True
    """False for `--mm-processor-cache-gb 0`."""
    tokenizer: Callable[[str], list[int]] | None = None
    """None has no tokenize route, as with `--tokens-only`."""
    first_token_s: float = 0.0
    token_s: float = 0.0
    max_running: int = 256
    count_image_tokens: Callable[[int, int], int] = qwen_image_tokens


@dataclass(kw_only=True)
class _Live:
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    sampled: list[int] = field(default_factory=list[int])
    versions: list[str] = field(default_factory=list[str])


class FakeVLLM(PortServer):
    """One server on a free loopback port, in the running event loop."""

    def __init__(
        self, script: Script, *, failures: FailurePlan | None = None, **settings: Any
    ) -> None:
        """Prepare a server; `async with` starts it.

        Args:
            script: Writes each reply.
            failures: What goes wrong; None is nothing.
            settings: Of `VLLMSettings`.
        """
        self.settings = VLLMSettings(**settings)
        self.failures = failures or FailurePlan()
        self.is_healthy = True
        self.requests: list[dict[str, Any]] = []
        """Bodies of the token route, in order."""
        self.headers: list[Mapping[str, str]] = []
        self.aborts: list[str] = []
        self.sessions: list[str] = []
        self.running = 0
        self.abandoned = 0
        self.changes: dict[str, Any] = {}
        """Put over the first choice of every answer."""
        self.usage_changes: dict[str, Any] = {}
        self._script = script
        self._live: dict[str, _Live] = {}
        self._slots = asyncio.Semaphore(self.settings.max_running)
        self._images: dict[str, Image.Image] = {}
        self._prefixes: set[int] = set()

    def routes(self) -> list[web.RouteDef]:
        """Return what it answers."""
        return [
            web.post("/inference/v1/generate", self._generate),
            web.post("/inference/v1/abort_requests", self._abort),
            web.post("/tokenize", self._tokenize), web.get("/health", self._health),
            web.get("/version", self._version), web.get("/v1/models", self._models),
            web.get("/is_sleeping", self._is_sleeping),
            web.post("/reset_mm_cache", self._reset_images),
        ]  # fmt: skip

    async def start(self) -> None:
        """Listen, with empty caches."""
        self._images.clear()
        self._prefixes.clear()
        await super().start()

    # ---- routes

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        try:
            if not self.settings.is_scaled_out:
                raise Refusal("Forbidden", status=403, kind="Forbidden")
            body: Any = await request.json()
            check_body(body)
            self.requests.append(body)
            self.headers.append(request.headers)
            failure = self.failures.draw()
            await self._fail(request, failure)
            answer = await self._serve(body, request.headers)
            if body.get("stream"):
                usage = (body.get("stream_options") or {}).get("include_usage", False)
                return await stream_events(request, _deltas(answer, with_usage=usage))
            return web.json_response(answer)
        except Refusal as refusal:
            return refusal.response()

    async def _fail(self, request: web.Request, failure: Failure | None) -> None:
        if failure is not None and failure in STATUS_FAILURES:
            raise Refusal("injected", status=STATUS_FAILURES[failure], kind="ServiceUnavailable")
        if failure is Failure.INTERNAL:
            raise internal_error("EngineCore encountered an issue")
        if failure is Failure.RESET and request.transport is not None:
            request.transport.abort()
        if failure in (Failure.HANG, Failure.RESET):
            await asyncio.Event().wait()

    async def _abort(self, request: web.Request) -> web.Response:
        names = (await request.json())["request_ids"]
        self.aborts.extend(names)
        for name in names:  # whole names only, and no word about unknown ones
            live = self._live.get(name)
            if live is not None:
                live.aborted.set()
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.settings.tokenizer is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        ids = self.settings.tokenizer((await request.json())["prompt"])
        return web.json_response({"count": len(ids), "tokens": ids, "token_strs": None})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, _request: web.Request) -> web.Response:
        model = self.settings.model
        card = {"id": model, "root": model, "max_model_len": self.settings.context_length}
        return web.json_response({"object": "list", "data": [card]})

    async def _is_sleeping(self, _request: web.Request) -> web.Response:
        if not self.settings.is_development:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"is_sleeping": False})

    async def _reset_images(self, _request: web.Request) -> web.Response:
        self._images.clear()
        return web.Response(status=200 if self.settings.is_development else 404)

    # ---- a request

    async def _serve(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        wire: list[int] = body["token_ids"]
        params = body["sampling_params"]
        model = body.get("model")
        if model not in (None, self.settings.model):
            raise Refusal(f"The model `{model}` does not exist. ", status=404, kind="NotFoundError")
        check_sampling(params, self.settings.vocabulary_size)
        size = self.settings.vocabulary_size
        if size is not None and max(wire) >= size:
            raise Refusal(f"Token id {max(wire)} is out of vocabulary")
        images = self._resolve(body.get("content_parts") or [])
        ids, keys = self._expand(wire, images)
        check_length(len(ids), self.settings.context_length)
        name = _PREFIX + str(body.get("request_id", "random"))
        live = self._live[name] = _Live()
        session = headers.get("X-Session-ID", "")
        self.sessions.append(session)
        request = FakeRequest(
            index=len(self.requests) - 1,
            payload=body,
            wire_ids=tuple(wire),
            images=tuple(images),
            session=session,
        )
        try:
            async with self._slots:
                self.running += 1
                try:
                    finish = await self._sample(request, live, len(ids))
                finally:
                    self.running -= 1
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self._live.pop(name, None)
        return self._answer(body, name, (ids, keys), live, finish)

    def _resolve(self, parts: list[dict[str, Any]]) -> list[Image.Image]:
        found: list[Image.Image] = []
        for index, part in enumerate(parts):
            uuid, url = part.get("uuid"), part.get("url")
            picture = self._images.get(str(uuid))
            if picture is None and url is None:
                raise Refusal(f"Cache miss for image at index {index} but data is not provided.")
            if picture is None:
                try:
                    raw = base64.b64decode(str(url).partition("base64,")[2], validate=True)
                    with Image.open(io.BytesIO(raw)) as opened:
                        picture = opened.copy()
                except (OSError, ValueError) as error:
                    raise Refusal(f"Failed to load image: {error}") from error
                if uuid is not None and self.settings.has_image_cache:
                    self._images[uuid] = picture
            found.append(picture)
        return found

    def _expand(
        self, wire: Sequence[int], images: Sequence[Image.Image]
    ) -> tuple[list[int], list[int]]:
        """Expand the first placeholders, one per image; more of them stay words."""
        pad = self.settings.image_token_id
        if len(images) > list(wire).count(pad if pad is not None else -1):
            raise internal_error("Failed to apply prompt replacement for mm_items['image'][0]")
        ids: list[int] = []
        keys: list[int] = []
        left = list(images)
        for token in wire:
            if token != pad or not left:
                ids.append(token)
                keys.append(token)
                continue
            picture = left.pop(0)
            count = self.settings.count_image_tokens(*picture.size)
            ids += [token] * count
            keys += [hash((picture.size, picture.tobytes())) & 0xFFFFFFFF] * count
        return ids, keys

    async def _sample(self, request: FakeRequest, live: _Live, length: int) -> dict[str, Any]:
        settings = self.settings
        params = dict(request.payload["sampling_params"])
        room = settings.context_length - length
        params["max_new_tokens"] = min(params.get("max_tokens") or room, room)
        # The shared rules drop what is biased below -1000; vLLM cuts every bias to [-100, 100].
        params["logit_bias"] = {
            key: -1e4 if bias <= -100 else bias
            for key, bias in (params.get("logit_bias") or {}).items()
        }
        allowed = params.get("allowed_token_ids")
        written = allowed or self._script(request)
        reply = finish_reply(written, params, eos_ids=settings.eos_ids, decode=_decode)
        await _pause(live.aborted, settings.first_token_s)
        for token in reply.ids:
            if live.aborted.is_set():
                break
            live.sampled.append(token)
            live.versions.append(settings.weight_version)
            await _pause(live.aborted, settings.token_s)
        if len(live.sampled) < len(reply.ids):
            return {"finish_reason": "abort", "stop_reason": None}
        matched = reply.finish.get("matched")
        reason = None if matched in settings.eos_ids else matched
        return {"finish_reason": reply.finish["type"], "stop_reason": reason}

    @staticmethod
    def _ranked(token: int, logprob: float, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the most probable tokens in the server's order: the sampled one comes first."""
        others = range(1, params.get("logprobs") or 1)
        return [
            {"token_id": token + rank, "logprob": logprob + rank / 64, "rank": rank + 1}
            for rank in (0, *others)
        ]

    def _answer(
        self,
        body: Mapping[str, Any],
        name: str,
        prompt: tuple[list[int], list[int]],
        live: _Live,
        finish: dict[str, Any],
    ) -> dict[str, Any]:
        ids, keys = prompt
        params = body["sampling_params"]
        states = prefix_hashes([*keys, *live.sampled])
        values = [logprob_of(state) for state in states]
        content = [
            {"token_id": token, "logprob": self._logprob(value, params), "rank": 1,
             "top_logprobs": self._ranked(token, self._logprob(value, params), params)}
            for token, value in zip(live.sampled, values[len(ids) :], strict=True)
        ]  # fmt: skip
        cached = self._cached(states, len(ids), body.get("cache_salt"))
        choice = {
            "index": 0, **finish, "token_ids": list(live.sampled), "routed_experts": None,
            "sampling_mask": None, "weight_versions": spans(live.versions) or None,
            "logprobs": None if params.get("logprobs") is None else {"content": content},
            **self.changes,
        }  # fmt: skip
        details = {
            "cached_tokens": cached, "created_cache_tokens": None, "multimodal_tokens": None,
        }  # fmt: skip
        usage = {
            "prompt_tokens": len(ids), "completion_tokens": len(live.sampled),
            "total_tokens": len(ids) + len(live.sampled),
            "prompt_tokens_details": details if self.settings.has_details else None,
            "completion_tokens_details": None, **self.usage_changes,
        }  # fmt: skip
        scored = [None, *({str(token): {"logprob": value, "rank": 1}}
                  for token, value in zip(ids[1:], values[1:], strict=False))]  # fmt: skip
        wants_ids = bool(body.get("return_token_ids"))
        return {
            "request_id": name, "model": self.settings.model, "created": int(time.time()),
            "usage": usage, "choices": [choice], "output_mode": "tokens",
            "prompt_logprobs": None if params.get("prompt_logprobs") is None else scored,
            "prompt_token_ids": ids if wants_ids else None, "mm_placeholders": None,
            "prompt_token_id_logprobs": None, "metrics": None, "kv_transfer_params": None,
            "ec_transfer_params": None,
        }  # fmt: skip

    def _logprob(self, value: float, params: Mapping[str, Any]) -> float:
        if params.get("allowed_token_ids"):
            return 0.0 if self.settings.is_processed else value
        is_plain = params.get("temperature", 1.0) in (0, 1) and not params.get("logit_bias")
        return value if self.settings.is_processed or is_plain else value - _RAW_SHIFT

    def _cached(self, states: Sequence[int], length: int, salt: str | None) -> int:
        """Count whole blocks whose prefix was seen."""
        keys = [hash((salt, state)) for state in states]
        longest = 0
        while longest < length - 1 and keys[longest] in self._prefixes:
            longest += 1
        self._prefixes.update(keys[:-1])
        return longest // _BLOCK * _BLOCK


def _deltas(answer: dict[str, Any], *, with_usage: bool) -> list[dict[str, Any]]:
    """Split an answer into chunks of one token each, as vLLM streams."""
    (choice,) = answer["choices"]
    name = {"request_id": answer["request_id"], "output_mode": "tokens"}
    content = (choice["logprobs"] or {}).get("content")
    count = len(choice["token_ids"])
    chunks: list[dict[str, Any]] = []
    for n in range(max(1, count)):
        part = slice(n, n + 1)
        own = {**choice, "token_ids": choice["token_ids"][part]}
        own["logprobs"] = None if content is None else {"content": content[part]}
        if n < count - 1:
            own |= dict.fromkeys(("finish_reason", "stop_reason", "weight_versions"))
        chunks.append({**name, "choices": [own], "usage": None})
    if answer.get("prompt_token_ids") is not None:
        chunks[0]["prompt_token_ids"] = answer["prompt_token_ids"]
    if with_usage:
        usage = {key: value for key, value in answer["usage"].items() if value is not None}
        chunks.append({**name, "choices": [], "usage": usage})
    return chunks


def _decode(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


async def _pause(aborted: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(aborted.wait(), seconds)
