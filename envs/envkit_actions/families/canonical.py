"""The canonical family, whose replies are canonical JSON."""

import json
from collections.abc import Sequence
from typing import Any, Final

from envkit.reply import Reply
from envkit.tools import ToolSpec
from envkit_actions.action import Action
from envkit_actions.call_reply import check_countable, entries_of, parse_calls
from envkit_actions.canonical_json import read_action, to_json
from envkit_actions.family import ActionFamily
from envkit_actions.parsed import ParsedActions, Reading
from envkit_actions.reply import Call
from envkit_actions.spaces import CoordinateSpace

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


class CanonicalFamily(ActionFamily):
    """Canonical JSON in pixels of the screenshot."""

    def parse(self, reply: Reply | str, space: CoordinateSpace) -> ParsedActions:
        """Read the first JSON of the reply and any that follows directly."""
        return parse_calls(reply, space, _read, tool_names=("computer",))

    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return an object, or a list if there are several.

        Raises:
            InexpressibleActionError: There are no actions, or too many.
        """
        check_countable(self.name, actions)
        written = [to_json(action, space) for action in actions]
        return json.dumps(written[0] if len(written) == 1 else written, ensure_ascii=False)

    def system_prompt(self, space: CoordinateSpace) -> str:
        """Return the action list with its JSON."""
        extent = space.extent
        return _PROMPT.format(width=extent.width, height=extent.height)

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return no tools: the reply itself is the action."""
        return ()


def _read(call: Call, reading: Reading) -> None:
    batch: Any = call.arguments.get("actions")
    if batch is None:
        reading.add(read_action(call.arguments, reading))
        return
    for entry in entries_of(batch):
        reading.add(read_action(entry, reading))


CANONICAL: Final = CanonicalFamily("canonical")
