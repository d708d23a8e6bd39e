"""Qwen2.5-VL and Qwen3-VL: the `computer_use` tool.

After QwenLM/Qwen3-VL, cookbooks/computer_use.ipynb and cookbooks/utils/agent_function_call.py. A
drag starts where the cursor is; positive `pixels` scroll up, and to the right. Qwen2.5-VL counts
pixels of the resized image. Qwen3-VL's prompt declares a 1000x1000 screen.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from envkit.smart_resize import SmartResize
from envkit.tools import ToolSpec
from envkit_actions import spaces
from envkit_actions.action import Action, ActionKind, Status
from envkit_actions.call_reply import CallFamily
from envkit_actions.families.click_names import CLICKS, click_name, read_move, write_move
from envkit_actions.fields import Fields
from envkit_actions.keys import KeyColumn
from envkit_actions.parsed import Reading
from envkit_actions.reply import Call
from envkit_actions.writing import Writing

_PROMPT: Final = (
    "You operate a computer through the tool computer_use and see its screen after every call. "
    "The screen is {width}x{height}. In each reply say in a line beginning with 'Action:' what you "
    "do next, then make one call. When the task is done, call terminate with status success; when "
    "it cannot be done, with status failure."
)
_OLD_ACTIONS: Final = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "scroll",
    "wait",
    "terminate",
)
_NEW_ACTIONS: Final = (*_OLD_ACTIONS, "triple_click", "hscroll", "answer")


class QwenFamily(CallFamily):
    """One generation; the two differ in coordinates and in three actions."""

    prompt = _PROMPT
    tool_names = ("computer_use", "computer")
    ends_in_text = False

    def __init__(
        self, name: str, kind: spaces.SpaceKind, resize: SmartResize, words: Sequence[str]
    ) -> None:
        super().__init__(name, counts=kind, resize=resize)
        self._words = tuple(words)

    def _read(self, call: Call, reading: Reading) -> None:
        fields = Fields(call.arguments, reading, self.tool_names[0])
        fields.read(fields.word("action", {word: _READERS[word] for word in self._words}))

    def _write(self, writing: Writing) -> list[dict[str, Any]]:
        click = click_name(writing.action)
        why = f"its actions are {', '.join(self._words)}"
        if click is not None:
            writing.plain(button=True)
            calls = [_placed({"action": click}, writing)]
        else:
            calls = writing.by_kind(_WRITERS, why)
        if calls[-1]["action"] not in self._words:
            raise writing.refusal(why)
        return calls

    def tools(self, space: spaces.CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return `computer_use` for the size that the model counts in."""
        extent = space.extent
        return (
            ToolSpec(
                name=self.tool_names[0],
                description=(
                    "Use the mouse and the keyboard of a computer. The screen is "
                    f"{extent.width}x{extent.height}; aim at the middle of what you click."
                ),
                parameters=_parameters(self._words),
            ),
        )


def _parameters(words: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "action": {
                "type": "string",
                "enum": list(words),
                "description": (
                    "left_click_drag drags from the cursor to coordinate: move there first."
                ),
            },
            "keys": {
                "type": "array",
                "items": {"type": "string"},
                "description": "For key: the keys to press together, such as ['ctrl', 'c'].",
            },
            "text": {"type": "string", "description": "For type, and for answer if there is one."},
            "coordinate": {
                "type": "array",
                "items": {"type": "number"},
                "description": "[x, y] from the left and the top, for the actions of the mouse.",
            },
            "pixels": {
                "type": "number",
                "description": "For scroll: how far; positive is up, negative is down.",
            },
            "time": {"type": "number", "description": "For wait: seconds."},
            "status": {
                "type": "string",
                "enum": [status.value for status in Status],
                "description": "For terminate.",
            },
        },
        "required": ["action"],
    }


def _click(fields: Fields) -> Action:
    kind, button = CLICKS[fields.name]
    x, y = fields.optional_pair("coordinate")
    return Action(kind=kind, x=x, y=y, button=button)


def _scroll(fields: Fields) -> Action:
    x, y = fields.optional_pair("coordinate")
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dy=-fields.amount("pixels"))


def _scroll_sideways(fields: Fields) -> Action:
    x, y = fields.optional_pair("coordinate")
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=fields.amount("pixels"))


def _terminate(fields: Fields) -> Action:
    statuses = {status.value: status for status in Status}
    return Action(kind=ActionKind.TERMINATE, status=fields.choice("status", statuses))


_READERS: Final[dict[str, Callable[[Fields], Action]]] = {
    **dict.fromkeys(CLICKS, _click),
    "mouse_move": read_move,
    "left_click_drag": lambda fields: Action(
        kind=ActionKind.DRAG, path=(fields.pair("coordinate"),)
    ),
    "scroll": _scroll,
    "hscroll": _scroll_sideways,
    "key": lambda fields: Action(kind=ActionKind.KEY, keys=fields.keys("keys")),
    "type": lambda fields: Action(kind=ActionKind.TYPE, text=fields.text("text")),
    "wait": lambda fields: Action(kind=ActionKind.WAIT, seconds=fields.seconds("time")),
    "terminate": _terminate,
    "answer": lambda fields: Action(kind=ActionKind.ANSWER, text=fields.text("text")),
}


def _placed(call: dict[str, Any], writing: Writing) -> dict[str, Any]:
    return call if writing.at_cursor else {**call, "coordinate": writing.point()}


def _write_drag(writing: Writing) -> list[dict[str, Any]]:
    writing.plain()
    start = [] if writing.at_cursor else write_move(writing)
    return [*start, {"action": "left_click_drag", "coordinate": writing.end()}]


def _write_scroll(writing: Writing) -> list[dict[str, Any]]:
    action = writing.plain()
    writing.one_axis()
    if action.dx:
        return [_placed({"action": "hscroll", "pixels": action.dx}, writing)]
    return [_placed({"action": "scroll", "pixels": -action.dy}, writing)]


_WRITERS: Final[dict[ActionKind, Callable[[Writing], list[dict[str, Any]]]]] = {
    ActionKind.MOVE: write_move,
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.KEY: lambda writing: [{"action": "key", "keys": writing.keys(KeyColumn.PYAUTOGUI)}],
    ActionKind.TYPE: lambda writing: [{"action": "type", "text": writing.action.text}],
    ActionKind.WAIT: lambda writing: [{"action": "wait", "time": writing.action.seconds}],
    ActionKind.TERMINATE: lambda writing: [
        {"action": "terminate", "status": writing.action.status.value}
    ],
    ActionKind.ANSWER: lambda writing: [{"action": "answer", "text": writing.action.text}],
}

QWEN25_VL: Final = QwenFamily(
    "qwen2.5-vl", spaces.SpaceKind.RESIZED, spaces.QWEN25_VL_RESIZE, _OLD_ACTIONS
)
QWEN3_VL: Final = QwenFamily(
    "qwen3-vl", spaces.SpaceKind.NORMALISED, spaces.QWEN3_VL_RESIZE, _NEW_ACTIONS
)
