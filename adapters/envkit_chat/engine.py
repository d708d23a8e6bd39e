"""A chat endpoint as an engine of the rollout loop: text instead of tokens."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from envkit import ranges
from envkit.errors import ConfigurationError, EngineFault, FaultKind
from envkit.messages import images_of
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, LogprobKind, Sampling
from envkit_chat.client import ChatClient
from envkit_chat.reply import ChatReply, read_reply
from envkit_chat.wire import wire_messages

_ADVICE: Final[Mapping[int, str]] = {
    401: "the key was refused; --key-env names the environment variable that holds it",
    403: "the key has no access to this model",
    404: "no such address or model; the address ends with the version, such as /v1",
    413: "the request is too large",
}
_SETTLED: Final = frozenset({401, 403, 404})
"""Statuses that every request of the run would get."""
_TOKEN_FIELDS: Final = ("max_tokens", "max_completion_tokens")
_ABORTED: Final = Generation(
    token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT, prompt_tokens=None
)


class ChatEngine:
    """Generate replies through an OpenAI-compatible endpoint. Use it without a codec.

    `Sampling.extras` adds fields to every request, such as {"reasoning_effort": "low"}.
    """

    name = "chat"
    """The engine's name in records."""
    logprob_kind = LogprobKind.SAMPLED
    """SAMPLED, although a chat endpoint returns no log-probabilities: any temperature works."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Describe the endpoint; the first request opens a connection.

        Args:
            base_url: Address up to and including the version, such as "https://api.openai.com/v1".
            model: The model's name at the endpoint.
            api_key: Sent as a bearer token; None sends none.
            timeout_s: Seconds for one reply.

        Raises:
            ConfigurationError: The address is not an HTTP address, or the deadline is not positive.
        """
        ranges.positive(timeout_s=timeout_s)
        self._client = ChatClient(base_url, api_key=api_key, advice=_ADVICE)
        self._model, self._timeout_s = model, timeout_s
        self._length_field = _TOKEN_FIELDS[0]
        self._live: dict[str, asyncio.Task[ChatReply]] = {}

    async def generate(self, request: GenerateRequest) -> Generation:
        """Ask for one reply.

        Raises:
            ConfigurationError: The endpoint rejects the key or model, or the sampling has token
                ids.
            EngineFault: Any other failure. `is_unavailable` is set if the endpoint is unreachable,
                rate-limits the request, or is temporarily unavailable.
        """
        if request.context is None:
            raise ConfigurationError("a chat engine needs the request's messages (its context)")
        task = asyncio.create_task(self._reply(request))
        self._live[request.request_id] = task
        try:
            done, _ = await asyncio.wait((task,), timeout=self._timeout_s)
        finally:
            task.cancel()
            del self._live[request.request_id]
        if not done:
            raise EngineFault(
                f"{self._client.url} gave no reply in {self._timeout_s:g} s", kind=FaultKind.TIMEOUT
            )
        if task.cancelled():
            return _ABORTED
        try:
            reply = task.result()
        except EngineFault as fault:
            raise self._described(fault, request) from fault
        return Generation(
            token_ids=(),
            logprobs=(),
            text=reply.with_stop(request.sampling.stop),
            text_tokens=reply.reply_tokens,
            finish_reason=reply.finish_reason,
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            weight_version=reply.model,
        )

    async def abort(self, request_id: str) -> None:
        """Cancel a running request; its `generate` returns nothing, with ABORT."""
        task = self._live.get(request_id)
        if task is not None:
            task.cancel()

    async def end_session(self, session_id: str) -> None:
        """Do nothing: a chat endpoint keeps no session."""

    async def aclose(self) -> None:
        """Close the connections; safe to call twice."""
        await self._client.aclose()

    async def _reply(self, request: GenerateRequest) -> ChatReply:
        assert request.context is not None
        messages = wire_messages(request.context.messages, request.tools)
        tools = {"tools": [spec.to_json() for spec in request.tools]} if request.tools else {}
        while True:
            field = self._length_field
            fields = {**self._sampling(request.sampling, field), **tools}
            try:
                return read_reply(await self._client.complete(fields, messages))
            except EngineFault as fault:
                if not _names_other_field(fault, field):
                    raise
            self._length_field = _TOKEN_FIELDS[1]

    def _sampling(self, sampling: Sampling, length_field: str) -> dict[str, Any]:
        if sampling.stop_ids or sampling.banned_ids:
            raise ConfigurationError(
                "sampling.stop_ids and sampling.banned_ids are token ids, which mean nothing to a "
                "chat endpoint: drop them, or use sampling.stop"
            )
        return {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            length_field: sampling.max_new_tokens,
            **({} if sampling.top_k is None else {"top_k": sampling.top_k}),
            **({} if sampling.seed is None else {"seed": sampling.seed}),
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **sampling.extras,
        }

    def _described(
        self, fault: EngineFault, request: GenerateRequest
    ) -> EngineFault | ConfigurationError:
        """Return a fault with the endpoint's name, or the error of what every request would get."""
        message = f"{self._model} at {self._client.url}: {fault}"
        if fault.status in _SETTLED:
            return ConfigurationError(message)
        if fault.status == 400 and request.context is not None:
            images = len(images_of(request.context.messages))
            if images:
                message += f". The request has images ({images}): does the model read any?"
        return fault.reworded(message)


def _names_other_field(fault: EngineFault, field: str) -> bool:
    """Whether the endpoint rejects `max_tokens`, as OpenAI does for reasoning models."""
    is_first = field == _TOKEN_FIELDS[0]
    return is_first and fault.status == 400 and _TOKEN_FIELDS[1] in str(fault)
