"""The worker behind the fake server's routes: queue, prefix cache, sampling, aborts."""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fakes import sglang_answer, sglang_model
from fakes.sglang_failures import Failure
from fakes.sglang_schema import check_sampling_values, value_refusal

Script = Callable[[sglang_model.FakeRequest], Sequence[int] | str]


class CrashError(Exception):
    """The scheduler died, and the server with it."""


def no_text(_text: str) -> list[int]:
    """Stand for a tokenizer that a test did not give."""
    raise RuntimeError("this fake server has no tokenizer (encode=...): let the script return ids")


def spell(ids: Sequence[int]) -> str:
    """Decode without a tokenizer."""
    return "".join(f"<{token}>" for token in ids)


@dataclass(kw_only=True)
class WorkerSettings:
    """What a fake server is like. Tests may change a running one."""

    encode: Callable[[str], list[int]] = no_text
    """Text to ids, for textual replies and prompts."""
    decode: sglang_answer.Decode = spell
    eos_ids: tuple[int, ...] = (2,)
    """Ids that end a reply; the first ends one that the script left open."""
    image_token_id: int | None = None
    """The placeholder; None expands nothing."""
    count_image_tokens: Callable[[int, int], int] = sglang_model.qwen_image_tokens
    """Width and height to the number of tokens."""
    family: sglang_model.Family = sglang_model.Family.QWEN2_5_VL
    context_length: int = 8192
    vocabulary_size: int | None = None
    """An id outside it crashes the server, as it does a real one."""
    max_running: int = 4096
    """Requests at once; the others wait in the queue. Fixed when the server is made."""
    first_token_s: float = 0.0
    token_s: float = 0.0
    model_path: str = "fake"
    """What the server says it serves."""
    served_model_name: str = "fake"
    weight_version: str = "default"
    reports_raw_logprobs: bool = False
    """Like SGLANG_RETURN_ORIGINAL_LOGPROB."""
    routed_experts: tuple[int, int] | None = None
    """Layers and experts per token; None is a server without --enable-return-routed-experts."""
    is_incremental: bool = False
    """`--incremental-streaming-output`."""
    returns_top_p: bool = False
    """Like slime's patch: the ids that top-p kept, for requests that ask for them."""
    extra_meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More keys of every answer's meta_info, such as speculative statistics."""


@dataclass(kw_only=True)
class Live:
    """A request between its arrival and its answer."""

    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    sampled: list[int] = field(default_factory=list[int])


class Worker:
    """Serves parsed requests."""

    def __init__(self, script: Script, settings: WorkerSettings) -> None:
        self.settings = settings
        self.live: dict[str, Live] = {}
        self.running = 0
        self.waiting = 0
        self.aborted: list[str] = []
        """Rids that an abort reached while they were live."""
        self.total_tokens = 0
        """Sampled so far, by all requests."""
        self.abandoned: list[str] = []
        """Rids whose client disconnected."""
        self._script = script
        self._slots = asyncio.Semaphore(settings.max_running)
        self._prefixes: set[int] = set()
        self._count = 0

    def abort(self, rid: str | None, *, abort_all: bool) -> None:
        """Abort by prefix; an rid that is not exactly live is ignored, as by one tokenizer."""
        if not abort_all and rid not in self.live:
            return
        for name, live in self.live.items():
            if abort_all or name.startswith(str(rid)):
                live.aborted.set()
                self.aborted.append(name)

    def flush(self) -> bool:
        """Empty the prefix cache, unless requests run."""
        if not self.live:
            self._prefixes.clear()
        return not self.live

    @property
    def sampled_tokens(self) -> int:
        """Tokens of the requests that run now."""
        return sum(len(live.sampled) for live in self.live.values())

    async def serve(
        self, body: Mapping[str, Any], session: str | None, failure: Failure | None
    ) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            Refusal: An answer other than 200.
            HangError: Never an answer.
            CrashError: The server is dead.
        """
        rid = body.get("rid") or uuid.uuid4().hex
        if rid in self.live:
            raise value_refusal(f"Duplicate request ID detected: {rid}")
        live = self.live[rid] = Live()
        started = time.perf_counter()
        try:
            request, prompt = await self._admit(body, session)
            self.waiting += 1
            try:
                scheduled = failure is not Failure.QUEUE_ABORT and await self._slot(live)
            finally:
                self.waiting -= 1
            if not scheduled:
                return sglang_answer.queue_abort_answer(rid, self.settings.weight_version)
            queued = time.perf_counter() - started
            self.running += 1
            try:
                sampled = await self._sample(request, live)
            finally:
                self.running -= 1
                self._slots.release()
        except asyncio.CancelledError:
            self.abandoned.append(rid)
            raise
        finally:
            del self.live[rid]
        answer = sglang_answer.build_answer(
            body,
            prompt,
            sampled,
            rid=rid,
            cached=self._cached(prompt, sampled, body),
            decode=self.settings.decode,
            raw_logprobs=self.settings.reports_raw_logprobs,
            queue_seconds=queued,
            seconds=time.perf_counter() - started,
        )
        sglang_answer.add_routed_experts(answer, body, self.settings.routed_experts)
        if self.settings.returns_top_p:
            sglang_answer.add_top_p(answer, body)
        answer["meta_info"].update(self.settings.extra_meta)
        sglang_answer.spoil(answer, failure)
        return answer

    async def _admit(
        self, body: Mapping[str, Any], session: str | None
    ) -> tuple[sglang_model.FakeRequest, sglang_model.Prompt]:
        params: dict[str, Any] = body.get("sampling_params") or {}
        wire_ids = self._wire_ids(body)
        data = body.get("image_data")
        pictures = await asyncio.to_thread(sglang_model.decode_images, data) if data else ()
        prompt = sglang_model.expand_prompt(
            wire_ids,
            pictures,
            image_token_id=self.settings.image_token_id,
            family=self.settings.family,
            count_tokens=self.settings.count_image_tokens,
        )
        self._check_lengths(len(prompt.ids), params)
        check_sampling_values(params, self.settings.vocabulary_size)
        start = body.get("routed_experts_start_len") or 0
        if body.get("return_routed_experts") and not 0 <= start <= len(prompt.ids):
            raise value_refusal(f"routed_experts_start_len must be in [0, {len(prompt.ids)}]")
        size = self.settings.vocabulary_size
        if min(wire_ids) < 0 or (size is not None and max(wire_ids) >= size):
            raise CrashError
        request = sglang_model.FakeRequest(
            index=self._count,
            payload=body,
            wire_ids=tuple(wire_ids),
            images=pictures,
            session=session,
        )
        self._count += 1
        return request, prompt

    def _wire_ids(self, body: Mapping[str, Any]) -> list[int]:
        ids, text = body.get("input_ids"), body.get("text")
        if ids is None and text is None:
            raise value_refusal("Either text, input_ids or input_embeds should be provided.")
        if text is not None and (ids is None or body.get("image_data")):
            return self.settings.encode(text)
        if not ids:
            raise value_refusal("input_ids cannot be empty.")
        return list(ids)

    def _check_lengths(self, length: int, params: Mapping[str, Any]) -> None:
        limit = self.settings.context_length
        if length >= limit:
            raise value_refusal(
                f"The input ({length} tokens) is longer than the model's context length "
                f"({limit} tokens)."
            )
        total = length + (params.get("max_new_tokens") or 0)
        if total > limit:
            raise value_refusal(
                f"Requested token count exceeds the model's maximum context length of {limit} "
                f"tokens. You requested a total of {total} tokens"
            )

    async def _slot(self, live: Live) -> bool:
        """Wait for a slot; False when the request was aborted in the queue."""
        slot = asyncio.ensure_future(self._slots.acquire())
        aborted = asyncio.ensure_future(live.aborted.wait())
        try:
            await asyncio.wait((slot, aborted), return_when=asyncio.FIRST_COMPLETED)
            got = slot.done() and not slot.cancelled()
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self._slots.release()
            raise
        finally:
            slot.cancel()
            aborted.cancel()
        if got and live.aborted.is_set():
            self._slots.release()
        return got and not live.aborted.is_set()

    async def _sample(self, request: sglang_model.FakeRequest, live: Live) -> sglang_answer.Sampled:
        settings = self.settings
        written = self._script(request)
        ids = settings.encode(written) if isinstance(written, str) else written
        params = request.payload.get("sampling_params") or {}
        reply = sglang_model.finish_reply(
            ids, params, eos_ids=settings.eos_ids, decode=settings.decode
        )
        versions: list[str] = []
        await _pause(live.aborted, settings.first_token_s)
        for token in reply.ids:
            if live.aborted.is_set():
                break
            live.sampled.append(token)
            self.total_tokens += 1
            versions.append(settings.weight_version)
            await _pause(live.aborted, settings.token_s)
        finish = reply.finish
        if len(live.sampled) < len(reply.ids):
            finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        return sglang_answer.Sampled(
            ids=tuple(live.sampled),
            finish=finish,
            stop_string=reply.stop_string,
            versions=tuple(versions) or (settings.weight_version,),
        )

    def _cached(
        self, prompt: sglang_model.Prompt, sampled: sglang_answer.Sampled, body: Mapping[str, Any]
    ) -> int:
        hashes = sglang_model.prefix_hashes((*prompt.keys, *sampled.ids))
        longest = 0
        for state in hashes[: len(prompt.ids) - 1]:
            if state not in self._prefixes:
                break
            longest += 1
        self._prefixes.update(hashes[:-1])
        return 0 if body.get("logprob_start_len") == 0 else longest


async def _pause(aborted: asyncio.Event, seconds: float) -> None:
    if seconds > 0:
        with suppress(TimeoutError):
            await asyncio.wait_for(aborted.wait(), seconds)
