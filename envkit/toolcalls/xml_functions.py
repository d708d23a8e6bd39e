"""Readers of the call formats that carry raw text: Qwen3-Coder functions and plain tags."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from envkit.toolcalls.reply import Collector
from envkit.toolcalls.tolerant_json import MalformedJson, decode
from envkit.tools import ToolSpec

FUNCTION_OPEN: Final = "<function="
_FUNCTION_CLOSE: Final = "</function>"
_PARAMETER_OPEN: Final = "<parameter="
_PARAMETER_CLOSE: Final = "</parameter>"
_HEAD: Final = re.compile(r"([^<>\n]{1,200})>")


def read_functions(out: Collector, start: int = 0, end: int | None = None) -> None:
    """Read Qwen3-Coder calls between two positions.

    Values are text. A value that the tool's schema declares as a number, boolean, list or object is
    decoded. If that fails it stays text, and validation reports the problem.
    """
    text = out.text
    limit = len(text) if end is None else end
    at = start
    while (head := text.find(FUNCTION_OPEN, at, limit)) >= 0:
        name = _HEAD.match(text, head + len(FUNCTION_OPEN), limit)
        close = text.find(_FUNCTION_CLOSE, head, limit)
        stop = limit if close < 0 else close
        at = min(stop + len(_FUNCTION_CLOSE), limit)
        if name is None:
            out.error("'<function=' must be followed by a name and '>'")
        else:
            _read_function(out, name.group(1).strip(), text[name.end() : stop])
        if end is None:
            out.cut(head, at)


def _read_function(out: Collector, name: str, body: str) -> None:
    types = _declared_types(name, out.tools)
    arguments: dict[str, Any] = {}
    for piece in body.split(_PARAMETER_OPEN)[1:]:
        key = _HEAD.match(piece)
        if key is None:
            out.error("'<parameter=' must be followed by a name and '>'")
            return
        parameter = key.group(1).strip()
        if parameter in arguments:
            out.error(f"parameter {parameter[:40]!r} appears twice")
            return
        value = piece[key.end() :].partition(_PARAMETER_CLOSE)[0]
        arguments[parameter] = _value(_trim(value), types.get(parameter))
    out.call(name, arguments)


def _trim(value: str) -> str:
    """Strip the line break that the format adds at each end of a value."""
    return value.removeprefix("\n").removesuffix("\n")


def _declared_types(name: str, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    for spec in tools:
        if spec.name == name:
            return dict(spec.parameters.get("properties", {}))
    return {}


def _value(text: str, schema: Any) -> Any:  # noqa: ANN401  # JSON in, JSON out
    if not isinstance(schema, Mapping) or _takes_text(cast(Mapping[str, Any], schema)):
        return text
    try:
        return decode(text)
    except MalformedJson:
        return text


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema accepts a string or does not constrain the type."""
    if "anyOf" in schema:
        return any(_takes_text(option) for option in schema["anyOf"])
    declared: Any = schema.get("type", "string")
    return "string" in (declared if isinstance(declared, list) else [declared])


def read_tags(out: Collector, tags: Mapping[str, str]) -> None:
    """Read plain tags such as `<search>what to look for</search>`.

    Args:
        out: The collector over the reply.
        tags: The argument name for each tag, such as {"search": "query"}.
    """
    opening = re.compile("<(" + "|".join(re.escape(tag) for tag in tags) + ")>")
    text, at = out.text, 0
    unclosed: set[str] = set()
    while found := opening.search(text, at):
        tag = found.group(1)
        close = -1 if tag in unclosed else text.find(f"</{tag}>", found.end())
        if close < 0:
            if tag not in unclosed:
                out.error(f"<{tag}> is not closed by </{tag}>")
            unclosed.add(tag)
            at = found.end()
            continue
        out.call(tag, {tags[tag]: text[found.end() : close].strip()})
        at = close + len(f"</{tag}>")
        out.cut(found.start(), at)
