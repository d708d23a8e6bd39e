"""A chat endpoint as strict as the real ones, in a thread, so that the command line can ask it.

    with ChatServer(lambda body: "42") as server:
        run_envkit("eval", "toy-echo-v0", "--chat", server.url, "--model", MODEL)

What it refuses, and in which words, follows OpenAI's API reference and its guide to error codes;
`prompt_tokens` and `completion_tokens` count words, and 85 for each image.
"""

import asyncio
import base64
import io
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from aiohttp import web
from fakes.judge_server import KEY, Entry, JudgeServer, Refused, Trouble
from PIL import Image as PilImage

MODEL = "gpt-fake"
_FIELDS = {
    "model",
    "messages",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "tools",
    "reasoning_effort",
}
_IMAGE_TOKENS = 85


class ChatServer:
    """An endpoint on a free loopback port, with its own event loop."""

    def __init__(
        self,
        *script: Any,
        key: str | None = KEY,
        reads_images: bool = True,
        reasons: bool = False,
        delay_s: float = 0.0,
    ) -> None:
        """Describe it.

        Args:
            script: Replies, messages, troubles and functions of the request; the last one stays.
            key: What clients must send; None lets everybody in.
            reads_images: False refuses images, as models without vision do.
            reasons: Refuse `max_tokens`, as OpenAI's reasoning models do.
            delay_s: Seconds before each answer.
        """
        self._key, self._reads_images, self._reasons = key, reads_images, reasons
        entries = [self._counted(entry) for entry in script]
        self.server = JudgeServer(entries, accept=self._accepted, delay_s=delay_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Bodies that were accepted."""
        return self.server.requests

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.__aenter__(), self._loop).result(120)
        return self

    def __exit__(self, *_: object) -> None:
        closing = self.server.__aexit__(None, None, None)
        asyncio.run_coroutine_threadsafe(closing, self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    def _counted(self, entry: Any) -> Entry:
        if isinstance(entry, Trouble):
            return entry
        return lambda body: completion(entry(body) if callable(entry) else entry, body)

    def _accepted(self, request: web.Request, raw: bytes) -> dict[str, Any]:
        given = request.headers.get("Authorization")
        if self._key is not None and given is None:
            raise _invalid("You didn't provide an API key.", status=401)
        if self._key is not None and given != f"Bearer {self._key}":
            raise _invalid(f"Incorrect API key provided: {given}.", "invalid_api_key", 401)
        if request.path != "/v1/chat/completions" or request.method != "POST":
            raise _invalid(f"Invalid URL ({request.method} {request.path})", status=404)
        body: dict[str, Any] = json.loads(raw)
        if extra := sorted(body.keys() - _FIELDS):
            raise _invalid(f"Unrecognized request argument supplied: {extra[0]}")
        if body["model"] != MODEL:
            what = f"The model `{body['model']}` does not exist or you do not have access to it."
            raise _invalid(what, "model_not_found", 404)
        if self._reasons and "max_tokens" in body:
            raise _invalid(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                "unsupported_parameter",
            )
        if not 0 <= body["temperature"] <= 2:
            raise _invalid("Invalid 'temperature': must be 0 to 2.")
        for tool in body.get("tools", ()):
            _check_tool(tool)
        _check_order(body["messages"])
        pictures = list(pictures_of(body))
        if pictures and not self._reads_images:
            raise _invalid(
                "Invalid content type. image_url is only supported by certain models.",
                "invalid_image_content",
            )
        return body


def completion(said: Any, body: dict[str, Any]) -> Any:
    """Return a whole completion for a reply's text, or for the fields of its message."""
    if isinstance(said, web.Response) or (isinstance(said, dict) and "choices" in said):
        return said
    message = {"content": said} if isinstance(said, str) else dict(said)
    reason = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    words = len(json.dumps([entry["content"] for entry in body["messages"]]).split())
    pictures = sum(1 for _ in pictures_of(body))
    sampled = len((message.get("content") or "").split())
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": f"{MODEL}-2026-01-01",
        "choices": [
            {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}
        ],
        "usage": {
            "prompt_tokens": words + _IMAGE_TOKENS * pictures,
            "completion_tokens": sampled,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def pictures_of(body: dict[str, Any]) -> Iterator[PilImage.Image]:
    """Decode every image of a request."""
    for entry in body["messages"]:
        parts = entry["content"] if isinstance(entry["content"], list) else []
        for part in parts:
            if part["type"] == "image_url":
                yield _picture(part["image_url"]["url"])


def last_text(body: dict[str, Any]) -> str:
    """Return the text of a request's last message."""
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "content": None,
        "tool_calls": [{"id": "call_9f2", "type": "function", "function": function}],
    }


def by_turn(*replies: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a policy that says these replies in turn, in every conversation by itself."""

    def reply(body: dict[str, Any]) -> Any:
        spoken = sum(entry["role"] == "assistant" for entry in body["messages"])
        said = replies[min(spoken, len(replies) - 1)]
        return said(body) if callable(said) else said

    return reply


def _invalid(message: str, code: str | None = None, status: int = 400) -> Refused:
    return Refused(status, message, "invalid_request_error", code)


def _picture(url: str) -> PilImage.Image:
    head, _, data = url.partition(",")
    if head != "data:image/png;base64":
        raise _invalid(f"Invalid image URL: {head}")
    try:
        return PilImage.open(io.BytesIO(base64.b64decode(data, validate=True)), formats=["PNG"])
    except (ValueError, OSError) as error:
        raise _invalid("You uploaded an unsupported image.", "invalid_image_format") from error


def _check_tool(tool: Any) -> None:
    function = tool.get("function", {})
    if tool.keys() != {"type", "function"} or tool["type"] != "function":
        raise _invalid("Invalid 'tools[0]'.")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function.get("name", "")):
        raise _invalid("Invalid 'tools[0].function.name': string does not match pattern.")
    if function["parameters"]["type"] != "object":
        raise _invalid("Invalid schema for function.")


def _check_order(messages: Sequence[dict[str, Any]]) -> None:
    waiting: list[str] = []
    for number, entry in enumerate(messages):
        role = entry["role"]
        if role not in ("system", "user", "assistant", "tool") or (role == "system" and number):
            raise _invalid(f"Invalid value: {role!r} at messages.{number}.")
        if waiting and role != "tool":
            raise _invalid(
                "An assistant message with 'tool_calls' must be followed by tool messages "
                f"responding to each 'tool_call_id'. No response for: {', '.join(waiting)}"
            )
        if role == "tool" and entry["tool_call_id"] not in waiting:
            raise _invalid("messages with role 'tool' must respond to a preceding 'tool_calls'.")
        if role == "tool":
            waiting.remove(entry["tool_call_id"])
        if role == "assistant":
            waiting = [_checked_call(one) for one in entry.get("tool_calls", ())]
        _check_content(entry, number)
    if waiting or not messages or messages[-1]["role"] == "assistant":
        raise _invalid("The last message must come from the user or a tool.")


def _check_content(entry: dict[str, Any], number: int) -> None:
    role, content = entry["role"], entry["content"]
    if content is None and not entry.get("tool_calls"):
        raise _invalid(f"Invalid value for 'content': expected a string, messages.{number}")
    if role != "user" and not isinstance(content, str | None):
        raise _invalid("Image URLs are only allowed for messages with role 'user'.")
    if unknown := entry.keys() - {"role", "content", "tool_calls", "tool_call_id"}:
        raise _invalid(f"Additional properties are not allowed: {sorted(unknown)}")


def _checked_call(one: dict[str, Any]) -> str:
    if not isinstance(one["function"]["arguments"], str):
        raise _invalid("Invalid type for 'arguments': expected a string.")
    json.loads(one["function"]["arguments"])
    return one["id"]
