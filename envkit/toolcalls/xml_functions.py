"""Readers of the call formats that carry raw text: Qwen3-Coder and GLM functions, plain tags."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from envkit.toolcalls.reply import CallCollector
from envkit.toolcalls.tolerant_json import MalformedJson, decode
from envkit.tools import ToolSpec

FUNCTION_OPEN: Final = "<function="
_FUNCTION_CLOSE: Final = "</function>"
_PARAMETER_OPEN: Final = "<parameter="
_PARAMETER_CLOSE: Final = "</parameter>"
_INSIDE: Final = re.compile("|".join((_FUNCTION_CLOSE, FUNCTION_OPEN, _PARAMETER_OPEN)))
_PARAMETER_END: Final = re.compile(f"{_PARAMETER_CLOSE}|{_PARAMETER_OPEN}")
_HEAD: Final = re.compile(r"([^<>\n]{1,200})>")
_KEY_OPEN: Final = "<arg_key>"
_KEY: Final = re.compile(rf"\s*+{_KEY_OPEN}([^<>]{{1,200}})</arg_key>\s*+<arg_value>")
_VALUE_CLOSE: Final = "</arg_value>"
_GLM_HEAD: Final = re.compile(r"\s*+([\w.:/-]{1,64})\s*+")


def read_functions(out: CallCollector, start: int = 0, end: int | None = None) -> None:
    """Read Qwen3-Coder calls between two positions.

    Values are text. A value that the tool's schema declares as a number, boolean, list or object is
    decoded. If that fails it stays text, and validation reports the problem. A function or a
    parameter that is not closed makes no call.
    """
    limit = len(out.text) if end is None else end
    at = start
    while (head := out.text.find(FUNCTION_OPEN, at, limit)) >= 0:
        at = _read_function(out, head, limit)
        if end is None:
            out.cut(head, at)


def _read_function(out: CallCollector, head: int, limit: int) -> int:
    """Read the function that begins at `head`; return where reading continues."""
    text = out.text
    name = _HEAD.match(text, head + len(FUNCTION_OPEN), limit)
    at = head + len(FUNCTION_OPEN) if name is None else name.end()
    problem = "'<function=' must be followed by a name and '>'" if name is None else ""
    types = {} if name is None else _declared_types(name.group(1).strip(), out.tools)
    arguments: dict[str, Any] = {}
    while (mark := _INSIDE.search(text, at, limit)) is not None:
        at = mark.end()
        if mark.group() == _FUNCTION_CLOSE:
            if name is not None and not problem:
                out.call(name.group(1).strip(), arguments)
            else:
                out.error(problem)
            return at
        if mark.group() == FUNCTION_OPEN:
            at = mark.start()
            break
        found = _read_parameter(text, at, limit)
        if isinstance(found, str):
            problem = problem or found
            continue
        key, value, at = found
        if key in arguments:
            problem = problem or f"parameter {key[:40]!r} appears twice"
        arguments[key] = _value(_trim(value), types.get(key))
    else:
        at = limit
    out.error(problem or f"{FUNCTION_OPEN}...> is not closed by {_FUNCTION_CLOSE}")
    return at


def is_glm(out: CallCollector, body: int, limit: int) -> bool:
    """Return whether a block is a call as GLM-4.5 and later models write it.

    It is a name, and pairs of `<arg_key>` and `<arg_value>`. Without a pair it is a call only if
    the name is that of a tool, since the block may be broken JSON.

    Source: zai-org/GLM-4.5, chat_template.jinja.

    Args:
        out: The collector over the reply.
        body: Where the block begins, after its opening tag.
        limit: Where it ends, before its closing tag.
    """
    head = _GLM_HEAD.match(out.text, body, limit)
    if head is None:
        return False
    is_named = any(spec.name == head.group(1) for spec in out.tools)
    return out.text.startswith(_KEY_OPEN, head.end(), limit) or (is_named and head.end() == limit)


def read_glm(out: CallCollector, body: int, limit: int) -> None:
    """Read a block for which `is_glm` holds; values are read as in `read_functions`."""
    text, head = out.text, _GLM_HEAD.match(out.text, body, limit)
    assert head is not None
    name, at = head.group(1), head.end()
    types = _declared_types(name, out.tools)
    arguments: dict[str, Any] = {}
    while (key := _KEY.match(text, at, limit)) is not None:
        word = key.group(1).strip()
        end = text.find(_VALUE_CLOSE, key.end(), limit)
        if end < 0:
            out.error(f"argument {word[:40]!r} is not closed by {_VALUE_CLOSE}")
            return
        if word in arguments:
            out.error(f"argument {word[:40]!r} appears twice")
            return
        arguments[word] = _value(text[key.end() : end], types.get(word))
        at = end + len(_VALUE_CLOSE)
    rest = text[at:limit].strip()
    if rest:
        out.error(f"unexpected {rest[:12]!r} in the call of {name[:40]!r}")
    else:
        out.call(name, arguments)


def _read_parameter(text: str, at: int, limit: int) -> tuple[str, str, int] | str:
    """Return name, value and end of the parameter whose mark ends at `at`, or what is wrong."""
    key = _HEAD.match(text, at, limit)
    if key is None:
        return "'<parameter=' must be followed by a name and '>'"
    following = _PARAMETER_END.search(text, key.end(), limit)
    if following is None or following.group() != _PARAMETER_CLOSE:
        return f"parameter {key.group(1).strip()[:40]!r} is not closed by {_PARAMETER_CLOSE}"
    return key.group(1).strip(), text[key.end() : following.start()], following.end()


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


def read_tags(out: CallCollector, tags: Mapping[str, str]) -> None:
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
