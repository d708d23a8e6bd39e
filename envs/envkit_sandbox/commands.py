"""Read a model's reply as shell commands, or as the end of the episode."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import envkit
from envkit.toolcalls import ToolCall, call_errors, parse_tool_calls
from envkit.tools import ToolSpec

MAX_COMMANDS: Final = 4
"""Maximum commands per reply."""
MAX_REPLY: Final = 200_000
_BLOCK: Final = re.compile(
    r"^```(?:bash|sh|shell)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE
)
_OPENING: Final = re.compile(r"^```(?:bash|sh|shell)[ \t]*$", re.MULTILINE)


def bash_tool(description: str) -> ToolSpec:
    """Return the tool `bash(command)` with a description of the shell."""
    return ToolSpec(
        name="bash",
        description=description,
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "What bash shall run."},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    )


class Protocol(StrEnum):
    """How a model writes commands."""

    TOOLS = "tools"
    """Calls of the tool `bash`."""
    FENCED = "fenced"
    """Code blocks that begin with ```bash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A parsed reply: commands, or errors, or neither if the model is done."""

    commands: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    """Calls of the tools protocol, including invalid ones."""
    errors: tuple[str, ...] = ()
    text: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the model ends the episode."""
        return not self.commands and not self.errors


def read(reply: envkit.Reply, protocol: Protocol, tool: ToolSpec) -> Reply:
    """Parse a reply; any text is valid input.

    Args:
        reply: What the model wrote.
        protocol: How it writes commands.
        tool: The tool of the tools protocol; see `bash_tool`.
    """
    if len(reply.text) > MAX_REPLY:
        return Reply(errors=(f"a reply may have at most {MAX_REPLY} characters",))
    if protocol is Protocol.FENCED:
        return _read_fenced(reply)
    parsed = parse_tool_calls(reply, tools=(tool,))
    errors = [*parsed.errors]
    commands: list[str] = []
    for call in parsed.calls:
        wrong = call_errors(call, (tool,))
        errors += wrong
        if not wrong:
            commands.append(call.arguments["command"])
    return Reply(
        commands=tuple(commands), calls=parsed.calls, errors=tuple(errors), text=parsed.text
    )


def _read_fenced(reply: envkit.Reply) -> Reply:
    if reply.problem:
        return Reply(errors=(reply.problem,))
    spoken = reply.final
    blocks = list(_BLOCK.finditer(spoken))
    rest = spoken[blocks[-1].end() :] if blocks else spoken
    unclosed = ("a code block is not closed by ```",) if _OPENING.search(rest) else ()
    return Reply(
        commands=tuple(found.group(1) for found in blocks), errors=unclosed, text=spoken.strip()
    )


def write(command: str, protocol: Protocol) -> str:
    """Return the reply that runs a command."""
    if protocol is Protocol.FENCED:
        return f"```bash\n{command}\n```"
    call = json.dumps({"name": "bash", "arguments": {"command": command}}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
