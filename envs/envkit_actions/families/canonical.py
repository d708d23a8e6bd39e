"""The canonical family, whose replies are canonical JSON."""

import json
from collections.abc import Sequence
from typing import Any, Final

from envkit_actions.call_reply import CallFamily, entries_of
from envkit_actions.canonical_json import read_action, to_json
from envkit_actions.parsed import Reading
from envkit_actions.reply import Call
from envkit_actions.writing import Writing

_PROMPT: Final = """\
You operate a computer. You see its screen as a picture of {width}x{height} pixels: x counts from \
the left, y from the top. Reply with one JSON object, or a list of them to do several things in a \
row. A sentence of thought may stand before it. The objects:
{{"action": "click", "x": 10, "y": 20}}; also double_click, triple_click, move, mouse_down, mouse_up
  "button": "left", "right" or "middle" with click, mouse_down, mouse_up and drag
  "keys": ["ctrl"] holds keys during a click; without x and y it happens where the cursor is
{{"action": "drag", "x": 10, "y": 20, "to": [30, 40]}}, or "path": [[30, 40], [50, 60]]
{{"action": "scroll", "x": 10, "y": 20, "dy": 120}}; dy > 0 shows what is further down, dx right
{{"action": "type", "text": "some text\\n"}}; a line feed is Enter
{{"action": "key", "keys": ["ctrl", "c"]}}; {{"action": "hold_key", "keys": ["a"], "seconds": 1}}
{{"action": "wait", "seconds": 1}}; {{"action": "screenshot"}}
{{"action": "zoom", "x": 10, "y": 20, "to": [110, 120]}} shows that rectangle enlarged
{{"action": "answer", "text": "..."}} ends with an answer
{{"action": "terminate", "status": "success"}} ends: the task is done; "failure": it cannot be done
"""


class CanonicalFamily(CallFamily):
    """Canonical JSON in pixels of the screenshot."""

    prompt = _PROMPT
    tool_names = ("computer",)
    ends_in_text = False

    def _read(self, call: Call, reading: Reading) -> None:
        batch: Any = call.arguments.get("actions")
        for entry in [call.arguments] if batch is None else entries_of(batch):
            reading.add(read_action(entry, reading))

    def _write(self, writing: Writing) -> list[dict[str, Any]]:
        return [to_json(writing.action, writing.space)]

    def _joined(self, parts: Sequence[dict[str, Any]]) -> str:
        """Return an object, or a list if there are several."""
        return json.dumps(parts[0] if len(parts) == 1 else parts, ensure_ascii=False)


CANONICAL: Final = CanonicalFamily("canonical")
