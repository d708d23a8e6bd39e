"""Anthropic's computer tool, versions 20250124 and 20251124.

After the computer-use documentation at docs.anthropic.com and anthropics/anthropic-quickstarts,
computer-use-demo/computer_use_demo/tools/computer.py. Coordinates are pixels of the declared
display; a scroll counts clicks of the wheel; `text` of a click holds keys. Keys have X11's names.
As with xdotool, `key` presses chords separated by spaces one after another. A reply without a call
ends the episode.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from envkit.tools import ToolSpec
from envkit_actions.action import Action, ActionKind
from envkit_actions.call_reply import CallFamily
from envkit_actions.families.click_names import CLICKS, click_name, read_move, write_move
from envkit_actions.fields import DIRECTIONS, Fields, Reader, as_region
from envkit_actions.keys import KeyColumn, chord, split_chord
from envkit_actions.malformed import MalformedActionError
from envkit_actions.parsed import Reading
from envkit_actions.reply import Call
from envkit_actions.spaces import CoordinateSpace
from envkit_actions.writing import WHEEL_CLICK, Writing, direction_pixels

_PROMPT: Final = (
    "You operate a computer through the tool `computer`, and get a screenshot after each call. "
    "Look at it before you go on: the last action may not have worked. "
    "When the task is done, reply {done} without a call; when it cannot be done, {fail}; when a "
    "question was asked, reply with the answer alone."
)
_ZOOM: Final = "zoom"
_SPACED_PLUS: Final = re.compile(r"(?<=[^\s+])\s*\+\s*(?=[^\s+])")
_LONGEST_KEYS: Final = 4096


class AnthropicFamily(CallFamily):
    """One version of the tool; only the later one can zoom."""

    prompt = _PROMPT
    tool_names = ("computer",)

    def __init__(self, name: str, *, can_zoom: bool) -> None:
        super().__init__(name)
        self._words = [word for word in _READERS if can_zoom or word != _ZOOM]

    def _read(self, call: Call, reading: Reading) -> None:
        fields = Fields(call.arguments, reading, self.tool_names[0])
        fields.read(fields.word("action", {word: _READERS[word] for word in self._words}))

    def _write(self, writing: Writing) -> list[dict[str, Any]]:
        action = writing.action
        click = click_name(action)
        if click is not None:
            return [_aimed(click, writing)]
        why = "this version of the tool has no such action"
        if action.kind is ActionKind.ZOOM and _ZOOM not in self._words:
            raise writing.refusal(why)
        return writing.by_kind(_WRITERS, why)

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return `computer` with the size of the display."""
        width, height = space.extent
        return (
            ToolSpec(
                name=self.tool_names[0],
                description=(
                    "Mouse, keyboard and screenshots of a computer. "
                    f"The display is {width} pixels wide and {height} pixels high."
                ),
                parameters=_parameters(self._words),
            ),
        )


def _parameters(words: Sequence[str]) -> dict[str, Any]:
    pair = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    properties: dict[str, Any] = {
        "action": {"type": "string", "enum": list(words)},
        "coordinate": {**pair, "description": "[x, y]: where, or the end of a drag."},
        "start_coordinate": {**pair, "description": "[x, y]: the start of left_click_drag."},
        "text": {
            "type": "string",
            "description": "What to type; the keys of key and hold_key, such as ctrl+s, and "
            "for key several in a row, such as Down Down Return; "
            "keys to hold during a click or a scroll.",
        },
        "scroll_direction": {"type": "string", "enum": list(DIRECTIONS)},
        "scroll_amount": {"type": "integer", "description": "Clicks of the wheel."},
        "duration": {"type": "number", "description": "Seconds, for hold_key and wait."},
    }
    if _ZOOM in words:
        properties["region"] = {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 4,
            "maxItems": 4,
            "description": "[x0, y0, x1, y1]: what to enlarge, for zoom.",
        }
    return {"type": "object", "properties": properties, "required": ["action"]}


def _presses(fields: Fields) -> list[Action]:
    """Return the presses of `text`: chords separated by spaces, which may also surround a +."""
    text = fields.text("text")
    parts = _SPACED_PLUS.sub("+", text[:_LONGEST_KEYS]).split() or [text]
    return [Action(kind=ActionKind.KEY, keys=chord(split_chord(part))) for part in parts]


def _held(fields: Fields) -> tuple[str, ...]:
    key = fields.named("text", "key")  # the reference implementation names a click's keys `key`
    return fields.keys(key) if fields.text(key, "") else ()


def _click(fields: Fields) -> Action:
    kind, button = CLICKS[fields.name]
    x, y = fields.optional_pair("coordinate")
    return Action(kind=kind, x=x, y=y, button=button, keys=_held(fields))


def _press(fields: Fields) -> Action:
    is_down = fields.name == "left_mouse_down"
    x, y = fields.optional_pair("coordinate")
    return Action(kind=ActionKind.MOUSE_DOWN if is_down else ActionKind.MOUSE_UP, x=x, y=y)


def _drag(fields: Fields) -> Action:
    x, y = fields.pair("start_coordinate")
    end = fields.pair("coordinate")
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=(end,), keys=_held(fields))


def _scroll(fields: Fields) -> Action:
    x, y = fields.optional_pair("coordinate")
    direction = fields.direction("scroll_direction")
    clicks = fields.amount("scroll_amount")
    if clicks < 0:
        raise MalformedActionError(f"'scroll_amount' must be 0 or more, got {clicks}")
    dx, dy = direction_pixels(direction, clicks * WHEEL_CLICK)
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=dx, dy=dy, keys=_held(fields))


def _hold(fields: Fields) -> Action:
    return Action(
        kind=ActionKind.HOLD_KEY, keys=fields.keys("text"), seconds=fields.seconds("duration")
    )


def _zoom(fields: Fields) -> Action:
    start, end = as_region(fields.get("region"), "region")
    x, y = fields.place(start)
    return Action(kind=ActionKind.ZOOM, x=x, y=y, path=(fields.place(end),))


_READERS: Final[dict[str, Reader]] = {
    "key": _presses,
    "hold_key": _hold,
    "type": lambda fields: Action(kind=ActionKind.TYPE, text=fields.text("text")),
    "mouse_move": read_move,
    **dict.fromkeys(CLICKS, _click),
    "left_click_drag": _drag,
    "left_mouse_down": _press,
    "left_mouse_up": _press,
    "scroll": _scroll,
    "wait": lambda fields: Action(kind=ActionKind.WAIT, seconds=fields.seconds("duration")),
    "screenshot": lambda _fields: Action(kind=ActionKind.SCREENSHOT),
    "cursor_position": lambda _fields: Action(kind=ActionKind.CURSOR_POSITION),
    _ZOOM: _zoom,
}


def _aimed(word: str, writing: Writing) -> dict[str, Any]:
    call: dict[str, Any] = {"action": word}
    if not writing.at_cursor:
        call["coordinate"] = writing.point()
    if writing.action.keys:
        call["text"] = writing.joined_keys(KeyColumn.XDOTOOL)
    return call


def _write_press(writing: Writing) -> list[dict[str, Any]]:
    action = writing.plain()
    before = [] if writing.at_cursor else write_move(writing)
    is_down = action.kind is ActionKind.MOUSE_DOWN
    return [*before, {"action": "left_mouse_down" if is_down else "left_mouse_up"}]


def _write_drag(writing: Writing) -> list[dict[str, Any]]:
    writing.plain(keys=True)
    call = {**_aimed("left_click_drag", writing), "start_coordinate": writing.point()}
    return [{**call, "coordinate": writing.end()}]


def _write_scroll(writing: Writing) -> list[dict[str, Any]]:
    direction, clicks = writing.wheel_clicks()
    call = _aimed("scroll", writing)
    return [{**call, "scroll_direction": direction, "scroll_amount": clicks}]


def _write_hold(writing: Writing) -> list[dict[str, Any]]:
    keys = writing.joined_keys(KeyColumn.XDOTOOL)
    return [{"action": "hold_key", "text": keys, "duration": writing.action.seconds}]


_WRITERS: Final[dict[ActionKind, Callable[[Writing], list[dict[str, Any]]]]] = {
    ActionKind.MOVE: write_move,
    ActionKind.MOUSE_DOWN: _write_press,
    ActionKind.MOUSE_UP: _write_press,
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.TYPE: lambda writing: [{"action": "type", "text": writing.action.text}],
    ActionKind.KEY: lambda writing: [
        {"action": "key", "text": writing.joined_keys(KeyColumn.XDOTOOL)}
    ],
    ActionKind.HOLD_KEY: _write_hold,
    ActionKind.WAIT: lambda writing: [{"action": "wait", "duration": writing.action.seconds}],
    ActionKind.SCREENSHOT: lambda _writing: [{"action": "screenshot"}],
    ActionKind.CURSOR_POSITION: lambda _writing: [{"action": "cursor_position"}],
    ActionKind.ZOOM: lambda writing: [
        {"action": _ZOOM, "region": [*writing.point(), *writing.end()]}
    ],
}

ANTHROPIC_20250124: Final = AnthropicFamily("anthropic-20250124", can_zoom=False)
ANTHROPIC_20251124: Final = AnthropicFamily("anthropic-20251124", can_zoom=True)
