"""The model's actions in words, and the rest of its reply."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from envkit.toolcalls import parse_tool_calls
from envkit.trajectory.trajectory import TurnRecord

MAX_MARKS: Final = 64
"""Marks of one turn that are shown; the rest is counted."""
MAX_TEXT: Final = 4_096
"""Characters of one text of a mark that are shown."""
_JSON: Final = json.JSONDecoder()
_OPENINGS: Final = ('[{"', '{"', "[ {", '{ "', "```json")


def marks_of(info: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the marks of a step's `info` that can be shown, and how many were left out."""
    given = info.get("marks")
    if not isinstance(given, list):
        return [], 0
    entries = cast("list[object]", given)
    known = [cast("dict[str, Any]", one) for one in entries if isinstance(one, dict)]
    shown = [{str(k): _clipped(v) for k, v in one.items()} for one in known[:MAX_MARKS]]
    return shown, len(entries) - len(shown)


def mark_words(mark: Mapping[str, Any]) -> str:
    """Return a mark in words, such as "click 409, 257"."""
    kind = str(mark.get("kind", "action"))
    say = _WORDS.get(kind)
    text = kind.replace("_", " ") + _at(mark, "") if say is None else say(mark)
    button = mark.get("button")
    if isinstance(button, str) and button not in ("", "left"):
        text = f"{button} {text}"
    if mark.get("ok") is False:
        text += f" (failed: {mark['note']})" if mark.get("note") else " (failed)"
    return text


def _at(mark: Mapping[str, Any], word: str) -> str:
    x, y = mark.get("x"), mark.get("y")
    return "" if x is None or y is None else f" {word}{_number(x)}, {_number(y)}"


def _drag(mark: Mapping[str, Any]) -> str:
    path = _items(mark.get("path"))
    return f"drag {_numbers(path[0])} → {_numbers(path[-1])}" if path else "drag"


def _scroll(mark: Mapping[str, Any]) -> str:
    for key, ways in (("dy", ("down", "up")), ("dx", ("right", "left"))):
        amount = mark.get(key)
        if isinstance(amount, int | float) and amount:
            return f"scroll {ways[amount < 0]} {_number(abs(amount))}{_at(mark, 'at ')}"
    return f"scroll{_at(mark, 'at ')}"


_WORDS: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "drag": _drag,
    "scroll": _scroll,
    "type": lambda mark: f"type “{str(mark.get('text', '')).replace(chr(10), '⏎')}”",
    "key": lambda mark: f"press {' + '.join(map(str, _items(mark.get('keys'))))}",
    "wait": lambda mark: f"wait {_number(mark.get('seconds', 1))} s",
    "box": lambda mark: f"{mark.get('label') or 'box'} {_numbers(mark.get('box'))}".strip(),
    "answer": lambda mark: f"answer “{mark.get('text', '')}”",
    "terminate": lambda mark: f"terminate: {mark.get('status') or mark.get('text', '')}",
    "call": lambda mark: str(mark.get("label") or mark.get("text") or "call"),
}


def call_words(call: Mapping[str, Any]) -> str:
    """Return a tool call in words: its name and its arguments."""
    function = call.get("function")
    source = cast("Mapping[str, Any]", function) if isinstance(function, dict) else call
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
    return f"{source.get('name', 'call')}({shown})"[:MAX_TEXT]


def thought_of(turn: TurnRecord, *, has_actions: bool) -> str:
    """Return the reply without its actions, which are shown in words; all of it without any."""
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


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _numbers(value: object) -> str:
    return ", ".join(map(_number, _items(value)))


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _clipped(value: object) -> object:
    return value[:MAX_TEXT] if isinstance(value, str) else value
