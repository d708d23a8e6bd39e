"""Find the tool calls in a model's reply, in the formats that open models write.

No model output raises: a call that cannot be read becomes a sentence in `ParsedReply.errors`, which
an environment returns as the next observation. Time is linear in the length of the reply.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.reply import Reply
from envkit.toolcalls.json_formats import (
    BLOCK_OPEN,
    LLAMA_START,
    MISTRAL_OPEN,
    PYTHON_TAG,
    read_blocks,
    read_llama,
    read_mistral,
)
from envkit.toolcalls.reply import CallCollector, ParsedReply, ToolCall, call_errors
from envkit.toolcalls.tolerant_json import scrub
from envkit.toolcalls.xml_functions import FUNCTION_OPEN, read_functions, read_tags
from envkit.tools import ToolSpec

__all__ = ["ParsedReply", "ToolCall", "ToolCallFormat", "call_errors", "parse_tool_calls"]


class ToolCallFormat(StrEnum):
    """How a model family writes its calls."""

    AUTO = "auto"
    """Detect the format by the first marker in the reply; without a marker there are no calls."""
    HERMES = "hermes"
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""
    QWEN_XML = "qwen_xml"
    """`<function=name><parameter=key>value</parameter></function>`: Qwen3-Coder."""
    GLM = "glm"
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM-4.5 and
    later."""
    LLAMA = "llama"
    """`{"name": ..., "parameters": {...}}`, alone or after `<|python_tag|>`: Llama 3."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS]` and a JSON list, or a name, `[ARGS]` and an object."""
    TAGS = "tags"
    """`<search>...</search>`: one text argument, the tags named by the caller."""


def parse_tool_calls(
    reply: Reply | str,
    format: str = ToolCallFormat.AUTO,  # noqa: A002  # the natural word, and keyword-friendly
    *,
    tools: Sequence[ToolSpec] = (),
    tags: Mapping[str, str] | None = None,
) -> ParsedReply:
    """Split a reply into calls, errors and the surrounding text.

    A call counts only if the reply is whole and the call is closed, and outside thoughts.

    Args:
        reply: The reply, such as `Env.reply`; a string is a whole reply, and any string is valid.
        format: A `ToolCallFormat` or its value.
        tools: Their schemas say which values of Qwen3-Coder calls are numbers or lists. Arguments
            are not validated here; see `call_errors`.
        tags: For the tags format: the name of the argument for each tag.

    Raises:
        UnknownNameError: The format is unknown.
        ConfigurationError: The format is `tags` but no tags were given.
    """
    known = [member.value for member in ToolCallFormat]
    if format not in known:
        raise UnknownNameError.suggest("tool call format", format, known)
    if format == ToolCallFormat.TAGS and not tags:
        raise ConfigurationError("format 'tags' needs tags, such as tags={'search': 'query'}")
    if isinstance(reply, str):
        reply = Reply(text=reply)
    thinking, body = scrub(reply.thinking), scrub(reply.final)
    if reply.problem:
        return ParsedReply(text="", errors=(reply.problem,), thinking=thinking)
    out = CallCollector(body, tools)
    chosen = _detect(body, tags or {}) if format == ToolCallFormat.AUTO else ToolCallFormat(format)
    _read(out, chosen, tags or {})
    return out.finish(thinking)


def _detect(text: str, tags: Mapping[str, str]) -> ToolCallFormat:
    """Return the format whose marker comes first; arguments may quote another marker."""
    marks = {
        BLOCK_OPEN: ToolCallFormat.HERMES,
        FUNCTION_OPEN: ToolCallFormat.QWEN_XML,
        MISTRAL_OPEN: ToolCallFormat.MISTRAL,
        PYTHON_TAG: ToolCallFormat.LLAMA,
        **{f"<{tag}>": ToolCallFormat.TAGS for tag in tags},
    }
    if LLAMA_START.match(text):
        return ToolCallFormat.LLAMA
    found = {position: mark for mark in marks if (position := text.find(mark)) >= 0}
    return marks[found[min(found)]] if found else ToolCallFormat.AUTO


def _read(out: CallCollector, chosen: ToolCallFormat, tags: Mapping[str, str]) -> None:
    match chosen:
        case ToolCallFormat.HERMES | ToolCallFormat.QWEN_XML | ToolCallFormat.GLM:
            if chosen == ToolCallFormat.QWEN_XML and BLOCK_OPEN not in out.text:
                read_functions(out)
            else:
                read_blocks(out)
        case ToolCallFormat.LLAMA:
            read_llama(out)
        case ToolCallFormat.MISTRAL:
            read_mistral(out)
        case ToolCallFormat.TAGS:
            read_tags(out, tags)
        case ToolCallFormat.AUTO:
            pass
