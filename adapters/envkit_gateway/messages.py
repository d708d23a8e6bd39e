"""An agent's messages: in one form for all dialects, for matching, and for the codec.

Clients change a reply before they send it back: they strip white space, serialise arguments again,
drop thinking, rename call ids. The keys of this module are equal for the same message in any of
these forms. They are used for matching only and never rendered.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envkit.errors import TemplateError
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
    namespace: str = ""
    """The part of the name that Responses reports on its own; empty in a history."""

    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other fields of its function, which some templates write."""
    is_name_first: bool = False
    """The order in which servers pass the fields, which some templates write: that of vLLM's types,
    or of Responses."""

    def wire(self) -> dict[str, Any]:
        """Return the call as chat completions and chat templates write it."""
        function = {"arguments": self.arguments, "name": self.name, **self.extras}
        if self.is_name_first:
            function = {"name": self.name, **function}
        return {"id": self.id, "function": function, "type": "function"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """One message of an agent's request, in a form shared by all dialects."""

    role: Role
    parts: tuple[Part, ...] = ()
    calls: tuple[AgentCall, ...] = ()
    call_id: str = ""
    """For a tool result, the id of the call that it answers."""
    name: str = ""
    """The name that the client gives it."""
    is_error: bool = False
    """Whether a tool result is marked as an error, which no template renders."""
    is_developer: bool = False
    """Whether a system message is of the role `developer`."""
    thinking: str | None = None
    """None if the client sent none."""
    quoted_thinking: str = ""
    """The client's own message with the thinking of a reply, if it is one."""

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks as servers join them."""
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
        result = [numbers.get(entry.call_id), entry.is_error]
        return json.dumps([entry.role, shown, entry.name, *result])


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
    """Return a number as JavaScript writes it."""
    # A client in JavaScript sends 2.0 back as 2.
    value = float(text)
    return int(value) if value.is_integer() else value


def _part_key(part: Part) -> list[str]:
    return ["image", part["image"].sha256] if part["type"] == "image" else ["text", part["text"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptForm:
    """How messages are written for a template or an endpoint; see `ServedTemplate`."""

    takes_parts: bool = True
    flattens: bool = True
    leads_with_system: bool = False
    knows_developer: bool = False
    merges_developer: bool = True
    """Whether developer messages that become system messages move to the start, with all others."""
    takes_tool_images: bool = False


def codec_messages(
    messages: Sequence[AgentMessage], *, covered: int, form: PromptForm, leads_with_system: bool
) -> list[Message]:
    """Return an agent's messages as a server passes them to a chat template.

    Source: vLLM 0.32, `vllm/renderers/chat_utils.py`. Images of tool results go into one user
    message after the results if the template does not render them there, where vLLM fails.

    Args:
        messages: In order.
        covered: How many of them are recorded; only the others are returned.
        form: What the template takes.
        leads_with_system: Whether system messages become one if the template needs that.

    Raises:
        TemplateError: A new message changes the start of the conversation.
    """
    todo, found = list(messages[covered:]), list[Message]()
    names = {call.id: call.name for entry in messages for call in entry.calls} if covered else {}
    separator = _system_separator(messages, form, leads_with_system=leads_with_system)
    if separator is not None:
        if any(one.role == "system" for one in todo) and covered:
            raise TemplateError("a new system message belongs to the start of the conversation")
        todo = todo if covered else _with_one_system(todo, separator)
    moved: list[Part] = []
    for entry in todo:
        if entry.role != "tool" and moved:
            found.append({"role": "user", "content": moved})
            moved = []
        if entry.role == "tool" and not form.takes_tool_images:
            moved += [part for part in entry.parts if part["type"] == "image"]
            texts = tuple(part for part in entry.parts if part["type"] == "text")
            entry = replace(entry, parts=texts)
        found += _codec_message(entry, names, form)
    return [*found, {"role": "user", "content": moved}] if moved else found


def _system_separator(
    messages: Sequence[AgentMessage], form: PromptForm, *, leads_with_system: bool
) -> str | None:
    """Return what joins system messages at the start; None if they stay where they are."""
    if leads_with_system and form.leads_with_system:
        return ""
    merges = form.merges_developer and not form.knows_developer
    if merges and any(one.is_developer for one in messages):
        return "\n\n"
    return None


def _with_one_system(messages: Sequence[AgentMessage], separator: str) -> list[AgentMessage]:
    """Return messages with one system message at the start, if any is at another place."""
    system = [one for one in messages if one.role == "system"]
    if not any(one.role == "system" for one in messages[1:]):
        return list(messages)
    text = separator.join(filter(None, (one.text for one in system)))
    first = AgentMessage(role="system", parts=({"type": "text", "text": text},))
    return [first, *(one for one in messages if one.role != "system")]


def _codec_message(
    entry: AgentMessage, names: Mapping[str, str], form: PromptForm
) -> Iterator[Message]:
    if entry.quoted_thinking:
        yield {"role": "assistant", "content": entry.quoted_thinking}
    role: Any = "developer" if entry.is_developer and form.knows_developer else entry.role
    written: Message = {"role": role, "content": _content(entry, form)}
    if entry.thinking is not None and not entry.quoted_thinking:
        written["reasoning_content"] = entry.thinking
    if entry.calls:
        written["tool_calls"] = [call.wire() for call in entry.calls]
    if entry.role == "tool" and entry.call_id:
        written["tool_call_id"] = entry.call_id
    name = entry.name or (names.get(entry.call_id, "") if entry.role == "tool" else "")
    if name:
        written["name"] = name
    yield written


def _content(entry: AgentMessage, form: PromptForm) -> str | list[Part]:
    if entry.has_images:
        return [*entry.parts]
    if not form.takes_parts:
        texts = (part["text"] for part in entry.parts if part["type"] == "text")
        return "\n".join(filter(None, texts))
    is_empty = bool(entry.calls and entry.parts) and not entry.text  # servers tell it from no part
    is_text = entry.role == "tool" or (form.flattens and len(entry.parts) <= 1 and not is_empty)
    return entry.text if is_text else [*entry.parts]
