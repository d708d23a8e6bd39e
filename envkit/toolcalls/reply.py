"""The parts of a parsed reply: tool calls, errors and the surrounding text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit.toolcalls.tolerant_json import MalformedJson, decode
from envkit.tools import ToolSpec

_MAX_RECORDED: Final = 2000
"""Maximum characters of a call's JSON arguments in a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that a model wrote, with unvalidated JSON arguments."""

    name: str
    arguments: dict[str, Any]
    id: str
    """The model's own id, else `call00000`, `call00001`, ... within the reply: nine letters and
    digits, as Mistral's templates require."""

    def to_json(self) -> dict[str, Any]:
        """Return the call as plain JSON data."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}

    def recorded(self) -> dict[str, Any]:
        """Return the call for `info["tool_call"]`, with overlong names and arguments cut."""
        written = json.dumps(self.arguments, ensure_ascii=False)
        is_long = len(written) > _MAX_RECORDED
        arguments = {"cut": written[:_MAX_RECORDED]} if is_long else self.arguments
        return {"id": self.id[:64], "name": self.name[:64], "arguments": arguments}

    def to_wire(self) -> dict[str, Any]:
        """Return the chat-completions form, with the arguments as a JSON string."""
        text = json.dumps(self.arguments, ensure_ascii=False)
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": text},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A reply split into calls, errors, text and thinking."""

    text: str
    """The reply without its calls and without its thinking, stripped."""
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()
    """One sentence per call that cannot be read, suitable for showing to the model."""
    thinking: str = ""
    """The text of its thoughts, stripped. Calls inside are not run."""


def call_errors(call: ToolCall, tools: Sequence[ToolSpec]) -> list[str]:
    """Return the problems of a call, one sentence each: an unknown tool or bad arguments."""
    for spec in tools:
        if spec.name == call.name:
            return [f"{call.name}: {error}" for error in spec.validate(call.arguments)]
    names = ", ".join(spec.name for spec in tools) or "none"
    return [f"there is no tool {call.name[:64]!r}; the tools are: {names}"]


class CallCollector:
    """Collects the calls and errors of one reply while a format reader scans it."""

    def __init__(self, text: str, tools: Sequence[ToolSpec]) -> None:
        self.text = text
        self.tools = tools
        self._calls: list[ToolCall] = []
        self._errors: list[str] = []
        self._kept: list[str] = []
        self._kept_to = 0

    def cut(self, start: int, end: int) -> None:
        """Remove text[start:end] from the reply's text; cuts must come in order."""
        self._kept.append(self.text[self._kept_to : start])
        self._kept_to = end

    def error(self, what: str) -> None:
        """Record a call that cannot be read."""
        number = len(self._calls) + len(self._errors) + 1
        self._errors.append(f"tool call {number} cannot be read: {what}")

    def call(self, name: str, arguments: dict[str, Any], call_id: object = None) -> None:
        """Record a call."""
        for spec in self.tools:
            if spec.name == name:
                arguments = spec.with_integers(arguments)
        given = call_id if isinstance(call_id, str) and call_id else f"call{len(self._calls):05d}"
        self._calls.append(ToolCall(name=name, arguments=arguments, id=given))

    def payload(self, value: object) -> None:
        """Record the call, or the list of calls, in a JSON payload."""
        if not isinstance(value, list):
            self._one(value)
            return
        for entry in cast(list[object], value):
            self._one(entry)

    def _one(self, value: object) -> None:
        if not isinstance(value, dict):
            self.error(f"it must be an object with 'name' and 'arguments', got {_kind(value)}")
            return
        fields = cast(dict[str, Any], value)
        if isinstance(fields.get("function"), dict):  # the chat-completions form
            fields = {"id": fields.get("id"), **cast(dict[str, Any], fields["function"])}
        name = fields.get("name", fields.get("function"))
        if not isinstance(name, str) or not name.strip():
            self.error(f"its 'name' must be a tool's name, got {_kind(name)}")
            return
        self.named(name.strip(), fields, fields.get("id"))

    def named(self, name: str, fields: Mapping[str, Any], call_id: object) -> None:
        """Record the call of a tool with the arguments in JSON data."""
        arguments = _arguments_of(fields)
        if isinstance(arguments, str):
            self.error(arguments)
        else:
            self.call(name, arguments, call_id)

    def finish(self, thinking: str) -> ParsedReply:
        """Return the parsed reply."""
        self.cut(len(self.text), len(self.text))
        return ParsedReply(
            text="".join(self._kept).strip(),
            calls=tuple(self._calls),
            errors=tuple(self._errors),
            thinking=thinking,
        )


def _arguments_of(fields: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return a call's arguments, or a sentence that says why they are invalid."""
    value: Any = fields.get("arguments", fields.get("parameters"))
    if isinstance(value, str) and value.strip():  # JSON inside a JSON string
        try:
            value = decode(value)
        except MalformedJson as error:
            return f"its arguments are a string that is not valid JSON: {error}"
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        return f"its arguments must be an object, got {_kind(value)}"
    return cast(dict[str, Any], value)


def _kind(value: object) -> str:
    for kind, name in ((dict, "an object"), (list, "a list"), (str, "a string")):
        if isinstance(value, kind):
            return name
    return "nothing" if value is None else repr(value)
