"""Convert messages of the verifiers library to turns, and replies to its responses."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from envkit.env import ObservationRole
from envkit.errors import EnvFault, FaultKind, ImageError
from envkit.images import Image
from envkit.reply import Reply
from envkit.toolcalls import ParsedReply, parse_tool_calls
from envkit.tools import ToolSpec

_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Messages joined into one observation."""

    text: str
    images: tuple[Image, ...]
    role: ObservationRole


def show(messages: Sequence[Any]) -> Shown:
    """Join the messages that follow a reply.

    Raises:
        EnvFault: A role or part is unsupported, or an image cannot be read.
    """
    texts: list[str] = []
    images: list[Image] = []
    for entry in messages:
        if entry.role not in ("user", "tool"):
            raise _fault(f"must answer with user or tool messages, got role {entry.role!r}")
        text, shown = read_content(entry.content)
        texts.append(text)
        images += shown
    is_tool = bool(messages) and all(entry.role == "tool" for entry in messages)
    return Shown(text="\n\n".join(texts), images=tuple(images), role="tool" if is_tool else "user")


def read_content(content: Any) -> tuple[str, list[Image]]:  # noqa: ANN401  # pydantic or plain
    """Return the text and the images of a message's content.

    Raises:
        EnvFault: As `show` does.
    """
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    images: list[Image] = []
    for part in content:
        found: dict[str, Any] = part if isinstance(part, dict) else part.model_dump()
        match found.get("type"):
            case "text":
                texts.append(str(found["text"]))
            case "image_url":
                images.append(_picture(found["image_url"]))
            case kind:
                raise _fault(f"may send text and image_url parts, got {kind!r}")
    return "\n".join(texts), images


def read_tools(tools: Sequence[Any] | None) -> tuple[ToolSpec, ...]:
    """Return the library's tool definitions as tools."""
    return tuple(
        ToolSpec(
            name=tool.name,
            description=tool.description,
            parameters={"type": "object", "properties": {}, **tool.parameters},
        )
        for tool in tools or ()
    )


def read_reply(reply: Reply, call_format: str, tools: Sequence[ToolSpec]) -> ParsedReply:
    """Parse a reply; without tools it is plain text, including thoughts that were closed."""
    if tools or reply.problem:
        return parse_tool_calls(reply, call_format, tools=tools)
    return ParsedReply(text=reply.answer if reply.open_thought else reply.text)


def write_response(vf: Any, reply: Reply, parsed: ParsedReply, turn: int) -> Any:  # noqa: ANN401
    """Return a reply as the library's response.

    Args:
        vf: The library.
        reply: The sampled reply. Text outside its calls becomes the content, and nothing of a reply
            that was cut.
        parsed: The parsed reply.
        turn: Number of the turn, from 0; call ids differ between turns.
    """
    calls = [
        vf.ToolCall(
            id=f"call{turn:02}{number:03}",
            name=call.name,
            arguments=json.dumps(call.arguments, ensure_ascii=False),
        )
        for number, call in enumerate(parsed.calls)
    ]
    is_whole = not (calls or reply.is_cut or reply.open_thought)
    ended = "length" if reply.is_cut else "stop"
    message = vf.AssistantMessage(
        content=reply.text if is_whole else parsed.text,
        reasoning_content=None if is_whole else parsed.thinking or None,
        tool_calls=calls or None,
    )
    return vf.Response(
        id=f"turn{turn}",
        created=0,
        model="policy",
        message=message,
        finish_reason="tool_calls" if calls else ended,
    )


def _picture(source: Any) -> Image:  # noqa: ANN401
    url = source if isinstance(source, str) else source.get("url")
    if not isinstance(url, str) or not url.startswith("data:"):
        raise _fault(
            f"must send images as data URIs, since envkit fetches nothing, got {url!r:.{_SHOWN}}"
        )
    try:
        return Image.from_data_uri(url)
    except ImageError as error:
        raise _fault(f"sent an image that cannot be read: {error}") from error


def _fault(what: str) -> EnvFault:
    return EnvFault(f"the verifiers environment {what}", kind=FaultKind.PERMANENT)
