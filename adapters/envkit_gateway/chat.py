"""OpenAI's chat completions.

Contract: https://platform.openai.com/docs/api-reference/chat, and what its SDK 3.x sends and reads.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from envkit.messages import Part
from envkit_gateway import reading
from envkit_gateway.deltas import Delta
from envkit_gateway.messages import AgentCall, AgentMessage
from envkit_gateway.request import AgentRequest, RequestRefused, bad_request, take
from envkit_gateway.turn import Choice, Reply, Turn

PATH: Final = "/v1/chat/completions"
_MOST_CHOICES: Final = 128
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_KNOWN: Final = {
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens",
    "max_completion_tokens", "stop", "n", "logprobs", "top_logprobs", "response_format",
    "temperature", "top_p", "top_k", "seed", "user", "metadata", "store", "parallel_tool_calls",
    "frequency_penalty", "presence_penalty", "logit_bias", "reasoning_effort", "service_tier",
    "safety_identifier", "prompt_cache_key", "verbosity", "repetition_penalty", "min_p",
    "chat_template_kwargs", "prompt_cache_retention",
    "continue_final_message", "add_generation_prompt",
}  # fmt: skip


def read(body: Mapping[str, Any], turns: Sequence[Turn]) -> AgentRequest:
    """Return a body as a request.

    Args:
        body: The body.
        turns: The session's; this dialect refers to none.

    Raises:
        RequestRefused: It asks for something that the gateway cannot do exactly.
    """
    del turns
    reading.refuse_unknown(body, _KNOWN)
    choices = take(body, "n", int, default=1)
    if not 1 <= choices <= _MOST_CHOICES:
        raise bad_request(f"n must be between 1 and {_MOST_CHOICES}, got {choices}")
    wants_logprobs = take(body, "logprobs", bool, default=False)
    messages = tuple(_message(entry) for entry in reading.objects(body, "messages"))
    if not messages:
        raise bad_request("messages must hold at least one message, got none")
    reading.refuse_inexact(messages)
    continues_reply = _continues(body)
    if continues_reply:
        reading.check_continued(messages[-1])
    options = take(body, "stream_options", dict, default={})
    wishes = {
        "tool_choice": body.get("tool_choice") not in (None, "auto", "none"),
        "parallel_tool_calls": body.get("parallel_tool_calls") is False,
        "response_format": take(body, "response_format", dict, default={}).get("type", "text")
        != "text",
    }
    return AgentRequest(
        messages=messages,
        tools=tuple(
            reading.read_tool(_function(entry)) for entry in reading.objects(body, "tools")
        ),
        continues_reply=continues_reply,
        may_call=body.get("tool_choice") != "none",
        variables=reading.variables_of(body, body.get("reasoning_effort")),
        model=take(body, "model", str, default=""),
        is_streamed=take(body, "stream", bool, default=False),
        wants_usage=bool(options.get("include_usage")),
        max_tokens=reading.token_limit(body, "max_completion_tokens", "max_tokens"),
        stop=reading.stop_strings(body.get("stop")),
        choices=choices,
        wants_logprobs=wants_logprobs,
        top_logprobs=reading.top_logprobs(body, is_asked=wants_logprobs),
        unenforced=tuple(name for name, is_wanted in wishes.items() if is_wanted),
    )


def _continues(body: Mapping[str, Any]) -> bool:
    """Return whether a body asks to continue its last message, with vLLM's fields and rules.

    Source: vllm/entrypoints/openai/chat_completion/protocol.py.
    """
    continues = take(body, "continue_final_message", bool, default=False)
    opens = take(body, "add_generation_prompt", bool, default=True)
    if continues and opens:
        raise bad_request("continue_final_message needs add_generation_prompt=false")
    if not continues and not opens:
        raise bad_request("add_generation_prompt=false needs continue_final_message=true")
    return continues


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if tool.get("type", "function") != "function":
        raise bad_request(f"tools must be of type 'function', got {tool.get('type')!r}")
    return reading.object_of(tool.get("function"), "a tool's function")


def _message(entry: Mapping[str, Any]) -> AgentMessage:
    for name in ("function_call", "audio"):
        if entry.get(name):
            raise bad_request(f"a message with {name} is not supported: send content or tool_calls")
    calls = tuple(_call(call) for call in reading.objects(entry, "tool_calls"))
    role = reading.role_of(entry, _ROLES)
    thinking = entry.get("reasoning")
    thinking = entry.get("reasoning_content") if thinking is None else thinking
    name = entry.get("name")
    parts = reading.parts_of(entry.get("content"), _part)
    return AgentMessage(
        role=role,
        parts=reading.without_header(parts) if entry["role"] == "system" else parts,
        calls=calls,
        call_id=take(entry, "tool_call_id", str, default=""),
        name=name if isinstance(name, str) else "",
        is_developer=entry["role"] == "developer",
        thinking=thinking if isinstance(thinking, str) and role == "assistant" else None,
    )


def _call(call: Mapping[str, Any]) -> AgentCall:
    function = reading.object_of(call.get("function"), "a tool call's function")
    return AgentCall(
        id=take(call, "id", str, default=""),
        name=take(function, "name", str, default=""),
        arguments=take(function, "arguments", str, default="{}"),
        extras={key: value for key, value in function.items() if key not in ("name", "arguments")},
    )


def _part(part: Mapping[str, Any]) -> Part:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": take(part, "text", str, default="")}
    if kind == "refusal":
        return {"type": "text", "text": take(part, "refusal", str, default="")}
    if kind == "image_url":
        return reading.image_part(reading.object_of(part.get("image_url"), "image_url").get("url"))
    raise bad_request(f"content of type {kind!r} is not supported: send text or image_url")


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the token counts as chat completions report them: of a shared prompt once."""
    generation = choices[0].reply.generation
    prompt = generation.prompt_tokens or 0
    sampled = sum(len(one.reply.generation.token_ids) for one in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sum(one.reply.reasoning_tokens for one in choices)
        },
    }


def answer(
    choices: Sequence[Choice], request: AgentRequest, decode: Callable[[int], str]
) -> dict[str, Any]:
    """Return the whole answer."""
    found: list[dict[str, Any]] = []
    for index, (_, reply) in enumerate(choices):
        message = _said(reply)
        if reply.calls:
            message["tool_calls"] = [call.wire() for call in reply.calls]
        choice = {
            "index": index,
            "message": {**message, "refusal": None},
            "finish_reason": reply.finish,
            "logprobs": _logprobs(reply, request, decode),
        }
        found.append(choice)
    base = _base(choices[0].turn, request, "chat.completion")
    return {**base, "choices": found, "usage": usage(choices)}


class Events:
    """An answer as server-sent events, some of them while the engine samples."""

    def __init__(self, turns: Sequence[Turn], request: AgentRequest) -> None:
        """Begin an answer."""
        self._request = request
        self._base = _base(turns[0], request, "chat.completion.chunk")
        self._shown = [Delta()] * len(turns)

    def delta(self, index: int, more: Delta) -> Iterator[str]:
        """Yield more of a choice."""
        yield self._choice(index, self._said(index, more))

    def end(self, choices: Sequence[Choice], decode: Callable[[int], str]) -> Iterator[str]:
        """Yield the rest of the answer."""
        for index, (_, reply) in enumerate(choices):
            shown = self._shown[index]
            rest = shown.rest_of(reply.message)
            said = _said(reply) if shown == Delta() else self._said(index, rest)
            if reply.calls:
                said["tool_calls"] = [{"index": n, **c.wire()} for n, c in enumerate(reply.calls)]
            if said:
                yield self._choice(index, said, _logprobs(reply, self._request, decode))
        for index, (_, reply) in enumerate(choices):
            end = {"index": index, "delta": {}, "finish_reason": reply.finish}
            yield self._chunk(choices=[end])
        if self._request.wants_usage:
            yield self._chunk(choices=[], usage=usage(choices))
        yield "data: [DONE]\n\n"

    def _said(self, index: int, more: Delta) -> dict[str, Any]:
        said: dict[str, Any] = {} if self._shown[index] != Delta() else {"role": "assistant"}
        self._shown[index] = self._shown[index].plus(more)
        if more.text:
            said["content"] = more.text
        if more.thinking:
            said["reasoning_content"] = more.thinking
        return said

    def _choice(
        self, index: int, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None
    ) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": logprobs}
        return self._chunk(choices=[choice])

    def _chunk(self, **fields: Any) -> str:  # noqa: ANN401  # JSON
        return f"data: {json.dumps({**self._base, **fields})}\n\n"


def closing_events(request: AgentRequest) -> int:
    """Return how many events are left from the one that says why a reply ended."""
    return 3 if request.wants_usage else 2


def error(refused: RequestRefused) -> dict[str, Any]:
    """Return an error as OpenAI's SDK reads it."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": str(refused), "type": kind, "param": None, "code": refused.code}}


def stream_error(refused: RequestRefused) -> str:
    """Return an error inside a stream."""
    return f"data: {json.dumps(error(refused))}\n\n"


def _base(turn: Turn, request: AgentRequest, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{turn.number}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _said(reply: Reply) -> dict[str, Any]:
    said = reply.message
    message: dict[str, Any] = {
        "role": "assistant",
        "content": said.text or (None if reply.calls else ""),
    }
    if said.thinking:
        message["reasoning_content"] = said.thinking
    return message


def _logprobs(
    reply: Reply, request: AgentRequest, decode: Callable[[int], str]
) -> dict[str, Any] | None:
    content = logprobs(reply, request, decode)
    return None if content is None else {"content": content, "refusal": None}


def logprobs(
    reply: Reply, request: AgentRequest, decode: Callable[[int], str]
) -> list[dict[str, Any]] | None:
    """Return the log-probabilities of the sampled tokens; None if the client wants none."""
    if not request.wants_logprobs:
        return None
    known: dict[int, str] = {}

    def shown(token: int, logprob: float) -> dict[str, Any]:
        text = known[token] if token in known else known.setdefault(token, decode(token))
        return {"token": text, "logprob": logprob, "bytes": [*text.encode("utf-8", "replace")]}

    generation = reply.generation
    ranked = generation.top_logprobs or [()] * len(generation.token_ids)
    return [
        {**shown(token, logprob), "top_logprobs": [shown(*one) for one in row]}
        for token, logprob, row in zip(
            generation.token_ids, generation.logprobs, ranked, strict=True
        )
    ]
