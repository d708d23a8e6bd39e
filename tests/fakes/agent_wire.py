"""An agent's conversation as the body of each dialect."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from envkit.messages import Part
from envkit.tools import ToolSpec
from envkit_gateway import anthropic, chat, responses
from envkit_gateway.messages import AgentMessage

Wire = Callable[[Sequence[AgentMessage]], list[dict[str, Any]]]


def chat_messages(messages: Sequence[AgentMessage]) -> list[dict[str, Any]]:
    """Return the messages of a chat completion."""
    return [_chat_message(one) for one in messages]


def _chat_message(one: AgentMessage) -> dict[str, Any]:
    def part(given: Part) -> dict[str, Any]:
        if given["type"] == "text":
            return {"type": "text", "text": given["text"]}
        return {"type": "image_url", "image_url": {"url": given["image"].data_uri()}}

    found: dict[str, Any] = {"role": one.role, "content": [*map(part, one.parts)] or None}
    if one.thinking:
        found["reasoning_content"] = one.thinking
    if one.calls:
        found["tool_calls"] = [call.wire() for call in one.calls]
    if one.call_id:
        found["tool_call_id"] = one.call_id
    return found


def responses_items(messages: Sequence[AgentMessage]) -> list[dict[str, Any]]:
    """Return the input of a response."""
    found: list[dict[str, Any]] = []
    for one in messages:
        kind = "output_text" if one.role == "assistant" else "input_text"

        def part(given: Part, kind: str = kind) -> dict[str, Any]:
            if given["type"] == "text":
                return {"type": kind, "text": given["text"]}
            return {"type": "input_image", "image_url": given["image"].data_uri()}

        parts = [*map(part, one.parts)]
        if one.role == "tool":
            item = {"type": "function_call_output", "call_id": one.call_id, "output": parts}
            found.append(item)
            continue
        if one.thinking:
            summary = [{"type": "summary_text", "text": one.thinking}]
            found.append({"type": "reasoning", "id": "rs", "summary": summary})
        if parts or not (one.calls or one.thinking):
            found.append({"type": "message", "role": one.role, "content": parts})
        found += [
            {"type": "function_call", "call_id": call.id, "name": call.name,
             "arguments": call.arguments}
            for call in one.calls
        ]  # fmt: skip
    return found


def anthropic_messages(messages: Sequence[AgentMessage]) -> list[dict[str, Any]]:
    """Return the messages of Anthropic's dialect."""
    return [_anthropic_message(one) for one in messages]


def _anthropic_message(one: AgentMessage) -> dict[str, Any]:
    def block(given: Part) -> dict[str, Any]:
        if given["type"] == "text":
            return {"type": "text", "text": given["text"]}
        data = base64.b64encode(given["image"].png_bytes()).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return {"type": "image", "source": source}

    blocks = [*map(block, one.parts)]
    if one.role == "tool":
        result = {"type": "tool_result", "tool_use_id": one.call_id, "content": blocks}
        return {"role": "user", "content": [result]}
    if one.thinking:
        blocks.insert(0, {"type": "thinking", "thinking": one.thinking, "signature": "s"})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in one.calls
    ]
    return {"role": one.role, "content": blocks}


def body_of(dialect: Any, messages: Sequence[AgentMessage], tool: ToolSpec) -> dict[str, Any]:
    """Return the body that asks for a reply, with one tool."""
    spec = tool.to_json()["function"]
    if dialect is chat:
        return {"messages": chat_messages(messages), "tools": [tool.to_json()]}
    if dialect is responses:
        return {"input": responses_items(messages), "tools": [{"type": "function", **spec}]}
    assert dialect is anthropic
    shown = {"name": spec["name"], "description": spec["description"]}
    schema = {"input_schema": spec["parameters"]}
    body = {"messages": anthropic_messages(messages), "max_tokens": 4096}
    return {**body, "tools": [{**shown, **schema}]}
