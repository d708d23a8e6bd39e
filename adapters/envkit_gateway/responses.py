"""OpenAI's Responses.

Contract: https://platform.openai.com/docs/api-reference/responses, and what its SDK 3.x,
openai-agents and Codex send. A session has all its responses, whether a client asks to store them
or not.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from envkit.messages import Part
from envkit_gateway import chat, reading
from envkit_gateway.deltas import Delta
from envkit_gateway.messages import AgentCall, AgentMessage
from envkit_gateway.request import AgentRequest, RequestRefused, bad_request, take
from envkit_gateway.turn import Choice, Reply, Turn

PATH: Final = "/v1/responses"
_ROLES: Final = ("system", "developer", "user", "assistant")
_KNOWN: Final = {
    "model", "input", "instructions", "tools", "tool_choice", "stream", "max_output_tokens",
    "temperature", "top_p", "metadata", "store", "include", "parallel_tool_calls", "reasoning",
    "text", "truncation", "user", "service_tier", "safety_identifier", "prompt_cache_key",
    "stream_options", "client_metadata", "prompt_cache_retention", "previous_response_id",
    "top_logprobs", "chat_template_kwargs",
}  # fmt: skip

_HOSTED: Final = ("web_search", "web_search_preview")
"""Tools of the provider that are not offered to the model, which the record says."""


def read(body: Mapping[str, Any], turns: Sequence[Turn]) -> AgentRequest:
    """Return a body as a request.

    Args:
        body: The body.
        turns: The session's, whose replies a body may refer to by their ids.

    Raises:
        RequestRefused: It asks for something that the gateway cannot do exactly.
    """
    reading.refuse_unknown(body, _KNOWN)
    messages: list[AgentMessage] = []
    instructions = take(body, "instructions", str, default="")
    if instructions:
        messages.append(AgentMessage(role="system", parts=reading.parts_of(instructions, _part)))
    earlier = _before(take(body, "previous_response_id", str, default=""), turns)
    given = body.get("input")
    if isinstance(given, str):
        messages.append(AgentMessage(role="user", parts=reading.parts_of(given, _part)))
    else:
        messages += _items(_recalled(reading.objects(body, "input"), turns))
    if not any(one.role != "system" for one in messages):
        raise bad_request("input must hold at least one message, got none")
    messages[bool(instructions) : bool(instructions)] = earlier
    reading.refuse_inexact(messages)
    choice = body.get("tool_choice")
    wants_logprobs = "message.output_text.logprobs" in take(body, "include", list, default=[])
    tools = [one for entry in reading.objects(body, "tools") for one in _tools(entry)]
    wishes = {
        "tool_choice": choice not in (None, "auto", "none"),
        "parallel_tool_calls": body.get("parallel_tool_calls") is False,
        "text.format": _format(body) != "text",
        **{f"tools.{one['type']}": True for one, _ in tools if one["type"] in _HOSTED},
    }
    return AgentRequest(
        messages=tuple(messages),
        tools=tuple(
            reading.read_tool(one, namespace=name)
            for one, name in tools
            if one["type"] not in _HOSTED
        ),
        may_call=choice != "none",
        variables=reading.variables_of(
            body, take(body, "reasoning", dict, default={}).get("effort")
        ),
        has_instructions=bool(instructions),
        model=take(body, "model", str, default=""),
        is_streamed=take(body, "stream", bool, default=False),
        max_tokens=reading.token_limit(body, "max_output_tokens"),
        wants_logprobs=wants_logprobs,
        top_logprobs=reading.top_logprobs(body, is_asked=wants_logprobs),
        unenforced=tuple(name for name, is_wanted in wishes.items() if is_wanted),
    )


def _before(response: str, turns: Sequence[Turn]) -> list[AgentMessage]:
    """Return the conversation that ends with an earlier response, without its instructions."""
    if not response:
        return []
    for turn in turns:
        if turn.reply is not None and _response_id(turn) == response:
            return [*turn.conversation[turn.request.has_instructions :]]
    raise bad_request(
        f"this session has no response {response!r:.80}: send the whole conversation",
        code="previous_response_not_found",
    )


def _recalled(items: list[Mapping[str, Any]], turns: Sequence[Turn]) -> list[Mapping[str, Any]]:
    """Return items with those of earlier replies in place of references to them."""
    if all(one.get("type") != "item_reference" for one in items):
        return items
    known = {
        item["id"]: item
        for turn in turns
        if turn.reply is not None
        for item in _output(turn, turn.reply, None)
    }
    found: list[Mapping[str, Any]] = []
    for one in items:
        is_reference = one.get("type") == "item_reference"
        if is_reference and one.get("id") not in known:
            raise bad_request(f"this session has no item {one.get('id')!r:.80}: send the item")
        found.append(known[one["id"]] if is_reference else one)
    return found


def _format(body: Mapping[str, Any]) -> str:
    text = take(body, "text", dict, default={})
    return str(take(text, "format", dict, default={}).get("type", "text"))


def _tools(tool: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the functions of a tool, each with its namespace, and hosted tools."""
    kind = tool.get("type")
    # A hosted tool runs at the provider. Codex sends one with every request, so it is not refused.
    if kind == "function" or kind in _HOSTED:
        yield tool, ""
    elif kind == "namespace":
        for inner in reading.objects(tool, "tools"):
            if inner.get("type") != "function":
                raise bad_request(f"a namespace must hold functions, got {inner.get('type')!r}")
            yield inner, take(tool, "name", str, default="")
    else:
        raise bad_request(f"tools must be of type 'function', got {kind!r}")


def _items(items: list[Mapping[str, Any]]) -> list[AgentMessage]:
    """Return messages; consecutive items of one reply are one message, as vLLM joins them.

    Source: vllm/entrypoints/openai/responses/utils.py, which reads the first part of a reply's
    message, and the first text of its reasoning.
    """
    found: list[AgentMessage] = []
    for item in items:
        kind = item.get("type", "message")
        last = found[-1] if found and found[-1].role == "assistant" else None
        if kind in ("reasoning", "function_call") or item.get("role") == "assistant":
            joined = None if last is None else _joined(last, _reply(item))
            found = found if joined is None else found[:-1]
            found.append(joined or _reply(item))
        elif kind == "message":
            parts = reading.parts_of(item.get("content"), _part)
            found.append(
                AgentMessage(
                    role=reading.role_of(item, _ROLES),
                    parts=reading.without_header(parts) if item["role"] == "system" else parts,
                    is_developer=item["role"] == "developer",
                )
            )
        elif kind == "function_call_output":
            call_id = take(item, "call_id", str, default="")
            parts = reading.parts_of(item.get("output"), _part)
            found.append(AgentMessage(role="tool", parts=parts, call_id=call_id))
        else:
            raise bad_request(f"input of type {kind!r} is not supported")
    return found


def _reply(item: Mapping[str, Any]) -> AgentMessage:
    """Return one item of a reply as a message."""
    if item.get("type") == "reasoning":
        if item.get("encrypted_content"):
            raise bad_request("reasoning must be text, got encrypted_content")
        shown = reading.objects(item, "content") or reading.objects(item, "summary")
        text = take(shown[0], "text", str, default="") if shown else ""
        return AgentMessage(role="assistant", thinking=text)
    if item.get("type") == "function_call":
        name, namespace = take(item, "name", str, default=""), take(item, "namespace", str)
        call = AgentCall(
            id=take(item, "call_id", str, default=""),
            name=f"{namespace}{reading.NAMESPACE_END}{name}" if namespace else name,
            arguments=take(item, "arguments", str, default="{}"),
            is_name_first=True,
        )
        return AgentMessage(role="assistant", calls=(call,))
    parts = reading.parts_of(item.get("content"), _part)[:1]
    said = AgentMessage(role="assistant", parts=parts)
    text = said.text.strip()
    if text.startswith("<think>") and text.endswith("</think>"):
        thinking = text.removeprefix("<think>").removesuffix("</think>").strip()
        return AgentMessage(role="assistant", thinking=thinking, quoted_thinking=said.text)
    return said


def _joined(last: AgentMessage, new: AgentMessage) -> AgentMessage | None:
    """Return two messages of the same reply as one; None if the second starts another one."""
    if new.calls:
        return replace(last, calls=(*last.calls, *new.calls))
    if new.parts:
        return None if last.parts else replace(last, parts=new.parts)
    if new.quoted_thinking or last.thinking is not None:
        return None
    return replace(last, thinking=new.thinking)


def _part(part: Mapping[str, Any]) -> Part:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": take(part, "text", str, default="")}
    if kind == "refusal":
        return {"type": "text", "text": take(part, "refusal", str, default="")}
    if kind == "input_image":
        url = part.get("image_url")
        return reading.image_part(
            url if isinstance(url, str) else reading.object_of(url, "image_url").get("url")
        )
    raise bad_request(f"content of type {kind!r} is not supported: send input_text or input_image")


def answer(
    choices: Sequence[Choice], request: AgentRequest, decode: Callable[[int], str]
) -> dict[str, Any]:
    """Return the whole answer."""
    turn, reply = choices[0]  # this dialect asks for one
    is_cut = reply.finish == "length"
    return {
        **_base(turn, request),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _output(turn, reply, chat.logprobs(reply, request, decode)),
        "usage": _usage(choices),
    }


class Events:
    """An answer as server-sent events, some of them while the engine samples."""

    def __init__(self, turns: Sequence[Turn], request: AgentRequest) -> None:
        """Begin an answer."""
        self._turn, self._request = turns[0], request  # this dialect asks for one
        self._base = _base(self._turn, request)
        self._numbers = count()
        self._shown = Delta()
        self._index = 0
        self._open = ""
        """Type of the item that is not closed; "" without one."""
        self._is_started = False

    def delta(self, index: int, more: Delta) -> Iterator[str]:
        """Yield more of the answer."""
        del index
        yield from self._start()
        self._shown = self._shown.plus(more)
        if more.thinking:
            yield from self._think(more.thinking)
        if more.text:
            yield from self._say(more.text, [])

    def end(self, choices: Sequence[Choice], decode: Callable[[int], str]) -> Iterator[str]:
        """Yield the rest of the answer."""
        _, reply = choices[0]
        whole = {**answer(choices, self._request, decode), **self._base}
        rest = self._shown.rest_of(reply.message)
        yield from self._start()
        if rest.thinking:
            yield from self._think(rest.thinking)
        for item in whole["output"]:
            if item["type"] == "reasoning":
                yield from self._end_thinking(item)
            elif item["type"] == "message":
                if rest.text or self._open != "message":
                    yield from self._say(rest.text, item["content"][0]["logprobs"])
                yield from self._end_text(item)
            else:
                yield from self._call(item)
        yield self._event(f"response.{whole['status']}", response=whole)

    def _start(self) -> Iterator[str]:
        if not self._is_started:
            self._is_started = True
            started = {**self._base, "status": "in_progress", "incomplete_details": None}
            started |= {"output": [], "usage": None}
            yield self._event("response.created", response=started)
            yield self._event("response.in_progress", response=started)

    def _think(self, text: str) -> Iterator[str]:
        place = {"item_id": _reasoning_id(self._turn), "summary_index": 0}
        if self._open != "reasoning":
            self._open = "reasoning"
            item = {"type": "reasoning", "id": place["item_id"], "summary": []}
            yield self._placed("response.output_item.added", item=item)
            part = {"type": "summary_text", "text": ""}
            yield self._placed("response.reasoning_summary_part.added", **place, part=part)
        yield self._placed("response.reasoning_summary_text.delta", **place, delta=text)

    def _end_thinking(self, item: Mapping[str, Any]) -> Iterator[str]:
        if self._open != "reasoning":  # ended when the text began
            return
        place = {"item_id": item["id"], "summary_index": 0}
        part = item["summary"][0]
        yield self._placed("response.reasoning_summary_text.done", **place, text=part["text"])
        yield self._placed("response.reasoning_summary_part.done", **place, part=part)
        yield self._placed("response.output_item.done", item=item)
        self._index, self._open = self._index + 1, ""

    def _say(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[str]:
        if self._shown.thinking:
            yield from self._end_thinking(_reasoning(self._turn, self._shown.thinking))
        place = {"item_id": _text_id(self._turn), "content_index": 0}
        if self._open != "message":
            self._open = "message"
            item = {"type": "message", "id": place["item_id"], "role": "assistant"}
            opened = {**item, "status": "in_progress", "content": []}
            yield self._placed("response.output_item.added", item=opened)
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._placed("response.content_part.added", **place, part=part)
        yield self._placed("response.output_text.delta", **place, delta=text, logprobs=logprobs)

    def _end_text(self, item: Mapping[str, Any]) -> Iterator[str]:
        place = {"item_id": item["id"], "content_index": 0}
        part = item["content"][0]
        said = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._placed("response.output_text.done", **place, **said)
        yield self._placed("response.content_part.done", **place, part=part)
        yield self._placed("response.output_item.done", item=item)
        self._index, self._open = self._index + 1, ""

    def _call(self, item: Mapping[str, Any]) -> Iterator[str]:
        place, arguments = {"item_id": item["id"]}, item["arguments"]
        opened = {**item, "status": "in_progress", "arguments": ""}
        yield self._placed("response.output_item.added", item=opened)
        yield self._placed("response.function_call_arguments.delta", **place, delta=arguments)
        done = {"name": item["name"], "arguments": arguments}
        yield self._placed("response.function_call_arguments.done", **place, **done)
        yield self._placed("response.output_item.done", item=item)
        self._index += 1

    def _placed(self, kind: str, **fields: Any) -> str:  # noqa: ANN401  # JSON
        return self._event(kind, output_index=self._index, **fields)

    def _event(self, kind: str, **fields: Any) -> str:  # noqa: ANN401  # JSON
        data = json.dumps({"type": kind, **fields, "sequence_number": next(self._numbers)})
        return f"event: {kind}\ndata: {data}\n\n"


def closing_events(request: AgentRequest) -> int:
    """Return how many events are left from the one that says why a reply ended."""
    del request
    return 1


def error(refused: RequestRefused) -> dict[str, Any]:
    """Return an error as OpenAI's SDK reads it."""
    return chat.error(refused)


def stream_error(refused: RequestRefused) -> str:
    """Return an error inside a stream."""
    failed = {"code": refused.code or "server_error", "message": str(refused), "param": None}
    data = json.dumps({"type": "error", "sequence_number": 0, **failed})
    return f"event: error\ndata: {data}\n\n"


def _response_id(turn: Turn) -> str:
    return f"resp_{turn.number}"


def _base(turn: Turn, request: AgentRequest) -> dict[str, Any]:
    return {
        "id": _response_id(turn),
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [],
    }


def _reasoning_id(turn: Turn) -> str:
    return f"rs_{turn.number}"


def _text_id(turn: Turn) -> str:
    return f"msg_{turn.number}"


def _reasoning(turn: Turn, text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": _reasoning_id(turn), "summary": summary}


def _output(
    turn: Turn, reply: Reply, logprobs: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    said = reply.message
    items: list[dict[str, Any]] = []
    if said.thinking:
        items.append(_reasoning(turn, said.thinking))
    if said.text or not reply.calls:
        content: dict[str, Any] = {"type": "output_text", "text": said.text, "annotations": []}
        content["logprobs"] = logprobs or []
        items.append(
            {
                "type": "message",
                "id": _text_id(turn),
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        )
    for call in reply.calls:
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{call.id}",
                "call_id": call.id,
                **_named(call),
                "arguments": call.arguments,
                "status": "completed",
            }
        )
    return items


def _named(call: AgentCall) -> dict[str, str]:
    """Return the name of a call, apart from its namespace."""
    if not call.namespace:
        return {"name": call.name}
    own = call.name.removeprefix(f"{call.namespace}{reading.NAMESPACE_END}")
    return {"name": own, "namespace": call.namespace}


def _usage(choices: Sequence[Choice]) -> dict[str, Any]:
    used = chat.usage(choices)
    return {
        "input_tokens": used["prompt_tokens"],
        "input_tokens_details": {**used["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": used["completion_tokens"],
        "output_tokens_details": used["completion_tokens_details"],
        "total_tokens": used["total_tokens"],
    }
