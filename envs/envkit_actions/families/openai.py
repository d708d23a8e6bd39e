"""OpenAI's computer tool: single actions and the later batches, `actions[]`.

After openai/openai-python, src/openai/types/responses/computer_action.py, and
openai/openai-cua-sample-app, whose `wait` lasts one second. Coordinates are pixels of the
screenshot; `scroll_y` counts pixels, positive down. A reply without an action ends the episode.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from envkit.tools import ToolSpec
from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.call_reply import CallFamily, entries_of
from envkit_actions.fields import Fields
from envkit_actions.keys import KeyColumn
from envkit_actions.malformed import MalformedActionError
from envkit_actions.parsed import Reading
from envkit_actions.reply import Call
from envkit_actions.spaces import CoordinateSpace
from envkit_actions.writing import Place, Writing

_PROMPT: Final = (
    "You operate a computer through the tool `computer`. After each call you get a screenshot. "
    "Put several actions in one call only where you need not look in between. "
    "When the task is done, reply {done} without a call; when it cannot be done, {fail}; when a "
    "question was asked, reply with the answer alone."
)
WAIT_SECONDS: Final = 1.0
"""How long a `wait` lasts."""

_BUTTONS: Final = {"left": Button.LEFT, "right": Button.RIGHT, "wheel": Button.MIDDLE}
_BUTTON_NAMES: Final = {button: name for name, button in _BUTTONS.items()}
_HISTORY: Final = {"back": ("alt", "left"), "forward": ("alt", "right")}
"""Mouse buttons without a canonical name, mapped to the browser keys that do the same."""


class OpenAIFamily(CallFamily):
    """The computer tool of the Responses API."""

    prompt = _PROMPT
    tool_names = ("computer", "computer_use_preview")

    wait_seconds = WAIT_SECONDS

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return `computer` with the size of the screenshot."""
        width, height = space.extent
        return (
            ToolSpec(
                name=self.tool_names[0],
                description=f"Act on a computer whose screen has {width}x{height} pixels.",
                parameters=_PARAMETERS,
            ),
        )

    def _read(self, call: Call, reading: Reading) -> None:
        batch: Any = call.arguments.get("actions")
        single: Any = call.arguments.get("action")
        for entry in [single or call.arguments] if batch is None else entries_of(batch):
            if not isinstance(entry, dict):
                raise MalformedActionError("an action must be an object with 'type'")
            fields = Fields(cast(dict[str, Any], entry), reading, "an action")
            fields.read(fields.word("type", _READERS))

    def _write(self, writing: Writing) -> list[dict[str, Any]]:
        return [writing.by_kind(_WRITERS, f"its actions are {', '.join(_READERS)}")]

    def _joined(self, parts: Sequence[dict[str, Any]]) -> str:
        """Return one call with all actions."""
        return super()._joined([{"actions": parts}])


def _held(fields: Fields) -> tuple[str, ...]:
    return fields.keys("keys") if fields.has("keys") and fields.get("keys") else ()


def _click(fields: Fields) -> Action:
    button = fields.choice("button", {**_BUTTONS, "middle": Button.MIDDLE, **_HISTORY}, Button.LEFT)
    x, y = fields.point()
    held = _held(fields)
    if not isinstance(button, Button):
        return Action(kind=ActionKind.KEY, keys=button)
    return Action(kind=ActionKind.CLICK, x=x, y=y, button=button, keys=held)


def _double_click(fields: Fields) -> Action:
    x, y = fields.point()
    fields.choice("button", {"left": Button.LEFT}, Button.LEFT)
    return Action(kind=ActionKind.DOUBLE_CLICK, x=x, y=y, keys=_held(fields))


def _move(fields: Fields) -> Action:
    x, y = fields.point()
    _held(fields)  # keys that are held during a mere move change nothing
    return Action(kind=ActionKind.MOVE, x=x, y=y)


def _drag(fields: Fields) -> Action:
    (x, y), *path = fields.path("path")
    if not path:
        raise MalformedActionError("'path' must have a start and at least one point more")
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=tuple(path), keys=_held(fields))


def _scroll(fields: Fields) -> Action:
    x, y = fields.optional_point()
    across, down = fields.named("scroll_x", "scrollX"), fields.named("scroll_y", "scrollY")
    dx, dy = fields.amount(across, 0), fields.amount(down, 0 if fields.has(across) else None)
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=dx, dy=dy, keys=_held(fields))


_READERS: Final[dict[str, Callable[[Fields], Action]]] = {
    "click": _click,
    "double_click": _double_click,
    "drag": _drag,
    "keypress": lambda fields: Action(kind=ActionKind.KEY, keys=fields.keys("keys")),
    "move": _move,
    "screenshot": lambda _fields: Action(kind=ActionKind.SCREENSHOT),
    "scroll": _scroll,
    "type": lambda fields: Action(kind=ActionKind.TYPE, text=fields.text("text")),
    "wait": lambda _fields: Action(kind=ActionKind.WAIT, seconds=WAIT_SECONDS),
}
_POINT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
}
_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "actions": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "type": {"type": "string", "enum": list(_READERS)},
                    "x": {"type": "integer", "description": "Pixels from the left."},
                    "y": {"type": "integer", "description": "Pixels from the top."},
                    "button": {"type": "string", "enum": [*_BUTTONS, *_HISTORY]},
                    "path": {"type": "array", "items": _POINT, "description": "For drag."},
                    "keys": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "For keypress, such as CTRL and C; else keys to hold.",
                    },
                    "scroll_x": {"type": "integer", "description": "Pixels to the right."},
                    "scroll_y": {"type": "integer", "description": "Pixels down."},
                    "text": {"type": "string", "description": "For type."},
                },
                "required": ["type"],
            },
        }
    },
    "required": ["actions"],
}


def _xy(place: Place) -> dict[str, Any]:
    return {"x": place[0], "y": place[1]}


def _aimed(word: str, writing: Writing) -> dict[str, Any]:
    written = {"type": word, **_xy(writing.point())}
    return {**written, "keys": writing.keys(KeyColumn.OPENAI)} if writing.action.keys else written


def _write_click(writing: Writing) -> dict[str, Any]:
    return {**_aimed("click", writing), "button": _BUTTON_NAMES[writing.action.button]}


def _write_double(writing: Writing) -> dict[str, Any]:
    writing.plain(keys=True)
    return _aimed("double_click", writing)


def _write_drag(writing: Writing) -> dict[str, Any]:
    action = writing.plain(keys=True)
    path = [_xy(place) for place in (writing.point(), *writing.path())]
    written: dict[str, Any] = {"type": "drag", "path": path}
    return {**written, "keys": writing.keys(KeyColumn.OPENAI)} if action.keys else written


def _write_scroll(writing: Writing) -> dict[str, Any]:
    action = writing.action
    return {**_aimed("scroll", writing), "scroll_x": action.dx, "scroll_y": action.dy}


def _write_wait(writing: Writing) -> dict[str, Any]:
    writing.seconds(WAIT_SECONDS)
    return {"type": "wait"}


_WRITERS: Final[dict[ActionKind, Callable[[Writing], dict[str, Any]]]] = {
    ActionKind.CLICK: _write_click,
    ActionKind.DOUBLE_CLICK: _write_double,
    ActionKind.DRAG: _write_drag,
    ActionKind.MOVE: lambda writing: {"type": "move", **_xy(writing.point())},
    ActionKind.SCROLL: _write_scroll,
    ActionKind.TYPE: lambda writing: {"type": "type", "text": writing.action.text},
    ActionKind.KEY: lambda writing: {"type": "keypress", "keys": writing.keys(KeyColumn.OPENAI)},
    ActionKind.WAIT: _write_wait,
    ActionKind.SCREENSHOT: lambda _writing: {"type": "screenshot"},
}

OPENAI: Final = OpenAIFamily("openai")
