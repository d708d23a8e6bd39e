"""A request of an agent, read from any dialect, and the errors that refuse one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

from envkit.errors import EnvkitError
from envkit.tools import ToolSpec
from envkit_gateway.messages import AgentMessage

TOO_LONG: Final = "context_length_exceeded"
"""Code of a refusal that clients answer with a shorter history."""


class RequestRefused(EnvkitError):
    """A request that the gateway refuses; the agent gets the error in its own dialect."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        """Describe the refusal.

        Args:
            status: HTTP status. SDKs retry 408, 409, 429 and from 500 on, nothing else.
            message: What happened and what to do.
            code: Machine-readable, such as "context_length_exceeded"; None for none.
        """
        super().__init__(message)
        self.status, self.code = status, code


def bad_request(message: str, *, code: str | None = None) -> RequestRefused:
    """Return a refusal that clients do not retry."""
    return RequestRefused(400, message, code=code)


@dataclass(frozen=True, kw_only=True)
class AgentTool(ToolSpec):
    """A tool of a request, which a template reads as a server passes it."""

    written: Mapping[str, Any] = field(hash=False)
    """Its function in the chat-completions form."""
    namespace: str = ""
    """Of Responses; part of the name."""

    def to_json(self) -> dict[str, Any]:
        """Return the tool as vLLM passes it to a template (`FunctionDefinition`)."""
        return {"type": "function", "function": dict(self.written)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """What an agent asks for."""

    messages: tuple[AgentMessage, ...]
    tools: tuple[AgentTool, ...] = ()
    may_call: bool = True
    """Whether the client accepts calls; otherwise they stay text. The prompt has the tools in any
    case, so the conversation continues."""
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables for the chat template."""
    stops_thinking: bool = False
    """Whether thinking is turned off, in the way that the template has for it."""
    leads_with_system: bool = False
    """Whether all system messages become one at the start if the template needs that (vLLM:
    vllm/entrypoints/anthropic/serving.py)."""
    has_instructions: bool = False
    """Whether the first message is a response's `instructions`."""
    model: str = ""
    """Reported back; it never selects a model."""
    key: str = ""
    """Equal for equal bodies, streamed or not."""
    is_retry: bool = False
    """Whether the client marks it as a retry."""
    label: str = ""
    """Name of the sub-agent, if the client's headers state it; never used for matching."""
    is_streamed: bool = False
    wants_usage: bool = False
    """Whether a stream of chat completions ends with the usage."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    continues_reply: bool = False
    """Whether the last message is the start of the reply."""
    choices: int = 1
    """Number of replies to sample for one answer."""
    wants_logprobs: bool = False
    top_logprobs: int = 0
    """Number of most probable tokens to report at each position."""
    unenforced: tuple[str, ...] = ()
    """Requested settings that the engine cannot enforce, such as `tool_choice`; recorded with the
    turn."""

    def of_client(self, *, key: str, is_retry: bool, label: str) -> "AgentRequest":
        """Return the request with the facts from its headers and its whole body."""
        return replace(self, key=key, is_retry=is_retry, label=label)

    @property
    def system_text(self) -> str:
        """The system prompt: all system messages at the start."""
        leading = takewhile(lambda one: one.role == "system", self.messages)
        return "\n\n".join(one.text for one in leading)

    @property
    def asks_of_template(self) -> str:
        """What it asks of the chat template, as text; empty if nothing."""
        if not (self.variables or self.stops_thinking):
            return ""
        return json.dumps([self.variables, self.stops_thinking], sort_keys=True)

    @property
    def tools_text(self) -> str:
        """The tools as text, for matching."""
        return repr([tool.to_json() for tool in self.tools])


def take(
    body: Mapping[str, Any],
    name: str,
    kind: type,
    *,
    default: Any = None,  # noqa: ANN401  # JSON
) -> Any:  # noqa: ANN401  # JSON
    """Return a field of a body; the default if it is missing or null.

    Raises:
        RequestRefused: It has another type.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise bad_request(f"{name} must be of type {kind.__name__}, got {value!r:.80}")
    return value
