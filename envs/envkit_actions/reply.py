r"""Split a reply into hidden thinking, text, and the JSON of its actions.

Limits keep parsing linear and fast for hostile replies: the body may have `MAX_BODY` characters,
and JSON at most `MAX_MARKS` values and escapes.

JSON is read strictly first. Only failures go to `envkit.toolcalls`, whose LaTeX repair would
corrupt the correctly written text "a\text".
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast

from envkit.reply import Reply
from envkit.toolcalls import ToolCallFormat, parse_tool_calls
from envkit.toolcalls.tolerant_json import MalformedJson, decode_prefix, scrub, skip_space
from envkit.tools import ToolSpec
from envkit_actions.malformed import MalformedActionError
from envkit_actions.parsed import MAX_ACTIONS

MAX_BODY: Final = 32_768
"""Longest reply after the thinking, in characters."""
MAX_MARKS: Final = 1_500
"""Maximum opening brackets, commas and colons in JSON, and maximum backslashes."""
CALL_OPEN: Final = "<tool_call>"
CALL_CLOSE: Final = "</tool_call>"

_MARK: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([\[{,:<])', re.DOTALL)
_START: Final = re.compile(r"""\{(?=\s*(?:["'}]|\w{1,40}\s*:))|\[(?=\s*[{\]])""")
_BETWEEN: Final = re.compile(r"[\s,;]*")


class Body(NamedTuple):
    """A reply without its hidden thinking."""

    text: str
    thinking: str


def split_reply(reply: Reply | str, action_marks: Sequence[str]) -> Body:
    """Return the reply's body and its thoughts.

    Args:
        reply: Any model output; a string is a whole reply.
        action_marks: How replies of the family begin; marks of thoughts in such a reply are text.

    Raises:
        MalformedActionError: The reply was cut or ends inside its thoughts, or its body is too
            long.
    """
    said = Reply(text=reply) if isinstance(reply, str) else reply
    is_action = not said.opened and said.text[:256].lstrip().startswith((*action_marks, "```"))
    if said.is_cut or (said.problem and not is_action):
        raise MalformedActionError(said.problem)
    text, thinking = (said.text, "") if is_action else (said.answer, said.thinking)
    if len(text) > MAX_BODY:
        raise MalformedActionError(
            f"the reply has {len(text)} characters; write at most {MAX_BODY}, thinking not counted"
        )
    return Body(scrub(text), scrub(thinking[:MAX_BODY]))


def is_prose(text: str) -> bool:
    """Return whether a text shows no attempt at an action."""
    return "{" not in text and "<tool" not in text


class Payloads(NamedTuple):
    """The JSON of a reply."""

    values: list[Any]
    before: str
    """The text before it; the whole text if there is none."""
    problem: str | None = None
    """Why the rest after the values cannot be read; None if nothing follows."""


def find_payloads(body: str, tools: Sequence[ToolSpec] = ()) -> Payloads:
    """Return the tool calls of a body, or the JSON objects and lists in it."""
    called = body.find(CALL_OPEN)
    start = _START.search(body)
    if called >= 0 and (start is None or called < start.start()):
        return _called(body[called:], body[:called].strip(), tools)
    if start is None:
        return Payloads([], body.strip())
    before = body[: start.start()].removesuffix("\n").removesuffix("```json").strip("` \n")
    if not _is_affordable(body, start.start()):
        return Payloads([], before, "the JSON is too long: write fewer actions and shorter text")
    values, problem = _values(body, start.start())
    return Payloads(values, before, problem)


def _values(body: str, at: int) -> tuple[list[Any], str | None]:
    """Return the consecutive values from `at` on."""
    values: list[Any] = []
    while len(values) <= MAX_ACTIONS and _START.match(body, at):
        try:
            value, at = _decode(body, at)
        except ValueError:
            try:
                value, at = decode_prefix(body, at)
            except MalformedJson as error:
                return values, f"the JSON cannot be read: {error} of the reply"
        values.append(value)
        at = _end(_BETWEEN.match(body, at))
    return values, None


def _called(body: str, before: str, tools: Sequence[ToolSpec]) -> Payloads:
    """Read a body that begins with a tool call."""
    if body.count(CALL_OPEN) > MAX_ACTIONS:
        return Payloads([], before, f"one reply may hold at most {MAX_ACTIONS} tool calls")
    if not _is_affordable(body, 0):
        return Payloads([], before, "the tool call is too long: write shorter arguments")
    values = _strict_calls(body)
    if values is not None:
        return Payloads(values, before)
    reply = parse_tool_calls(body, ToolCallFormat.HERMES, tools=tools)
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.calls]
    # The order of calls and errors is lost there, so a reply with any error counts as broken.
    return Payloads([] if reply.errors else calls, before, next(iter(reply.errors), None))


def _strict_calls(body: str) -> list[Any] | None:
    """Return the calls if all are valid JSON in closed blocks, else None."""
    values: list[Any] = []
    at = 0
    while (at := body.find(CALL_OPEN, at)) >= 0:
        try:
            value, end = _decode(body, skip_space(body, at + len(CALL_OPEN)))
        except ValueError:
            return None
        at = skip_space(body, end)
        if not body.startswith(CALL_CLOSE, at):
            return None
        values.append(value)
    return values


def _is_affordable(body: str, start: int) -> bool:
    if body.count("\\", start) > MAX_MARKS:
        return False
    marks = 0
    for found in _MARK.finditer(body, start):
        marks += found.group(1) is not None
        if marks > MAX_MARKS:
            return False
    return True


def _decode(body: str, at: int) -> tuple[Any, int]:
    """Return a JSON value and the position after it.

    Raises:
        ValueError: It is not valid JSON, repeats a key, nests too deeply, or has NaN or infinity.
    """
    try:
        return _DECODER.raw_decode(body, at)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key is repeated")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number out of range")
    return value


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite, strict=False
)


def _end(found: re.Match[str] | None) -> int:
    assert found is not None  # the pattern matches the empty string
    return found.end()


_WRAPPERS: Final = ("function", "functionCall", "function_call")
_ARGUMENTS: Final = ("arguments", "parameters", "input", "args")
_TEXT_PART: Final = frozenset(("text", "thought", "thoughtSignature", "thought_signature"))


class Call(NamedTuple):
    """One entry of a reply's JSON."""

    name: str | None
    """The tool's name; None for bare arguments."""
    arguments: dict[str, Any]


def calls_of(value: object) -> list[Call]:
    """Return the calls in one JSON value.

    A list stands for its entries. Accepted are the chat-completions form, Hermes' `arguments`,
    Llama's `parameters`, Anthropic's `input` and Gemini's `args`. Blocks and parts of text are
    ignored.

    Raises:
        MalformedActionError: It is neither an object nor a list of objects.
    """
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        value = fields.get("parts", fields)  # of Gemini's content
    if isinstance(value, list):
        return [call for entry in cast(list[object], value) for call in _call_of(entry)]
    return _call_of(value)


def _call_of(value: object) -> list[Call]:
    if not isinstance(value, dict):
        raise MalformedActionError("an action must be a JSON object, such as one with 'action'")
    fields = cast(dict[str, Any], value)
    given = {key for key, field in fields.items() if field is not None}  # clients dump all fields
    if fields.get("type") in ("text", "thinking", "reasoning", "message") or (
        "text" in given and given <= _TEXT_PART
    ):
        return []
    inner: Any = next((fields[key] for key in _WRAPPERS if key in given), None)
    if isinstance(inner, dict):
        fields = cast(dict[str, Any], inner)
    name: Any = fields.get("name")
    form = next((key for key in _ARGUMENTS if key in fields), None)
    if not isinstance(name, str) or form is None:
        return [Call(None, fields)]
    return [Call(name, _arguments(fields[form]))]


def _arguments(value: object) -> dict[str, Any]:
    if isinstance(value, str):  # JSON inside a JSON string, as in the chat-completions form
        try:
            value, _ = _decode(value, skip_space(value, 0))
        except ValueError:
            raise MalformedActionError("the call's arguments are a string, not JSON") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedActionError("the call's arguments must be an object")
    return cast(dict[str, Any], value)
