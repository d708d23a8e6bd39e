"""The model's actions as text, and the rest of its reply."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from envkit.marks import MAX_MARKS, MAX_TEXT_BYTES, mark_problems, words
from envkit.toolcalls import parse_tool_calls
from envkit.trajectory.trajectory import TurnRecord

_JSON: Final = json.JSONDecoder()
_OPENINGS: Final = ('[{"', '{"', "[ {", '{ "', "```json")


def marks_of(info: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the marks in recorded info, each with its "words", and the number left out.

    A mark that violates the contract gets only words, so the page draws nothing for it.
    """
    given = info.get("marks")
    if not isinstance(given, list):
        return [], 0
    marks = cast("list[Any]", given)
    return [_said(mark) for mark in marks[:MAX_MARKS]], max(0, len(marks) - MAX_MARKS)


def _said(mark: Any) -> dict[str, Any]:  # noqa: ANN401  # what a file holds
    if any(mark_problems([mark])):
        return {"kind": "unreadable", "words": "unreadable mark"}
    return {**mark, "words": words(mark)}


def call_words(call: Mapping[str, Any]) -> str:
    """Return a tool call as text: name and arguments, or JSON if it has an unknown shape."""
    function = call.get("function")
    source = cast("Mapping[str, Any]", function) if isinstance(function, dict) else call
    if "name" not in source:
        return json.dumps(call, ensure_ascii=False, default=str)[:MAX_TEXT_BYTES]
    given = source.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = {"": given}
    values: Sequence[object] = (
        list(cast("dict[str, object]", given).values()) if isinstance(given, dict) else []
    )
    shown = ", ".join(
        f"“{v}”" if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values
    )
    return f"{source['name']}({shown})"[:MAX_TEXT_BYTES]


def thought_of(turn: TurnRecord, *, has_actions: bool) -> str:
    """Return the reply without its actions, which are shown separately."""
    text = turn.response_text
    if not has_actions:
        return text
    parsed = parse_tool_calls(text)
    if parsed.calls:
        return "\n".join(part for part in (parsed.thinking, parsed.text) if part)
    starts = sorted(at for opening in _OPENINGS if (at := text.find(opening)) >= 0)
    for start in starts:
        begin = text.find("{", start) if text.startswith("```", start) else start
        try:
            _JSON.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        return text[:start].strip()
    return text
