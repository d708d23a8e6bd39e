"""Messages and tools in the wire format of chat endpoints.

Foreign text is neutralised here as everywhere: no server's chat template may see control tokens in
it. Without the model's tokenizer, this breaks up the token syntax that families share.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from envkit.messages import Message, images_of, text_of
from envkit.toolcalls import ToolCall, ToolCallFormat, parse_tool_calls
from envkit.toolcalls.tolerant_json import scrub
from envkit.tools import ToolSpec

# Control token openings of Qwen, Llama, GLM, DeepSeek, MiniCPM, LLaVA, InternVL, Gemma, Pixtral and
# Mistral.
_CONTROL: Final = re.compile(
    r"<(?=[|\uff5c])|<(?=/?(?:s|think|tool_call|tool_response|image|video|audio|img|start_of_turn|"
    r"end_of_turn|image_soft_token|start_of_image|end_of_image|IMG_CONTEXT)>)|"
    r"\[(?=/?(?:INST|IMG|IMG_BREAK|IMG_END|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\])"
)
_ELSEWHERE: Final = "See the next message."
"""Result of a call whose answer follows as a user message, since only those hold images."""
_ABOVE: Final = "See the result of the first call."
"""Result of further calls, which an environment answers in one text."""


def wire_message(entry: Message) -> dict[str, Any]:
    """Return a message with its text and its images; images stay `Image`."""
    content = entry["content"]
    if isinstance(content, str):
        return {"role": entry["role"], "content": _safe(entry, content)}
    texts = [part["text"] for part in content if part["type"] == "text"]
    trusting = entry if len(texts) == 1 else Message(role=entry["role"], content="")
    return {
        "role": entry["role"],
        "content": [
            {"type": "image_url", "image_url": {"url": part["image"]}}
            if part["type"] == "image"
            else {"type": "text", "text": _safe(trusting, part["text"])}
            for part in content
        ],
    }


def wire_messages(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return a conversation in the form that endpoints require.

    Calls in a reply's text become structured calls, each with the result that endpoints require. A
    tool message that answers no call becomes a user message. Messages of another program, which
    have structured calls and the ids of the calls that they answer, keep both.

    Args:
        messages: As an episode records them, with calls in the text of replies, or another
            program's.
        tools: Tools that the request offers; without any, replies are plain text.
    """
    found: list[dict[str, Any]] = []
    pending: tuple[str, ...] = ()
    count = 0
    for number, entry in enumerate(messages):
        if "tool_calls" in entry or "tool_call_id" in entry:
            found.append(_structured(entry))
            continue
        if entry["role"] == "assistant":
            calls = _calls(entry, tools) if number + 1 < len(messages) else ()
            wired, pending = _reply(entry, calls, count)
            count += len(calls)
            found.append(wired)
            continue
        found += _answer(entry, pending)
        pending = ()
    return found


def _structured(entry: Message) -> dict[str, Any]:
    """Return another program's call or result."""
    if "tool_calls" in entry:
        text = text_of(entry) or None
        return {"role": "assistant", "content": text, "tool_calls": entry["tool_calls"]}
    text = _safe(entry, text_of(entry))
    return {"role": "tool", "tool_call_id": entry.get("tool_call_id"), "content": text}


def _reply(
    entry: Message, calls: Sequence[ToolCall], count: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a reply and its call ids, which are numbered across the conversation."""
    text = text_of(entry)
    if not calls:
        return {"role": "assistant", "content": text}, ()
    # Nine letters and digits: Mistral's templates take no other ids.
    ids = tuple(f"call{count + n:05d}" for n in range(len(calls)))
    spoken = parse_tool_calls(text, ToolCallFormat.HERMES).text
    wired = [{**call.to_wire(), "id": one} for call, one in zip(calls, ids, strict=True)]
    return {"role": "assistant", "content": spoken or None, "tool_calls": wired}, ids


def _answer(entry: Message, pending: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield an environment's answer: results for the preceding calls, then any other text."""
    is_result = entry["role"] == "tool" and not images_of((entry,))
    for number, call_id in enumerate(pending):
        first = _safe(entry, text_of(entry)) if is_result else _ELSEWHERE
        yield {"role": "tool", "tool_call_id": call_id, "content": _ABOVE if number else first}
    if not (pending and is_result):
        role = "user" if entry["role"] == "tool" else entry["role"]
        yield {**wire_message(entry), "role": role}


def _calls(entry: Message, tools: Sequence[ToolSpec]) -> tuple[ToolCall, ...]:
    if not tools:
        return ()
    parsed = parse_tool_calls(text_of(entry), ToolCallFormat.HERMES, tools=tools)
    return () if parsed.errors else parsed.calls


def _safe(entry: Message, text: str) -> str:
    """Return a text without control tokens, except when its author wrote them."""
    if entry["role"] == "assistant":
        return text
    safe, done = "", 0
    for start, end in entry.get("trusted", ()):
        safe += _without_tokens(text[done:start]) + text[start:end]
        done = end
    return safe + _without_tokens(text[done:])


def _without_tokens(text: str) -> str:
    """Return a text in which no server's chat template sees control tokens."""
    return _CONTROL.sub(lambda mark: f"{mark.group()} ", scrub(text))
