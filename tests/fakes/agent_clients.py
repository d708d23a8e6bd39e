"""Clients of the three dialects, as plain JSON: what real ones send, with their rewritings."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from envkit.images import Image

TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    },
}


@dataclass
class Said:
    """A reply as a client read it."""

    text: str
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    thinking: str = ""
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Client:
    """One conversation with a gateway."""

    url: str
    key: str
    stream: bool = False
    tools: bool = False
    echo: Callable[[Said], Said] = lambda said: said
    """Rewrites a reply before it goes back."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    system: str = ""

    path = ""

    async def post(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Send a body; return the status, and its JSON or the events of a stream."""
        headers = {"authorization": f"Bearer {self.key}", **self.headers}
        async with (
            aiohttp.ClientSession() as http,
            http.post(self.url + self.path, json=body, headers=headers) as answer,
        ):
            if answer.content_type != "text/event-stream":
                return answer.status, await answer.json()
            lines = (await answer.text()).splitlines()
            data = [line[6:] for line in lines if line.startswith("data: ")]
            return answer.status, [json.loads(one) for one in data if one != "[DONE]"]

    async def ask(self, text: str = "", image: Image | None = None) -> Said:
        """Send a user message, if there is one, and read the reply into the history."""
        if text or image is not None:
            self.user(text, image)
        status, answer = await self.post(self.body())
        assert status == 200, answer
        said = self.read(answer)
        self.remember(self.echo(said))
        return said

    def body(self) -> dict[str, Any]:
        raise NotImplementedError

    def read(self, answer: Any) -> Said:
        raise NotImplementedError

    def user(self, text: str, image: Image | None) -> None:
        raise NotImplementedError

    def remember(self, said: Said) -> None:
        raise NotImplementedError

    def result(self, call: Mapping[str, Any], text: str, image: Image | None = None) -> None:
        raise NotImplementedError


class ChatClient(Client):
    """Chat completions."""

    path = "/v1/chat/completions"

    def body(self) -> dict[str, Any]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        tools = {"tools": [{"type": "function", "function": TOOL}]} if self.tools else {}
        options = {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}
        return {"model": "m", "messages": [*first, *self.items], **tools, **options, **self.extra}

    def read(self, answer: Any) -> Said:
        if isinstance(answer, dict):
            (choice,) = answer["choices"]
            message, usage, finish = choice["message"], answer["usage"], choice["finish_reason"]
        else:
            choices = [one["choices"][0] for one in answer if one["choices"]]
            message, finish = _accumulated(choices), choices[-1]["finish_reason"]
            usage = answer[-1]["usage"]
        calls = [{"id": one["id"], **one["function"]} for one in message.get("tool_calls") or []]
        thinking = message.get("reasoning_content", "")
        return Said(message.get("content") or "", calls, thinking, finish, usage)

    def user(self, text: str, image: Image | None) -> None:
        content: Any = text
        if image is not None:
            content = [{"type": "image_url", "image_url": {"url": image.data_uri()}}]
            content += [{"type": "text", "text": text}] if text else []
        self.items.append({"role": "user", "content": content})

    def remember(self, said: Said) -> None:
        entry: dict[str, Any] = {"role": "assistant", "content": said.text}
        if said.thinking:
            entry["reasoning_content"] = said.thinking
        if said.calls:
            entry["tool_calls"] = [
                {"id": one["id"], "type": "function",
                 "function": {"name": one["name"], "arguments": one["arguments"]}}
                for one in said.calls
            ]  # fmt: skip
        self.items.append(entry)

    def result(self, call: Mapping[str, Any], text: str, image: Image | None = None) -> None:
        content: Any = text
        if image is not None:
            shown = {"type": "image_url", "image_url": {"url": image.data_uri()}}
            content = [{"type": "text", "text": text}, shown]
        self.items.append({"role": "tool", "tool_call_id": call["id"], "content": content})


class ResponsesClient(Client):
    """Responses."""

    path = "/v1/responses"

    def body(self) -> dict[str, Any]:
        first = {"instructions": self.system} if self.system else {}
        tools = {"tools": [{"type": "function", "strict": True, **TOOL}]} if self.tools else {}
        stream = {"stream": True} if self.stream else {}
        return {"model": "m", "input": self.items, **first, **tools, **stream, **self.extra}

    def read(self, answer: Any) -> Said:
        whole = answer if isinstance(answer, dict) else answer[-1]["response"]
        said = Said("", finish=whole["status"], usage=whole["usage"])
        for item in whole["output"]:
            if item["type"] == "message":
                said.text += item["content"][0]["text"]
            elif item["type"] == "reasoning":
                said.thinking += item["summary"][0]["text"]
            else:
                said.calls.append({"id": item["call_id"], **_named(item)})
        return said

    def user(self, text: str, image: Image | None) -> None:
        content: list[dict[str, Any]] = []
        if image is not None:
            url = image.data_uri()
            content.append({"type": "input_image", "image_url": url, "detail": "auto"})
        content += [{"type": "input_text", "text": text}] if text else []
        self.items.append({"role": "user", "content": content})

    def remember(self, said: Said) -> None:
        if said.thinking:
            summary = [{"type": "summary_text", "text": said.thinking}]
            self.items.append({"type": "reasoning", "id": "rs", "summary": summary})
        if said.text:
            content = [{"type": "output_text", "text": said.text, "annotations": []}]
            self.items.append({"type": "message", "role": "assistant", "content": content})
        self.items += [
            {"type": "function_call", "call_id": one["id"], **_named(one)} for one in said.calls
        ]

    def result(self, call: Mapping[str, Any], text: str, image: Image | None = None) -> None:
        output: Any = text
        if image is not None:
            shown = {"type": "input_image", "image_url": image.data_uri()}
            output = [{"type": "input_text", "text": text}, shown]
        item = {"type": "function_call_output", "call_id": call["id"], "output": output}
        self.items.append(item)


class AnthropicClient(Client):
    """Anthropic's messages."""

    path = "/v1/messages"

    def body(self) -> dict[str, Any]:
        first = {"system": self.system} if self.system else {}
        shown = {"name": TOOL["name"], "description": "", "input_schema": TOOL["parameters"]}
        tools = {"tools": [shown]} if self.tools else {}
        stream = {"stream": True} if self.stream else {}
        limit = {"max_tokens": 4096}
        return {"model": "m", "messages": self.items, **limit, **first, **tools, **stream,
                **self.extra}  # fmt: skip

    def read(self, answer: Any) -> Said:
        if isinstance(answer, dict):
            blocks, finish, usage = answer["content"], answer["stop_reason"], answer["usage"]
        else:
            blocks, finish, usage = _blocks(answer)
        said = Said("", finish=finish, usage=usage)
        for block in blocks:
            if block["type"] == "text":
                said.text += block["text"]
            elif block["type"] == "thinking":
                said.thinking += block["thinking"]
            else:
                arguments = json.dumps(block["input"], ensure_ascii=False)
                said.calls.append(
                    {"id": block["id"], "name": block["name"], "arguments": arguments}
                )
        return said

    def user(self, text: str, image: Image | None) -> None:
        content: list[dict[str, Any]] = [] if image is None else [_base64(image)]
        content += [{"type": "text", "text": text}] if text else []
        self._add("user", content)

    def remember(self, said: Said) -> None:
        content: list[dict[str, Any]] = []
        if said.thinking:
            content.append({"type": "thinking", "thinking": said.thinking, "signature": "s"})
        content += [{"type": "text", "text": said.text}] if said.text else []
        content += [
            {"type": "tool_use", "id": one["id"], "name": one["name"],
             "input": json.loads(one["arguments"])}
            for one in said.calls
        ]  # fmt: skip
        self._add("assistant", content)

    def result(self, call: Mapping[str, Any], text: str, image: Image | None = None) -> None:
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        content += [] if image is None else [_base64(image)]
        block = {"type": "tool_result", "tool_use_id": call["id"], "content": content}
        self._add("user", [block])

    def _add(self, role: str, content: list[dict[str, Any]]) -> None:
        if self.items and self.items[-1]["role"] == role:
            self.items[-1]["content"] += content
        else:
            self.items.append({"role": role, "content": content})


CLIENTS = (ChatClient, ResponsesClient, AnthropicClient)


def _named(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call["name"], "arguments": call["arguments"]}


def _base64(image: Image) -> dict[str, Any]:
    data = image.data_uri().partition(",")[2]
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }


def _accumulated(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Assemble the deltas of a chat stream."""
    message: dict[str, Any] = {}
    for choice in choices:
        for key, value in choice["delta"].items():
            message[key] = message[key] + value if message.get(key) else value
    return message


def _blocks(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str, dict[str, Any]]:
    """Assemble a stream of Anthropic events."""
    blocks: list[dict[str, Any]] = []
    finish, usage = "", {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"]})
            case "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "input_json_delta":
                        block["input"] = json.loads(delta["partial_json"])
                    case _:
                        pass
            case "message_delta":
                finish, usage = event["delta"]["stop_reason"], event["usage"]
            case _:
                pass
    return blocks, finish, usage
