"""An agent's messages: in one form for all dialects, for matching, and for the codec.

Clients change a reply before they send it back: they strip white space, serialise arguments again,
drop thinking, rename call ids. The keys of this module are equal for the same message in any of
these forms. They are used for matching only and never rendered.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from envkit.messages import Message, Part, Role

_THINK: Final = "<think>"
_THOUGHT: Final = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """A tool call in an agent's history."""

    id: str
    name: str
    arguments: str
    """JSON text, as the client sent it."""

    def wire(self) -> dict[str, Any]:
        """Return the call as chat completions and chat templates write it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """One message of an agent's request, in a form shared by all dialects."""

    role: Role
    parts: tuple[Part, ...] = ()
    calls: tuple[AgentCall, ...] = ()
    call_id: str = ""
    """For a tool result, the id of the call that it answers."""
    is_error: bool = False
    """Whether a tool result is marked as an error, which no template renders."""
    thinking: str = ""

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks as they are rendered."""
        return "\n".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def has_images(self) -> bool:
        """Whether any part is an image."""
        return any(part["type"] == "image" for part in self.parts)


class PrefixKeys:
    """A key for each prefix of a conversation; equal keys mean the same conversation."""

    def __init__(self, start: str, messages: Sequence[AgentMessage]) -> None:
        """Take a conversation.

        Args:
            start: What the conversation depends on in addition to its messages, such as its tools.
            messages: In order.
        """
        self._digest = hashlib.sha256(start.encode("utf-8", "surrogatepass")).hexdigest()
        # Ids by first appearance: clients rename them, never re-link them.
        self._numbers: dict[str, int] = {}
        self.keys = [self.add(entry) for entry in messages]

    def add(self, entry: AgentMessage) -> str:
        """Append a message; return the key of the conversation up to it."""
        whole = (self._digest + self._message_key(entry)).encode("utf-8", "surrogatepass")
        self._digest = hashlib.sha256(whole).hexdigest()
        return self._digest

    def _message_key(self, entry: AgentMessage) -> str:
        numbers = self._numbers
        if entry.role == "assistant":
            calls = [
                [numbers.setdefault(call.id, len(numbers)), call.name, _same(call.arguments)]
                for call in entry.calls
            ]
            shown = [*map(_part_key, entry.parts)] if entry.has_images else _split(entry.text)[1]
            return json.dumps(["assistant", shown, calls])
        shown = [*map(_part_key, entry.parts)]
        failed = ["error"] if entry.is_error else []
        return json.dumps([entry.role, shown, numbers.get(entry.call_id), *failed])


def said_key(text: str, calls: Sequence[AgentCall]) -> str:
    """Return what a reply says, equal however a client writes it back."""
    return json.dumps([_split(text)[1], [[one.name, _same(one.arguments)] for one in calls]])


def thinking_of(entry: AgentMessage) -> str:
    """Return the thinking of a reply, even if a client wrote it into the text."""
    return (entry.thinking or _split(entry.text)[0]).strip()


def _split(text: str) -> tuple[str, str]:
    """Split leading thinking, if it is complete, from the rest, without outer white space."""
    text = text.strip()
    if text.startswith(_THINK) and _THOUGHT in text:
        thinking, _, text = text.removeprefix(_THINK).partition(_THOUGHT)
        return thinking.strip(), text.strip()
    return "", text


def _same(arguments: str) -> str:
    """Return a call's arguments in a form that any serialisation of them shares."""
    try:
        return json.dumps(json.loads(arguments, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> float | int:
    """Return a number as JavaScript writes it: 2.0 comes back as 2."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _part_key(part: Part) -> list[str]:
    return ["image", part["image"].sha256] if part["type"] == "image" else ["text", part["text"]]


def codec_messages(
    messages: Sequence[AgentMessage],
    *,
    names: Mapping[str, str],
    is_start: bool,
    takes_tool_images: bool,
    reads_parts: bool,
) -> list[Message]:
    """Return an agent's messages in the form that chat templates take.

    Leading system messages become one, later ones user messages. Images of tool results go into one
    user message after the results if the template does not render them there.

    Args:
        messages: In order.
        names: Names of the conversation's calls by id, for templates that write them into results.
        is_start: Whether they start a conversation.
        takes_tool_images: Whether the template renders images of tool messages.
        reads_parts: Whether the template reads lists of parts; for others texts are joined by line
            breaks, as servers do (vLLM: vllm/entrypoints/chat_utils.py).
    """
    todo, found = list(messages), list[Message]()
    system: list[str] = []
    while is_start and todo and todo[0].role == "system":
        system.append(todo.pop(0).text)
    if system:
        found.append({"role": "system", "content": "\n\n".join(system)})
    moved: list[Part] = []
    for entry in todo:
        if entry.role != "tool" and moved:
            found.append({"role": "user", "content": moved})
            moved = []
        if entry.role == "tool" and not takes_tool_images:
            moved += [part for part in entry.parts if part["type"] == "image"]
            texts = tuple(part for part in entry.parts if part["type"] == "text")
            entry = replace(entry, parts=texts)
        found.append(_codec_message(entry, names, reads_parts=reads_parts))
    return [*found, {"role": "user", "content": moved}] if moved else found


def _codec_message(entry: AgentMessage, names: Mapping[str, str], *, reads_parts: bool) -> Message:
    role: Role = "user" if entry.role == "system" else entry.role
    is_list = entry.has_images or (reads_parts and len(entry.parts) > 1)
    written: Message = {"role": role, "content": [*entry.parts] if is_list else entry.text}
    if entry.thinking:
        written["reasoning_content"] = entry.thinking
    if entry.calls:
        written["tool_calls"] = [call.wire() for call in entry.calls]
    if entry.role == "tool" and entry.call_id:
        written["tool_call_id"] = entry.call_id
        if entry.call_id in names:
            written["name"] = names[entry.call_id]
    return written
