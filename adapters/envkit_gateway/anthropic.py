"""Anthropic's messages.

Contract: https://docs.anthropic.com/en/api/messages, and what its SDK 2.x and Claude Code send.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from envkit.messages import Part, TextPart
from envkit_gateway import reading
from envkit_gateway.deltas import Delta
from envkit_gateway.messages import AgentCall, AgentMessage
from envkit_gateway.request import AgentRequest, RequestRefused, bad_request, take
from envkit_gateway.turn import Choice, Reply, Turn

PATH: Final = "/v1/messages"
_ROLES: Final = ("system", "user", "assistant")
_KNOWN: Final = {
    "model", "messages", "system", "tools", "tool_choice", "stream", "max_tokens",
    "stop_sequences", "temperature", "top_p", "top_k", "metadata", "thinking", "service_tier",
    "context_management", "output_config", "betas", "cache_control", "inference_geo", "speed",
    "diagnostics", "thread", "output_format", "chat_template_kwargs",
}  # fmt: skip
_NO_THREAD: Final = "thread_not_found"
"""The SDK answers this code with the whole conversation."""
_FINISH: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}


def read(body: Mapping[str, Any], turns: Sequence[Turn]) -> AgentRequest:
    """Return a body as a request.

    Args:
        body: The body.
        turns: The session's, one of which a body may continue by its id.

    Raises:
        RequestRefused: It asks for something that the gateway cannot do exactly.
    """
    reading.refuse_unknown(body, _KNOWN)
    held = _held(body, turns)
    messages = list(_system(body, "system"))
    for entry in reading.objects(body, "messages"):
        messages += _messages(entry)
    if not any(one.role != "system" for one in messages):
        raise bad_request("messages must hold at least one message, got none")
    reading.refuse_inexact(messages)
    continues_reply = messages[-1].role == "assistant"
    if continues_reply:
        reading.check_continued(messages[-1])
        if messages[-1].text != messages[-1].text.rstrip():  # the service's own rule
            raise bad_request("the assistant's last message must not end with white space")
    given = take(body, "tool_choice", dict, default={})
    choice = given.get("type", "auto")
    wishes = {
        "tool_choice": choice not in ("auto", "none"),
        "disable_parallel_tool_use": bool(given.get("disable_parallel_tool_use")),
        "output_config.format": _has_format(body),
    }
    stops = take(body, "thinking", dict, default={}).get("type") == "disabled"
    output = take(body, "output_config", dict, default={})
    return AgentRequest(
        messages=(*(() if held is None else held.conversation), *messages),
        tools=tuple(
            reading.read_tool(_custom(entry), schema="input_schema")
            for entry in reading.objects(body, "tools")
        )
        if held is None
        else held.request.tools,
        continues_reply=continues_reply,
        may_call=choice != "none",
        variables=reading.variables_of(body, None if stops else output.get("effort")),
        stops_thinking=stops,
        leads_with_system=True,
        model=take(body, "model", str, default=""),
        is_streamed=take(body, "stream", bool, default=False),
        max_tokens=reading.token_limit(body, "max_tokens"),
        stop=reading.stop_strings(body.get("stop_sequences")),
        unenforced=tuple(name for name, is_wanted in wishes.items() if is_wanted),
    )


def _held(body: Mapping[str, Any], turns: Sequence[Turn]) -> Turn | None:
    """Return the reply that a body continues, which sends only what is new; None without one."""
    thread = take(body, "thread", dict, default={})
    kind = thread.get("type", "create")
    # The SDK's `tool_runner` and `thread` send a whole conversation with `create`, then `continue`.
    if kind == "create":
        return None
    if kind != "continue":
        raise bad_request(f"thread.type must be 'create' or 'continue', got {kind!r:.80}")
    repeated = [name for name in ("system", "tools") if body.get(name)]
    if repeated:
        raise bad_request(f"a thread keeps its {' and '.join(repeated)}: leave them out")
    name = take(thread, "previous_message_id", str, default="")
    for turn in turns:
        if turn.reply is not None and _message_id(turn) == name:
            return turn
    raise RequestRefused(404, f"this session has no message {name!r:.80}", code=_NO_THREAD)


def _has_format(body: Mapping[str, Any]) -> bool:
    """Return whether the reply shall follow a schema, which older SDKs send as `output_format`."""
    config = take(body, "output_config", dict, default={})
    return bool(config.get("format") or body.get("output_format"))


def _custom(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise bad_request(f"tools must be your own, of type 'custom', got {kind!r}")
    schema = reading.object_of(tool.get("input_schema") or {}, "a tool's input_schema")
    return {**tool, "input_schema": schema if "type" in schema else {**schema, "type": "object"}}


def _system(entry: Mapping[str, Any], name: str) -> Iterator[AgentMessage]:
    """Yield a system message with its texts as one, without Claude Code's header."""
    parts = reading.parts_of(entry.get(name), _text, name=name)
    text = "".join(part["text"] for part in parts if not reading.has_header(part["text"]))
    if text:
        yield AgentMessage(role="system", parts=({"type": "text", "text": text},))


def _messages(entry: Mapping[str, Any]) -> Iterator[AgentMessage]:
    """Yield a message as vLLM converts it: its tool results, each with its images, then the rest.

    Source: vllm/entrypoints/anthropic/serving.py.
    """
    role = reading.role_of(entry, _ROLES)
    if role == "system":
        yield from _system(entry, "content")
        return
    if isinstance(entry.get("content"), str):
        yield AgentMessage(role=role, parts=({"type": "text", "text": entry["content"]},))
        return
    blocks = reading.objects(entry, "content")
    for block in blocks:
        if block.get("type") == "tool_result":
            yield from _result(block)
    calls = tuple(
        AgentCall(
            id=take(one, "id", str, default=""),
            name=take(one, "name", str, default=""),
            arguments=json.dumps(one.get("input") or {}, ensure_ascii=False),
        )
        for one in blocks
        if one.get("type") == "tool_use"
    )
    thoughts = [
        take(one, "thinking", str, default="") for one in blocks if one.get("type") == "thinking"
    ]
    shown = [one for one in blocks if one.get("type") not in _HIDDEN and one.get("text") != ""]
    if shown or role == "assistant":
        yield AgentMessage(
            role=role,
            parts=tuple(_part(one) for one in shown),
            calls=calls,
            thinking="".join(thoughts) if thoughts else None,
        )


def _result(block: Mapping[str, Any]) -> Iterator[AgentMessage]:
    """Yield a tool result, and a user message with its images."""
    parts = reading.parts_of(block.get("content"), _part, name="tool_result")
    yield AgentMessage(
        role="tool",
        parts=tuple(part for part in parts if part["type"] == "text"),
        call_id=take(block, "tool_use_id", str, default=""),
        is_error=take(block, "is_error", bool, default=False),
    )
    images = tuple(part for part in parts if part["type"] == "image")
    if images:
        yield AgentMessage(role="user", parts=images)


_HIDDEN: Final = ("tool_result", "tool_use", "thinking", "redacted_thinking")


def _text(block: Mapping[str, Any]) -> TextPart:
    if block.get("type") != "text":
        raise bad_request(f"a system prompt must be text, got {block.get('type')!r}")
    return {"type": "text", "text": take(block, "text", str, default="")}


def _part(block: Mapping[str, Any]) -> Part:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": take(block, "text", str, default="")}
    if kind == "image":
        source = reading.object_of(block.get("source"), "an image's source")
        if source.get("type") == "base64":
            media = take(source, "media_type", str, default="image/png")
            return reading.image_part(
                f"data:{media};base64,{take(source, 'data', str, default='')}"
            )
        return reading.image_part(source.get("url", f"a source of type {source.get('type')!r}"))
    raise bad_request(f"content of type {kind!r} is not supported: send text or images")


def _usage(reply: Reply) -> dict[str, Any]:
    generation = reply.generation
    return _counts(
        generation.prompt_tokens or 0,
        cached=generation.cached_tokens,
        sampled=len(generation.token_ids),
        thinking=reply.reasoning_tokens,
    )


def _counts(prompt: int, *, cached: int, sampled: int, thinking: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": sampled,
        "output_tokens_details": {"thinking_tokens": thinking},
    }


def answer(
    choices: Sequence[Choice], request: AgentRequest, decode: Callable[[int], str]
) -> dict[str, Any]:
    """Return the whole answer."""
    del decode  # this dialect reports no log-probabilities
    turn, reply = choices[0]  # it asks for one
    return {
        **_base(turn, request),
        "content": _blocks(turn, reply),
        "stop_reason": _stop_reason(reply),
        "stop_sequence": reply.stop_string,
        "usage": _usage(reply),
    }


class Events:
    """An answer as server-sent events, some of them while the engine samples."""

    def __init__(self, turns: Sequence[Turn], request: AgentRequest) -> None:
        """Begin an answer."""
        self._turn, self._request = turns[0], request  # this dialect asks for one
        self._shown = Delta()
        self._blocks = 0
        self._open = ""
        """Type of the block that is not closed; "" without one."""
        self._is_started = False

    def delta(self, index: int, more: Delta) -> Iterator[str]:
        """Yield more of the answer."""
        del index
        live = self._turn.live
        prompt = 0 if live is None else live.prompt_tokens
        yield from self._start(_counts(prompt, cached=0, sampled=0, thinking=0))
        self._shown = self._shown.plus(more)
        if more.thinking:
            yield from self._say("thinking", more.thinking)
        if more.text:
            yield from self._say("text", more.text)

    def end(self, choices: Sequence[Choice], decode: Callable[[int], str]) -> Iterator[str]:
        """Yield the rest of the answer."""
        del decode
        turn, reply = choices[0]
        used = _usage(reply)
        none = {"output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0}}
        yield from self._start({**used, **none})
        yield from self.delta(0, self._shown.rest_of(reply.message))
        yield from self._close()
        for block in _blocks(turn, reply):
            if block["type"] == "tool_use":
                partial = json.dumps(block["input"])
                yield self._opened({**block, "input": {}})
                yield self._delta(type="input_json_delta", partial_json=partial)
                yield from self._close()
        ended = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop_string}
        yield _event("message_delta", delta=ended, usage=used)
        yield _event("message_stop")

    def _start(self, counts: Mapping[str, Any]) -> Iterator[str]:
        if not self._is_started:
            self._is_started = True
            start = {**_base(self._turn, self._request), "content": [], "stop_reason": None}
            start |= {"stop_sequence": None, "usage": counts}
            yield _event("message_start", message=start)

    def _say(self, kind: str, text: str) -> Iterator[str]:
        if self._open != kind:
            yield from self._close()
            signature = {"signature": ""} if kind == "thinking" else {}
            yield self._opened({"type": kind, kind: "", **signature})
        yield self._delta(**{"type": f"{kind}_delta", kind: text})

    def _opened(self, block: Mapping[str, Any]) -> str:
        self._open = block["type"]
        return _event("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, **delta: str) -> str:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _close(self) -> Iterator[str]:
        if self._open:
            if self._open == "thinking":
                yield self._delta(type="signature_delta", signature=_signature(self._turn))
            yield _event("content_block_stop", index=self._blocks)
            self._blocks, self._open = self._blocks + 1, ""


def closing_events(request: AgentRequest) -> int:
    """Return how many events are left from the one that says why a reply ended."""
    del request
    return 2


def error(refused: RequestRefused) -> dict[str, Any]:
    """Return an error as Anthropic's SDK reads it."""
    kind = _ERRORS.get(refused.status, "invalid_request_error")
    kind = "overloaded_error" if refused.status >= 500 else kind
    details = {} if refused.code is None else {"details": {"error_code": refused.code}}
    return {"type": "error", "error": {"type": kind, "message": str(refused), **details}}


def stream_error(refused: RequestRefused) -> str:
    """Return an error inside a stream."""
    return f"event: error\ndata: {json.dumps(error(refused))}\n\n"


def _event(kind: str, **fields: Any) -> str:  # noqa: ANN401  # JSON
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _base(turn: Turn, request: AgentRequest) -> dict[str, Any]:
    return {
        "id": _message_id(turn),
        "type": "message",
        "role": "assistant",
        "model": request.model,
    }


def _message_id(turn: Turn) -> str:
    return f"msg_{turn.number}"


def _stop_reason(reply: Reply) -> str:
    return "stop_sequence" if reply.stop_string is not None else _FINISH[reply.finish]


def _signature(turn: Turn) -> str:
    return f"turn{turn.number}"


def _blocks(turn: Turn, reply: Reply) -> list[dict[str, Any]]:
    said = reply.message
    blocks: list[dict[str, Any]] = []
    if said.thinking:
        thinking = {"thinking": said.thinking, "signature": _signature(turn)}
        blocks.append({"type": "thinking", **thinking})
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    for call in reply.calls:
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks
