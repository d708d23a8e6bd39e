"""Convert a model's reply to actions of a server, by the server's schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.reply import Reply
from envkit.toolcalls import ToolCall, call_errors, parse_tool_calls
from envkit.tools import ToolSpec

ENVKIT_ACTION: Final = "EnvkitAction"
"""Title of the action of a server of an envkit environment."""
_MCP_ACTION: Final = "CallToolAction"
"""Title of the action of a server of MCP tools (openenv/core/env_server/mcp_types.py)."""
_KEPT: Final = ("$defs", "additionalProperties")
"""Other keywords of an action's schema that its tool keeps."""
_SHOWN: Final = 300


class InterfaceKind(StrEnum):
    """Kind of actions that a server takes."""

    AUTO = "auto"
    """Detect it from the schema."""
    ACTION = "action"
    """Its own action schema, as one tool with the schema's fields as arguments."""
    TOOLS = "tools"
    """Calls of its MCP tools."""
    TEXT = "text"
    """The reply itself, in the field `reply_field` of an action."""
    ENVKIT = "envkit"
    """The reply itself: the server serves an envkit environment, whose observations, rewards and
    info are returned unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Result of reading a reply."""

    actions: tuple[dict[str, Any], ...] = ()
    """Actions to send, in order."""
    call: dict[str, Any] | None = None
    """The first call, for `info["tool_call"]`."""
    error: str | None = None
    """Why the reply cannot be read; then nothing is sent."""


class Interface(Protocol):
    """Reads replies for one kind of server."""

    tools: tuple[ToolSpec, ...]

    def read(self, reply: Reply) -> Reading:
        """Return the actions of a reply. Never raises for what a model writes."""
        ...


class WholeReply:
    """The reply is the action, or its text without thoughts is one of its fields."""

    def __init__(self, field: str, *, with_thoughts: bool) -> None:
        self.tools: tuple[ToolSpec, ...] = ()
        self._field, self._with_thoughts = field, with_thoughts

    def read(self, reply: Reply) -> Reading:
        """Return the reply as an action."""
        if self._with_thoughts:  # for an envkit environment, which reads how it ended
            action = {self._field: reply.text}
            if reply.is_cut or reply.opened:
                action |= {"finish": reply.finish.value, "opened": reply.opened}
            return Reading(actions=(action,))
        if reply.problem:
            return Reading(error=reply.problem)
        return Reading(actions=({self._field: reply.final.strip()},))


class CalledTools:
    """Calls of tools, each an action."""

    def __init__(
        self, tools: Sequence[ToolSpec], *, is_mcp: bool, call_format: str, most: int
    ) -> None:
        self.tools = tuple(tools)
        self._is_mcp, self._format, self._most = is_mcp, call_format, most

    def read(self, reply: Reply) -> Reading:
        """Return the calls of a reply, checked against their schemas."""
        parsed = parse_tool_calls(reply, self._format, tools=self.tools)
        call = parsed.calls[0].recorded() if parsed.calls else None
        problems = [*parsed.errors]
        if not parsed.calls and not problems:
            names = ", ".join(spec.name for spec in self.tools)
            problems.append(f"there is no call of a tool; the tools are: {names}")
        if len(parsed.calls) > self._most:
            problems.append(f"a reply may have at most {self._most} calls, got {len(parsed.calls)}")
        for each in parsed.calls[: self._most]:
            problems += call_errors(each, self.tools)
        if problems:
            return Reading(call=call, error="; ".join(problems[:4])[: 4 * _SHOWN])
        return Reading(actions=tuple(map(self._action, parsed.calls)), call=call)

    def _action(self, call: ToolCall) -> dict[str, Any]:
        if self._is_mcp:
            return {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
        return dict(call.arguments)


def choose_kind(schema: Mapping[str, Any], reply_field: str | None) -> InterfaceKind:
    """Return the kind of interface that a server's action schema shows.

    Raises:
        EnvFault: The schema is not an object's.
    """
    title, fields = schema.get("title"), _fields_of(schema)
    if title == ENVKIT_ACTION:
        return InterfaceKind.ENVKIT
    if reply_field is not None:
        return InterfaceKind.TEXT
    if title == _MCP_ACTION or not set(fields) - {"metadata"}:
        return InterfaceKind.TOOLS
    return InterfaceKind.ACTION


def action_tool(schema: dict[str, Any], *, name: str) -> ToolSpec:
    """Return the tool that has an action's fields as arguments.

    `metadata`, which every OpenEnv action may have, is omitted.

    Raises:
        EnvFault: The schema is not an object's.
    """
    fields = _fields_of(schema)
    kept: dict[str, Any] = {
        "type": "object",
        "properties": {key: value for key, value in fields.items() if key != "metadata"},
        "required": [key for key in schema.get("required", ()) if key != "metadata"],
    }
    kept.update({key: schema[key] for key in _KEPT if key in schema})
    about = str(schema.get("description") or "Act in the environment.").strip()
    return ToolSpec(name=name, description=about, parameters=kept)


def mcp_tools(listed: object) -> list[ToolSpec]:
    """Return the tools that a server listed.

    Raises:
        EnvFault: There are no tools, or one has no name or schema.
    """
    entries: Sequence[Any] = listed if isinstance(listed, list) else ()
    if not entries:
        raise EnvFault(
            f"the OpenEnv server must list its tools, got {listed!r:.200}", kind=FaultKind.PERMANENT
        )
    try:
        return [
            ToolSpec(
                name=entry["name"],
                description=str(entry.get("description") or ""),
                parameters={"type": "object", "properties": {}, **entry["input_schema"]},
            )
            for entry in entries
        ]
    except (KeyError, TypeError, AttributeError, ConfigurationError) as error:
        raise EnvFault(
            f"the OpenEnv server listed a tool that cannot be called: {error!r:.300}",
            kind=FaultKind.PERMANENT,
        ) from error


def check_field(schema: Mapping[str, Any], field: str) -> None:
    """Reject a reply field that the server's action does not have.

    Raises:
        ConfigurationError: The action has no such field.
        EnvFault: The schema is not an object's.
    """
    fields = sorted(_fields_of(schema))
    if field not in fields:
        raise ConfigurationError(
            f"reply_field must be a field of the server's action, {fields}, got {field!r}"
        )


def _fields_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    fields = schema.get("properties", {})
    if not isinstance(fields, dict):
        raise EnvFault(
            f"the OpenEnv server's action must be an object with properties, got {schema!r:.200}",
            kind=FaultKind.PERMANENT,
        )
    return fields
