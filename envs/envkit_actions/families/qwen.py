"""Qwen2.5-VL and Qwen3-VL: the `computer_use` tool.

After QwenLM/Qwen3-VL, cookbooks/computer_use.ipynb and cookbooks/utils/agent_function_call.py. A
drag starts where the cursor is; positive `pixels` scroll up, and to the right. Qwen2.5-VL counts
pixels of the resized image. Qwen3-VL's prompt declares a 1000x1000 screen.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from envkit.reply import Reply
from envkit.smart_resize import SmartResize
from envkit.tools import ToolSpec
from envkit_actions.action import Action, ActionKind, Status
from envkit_actions.call_reply import check_countable, parse_calls, write_calls
from envkit_actions.families.click_names import CLICKS, click_name
from envkit_actions.family import ActionFamily
from envkit_actions.fields import Fields
from envkit_actions.keys import KeyColumn
from envkit_actions.parsed import ParsedActions, Reading
from envkit_actions.reply import Call
from envkit_actions.spaces import (
    QWEN3_VL_RESIZE,
    QWEN25_VL_RESIZE,
    CoordinateSpace,
    SpaceKind,
)
from envkit_actions.writing import Writing

TOOL_NAME: Final = "computer_use"

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


class QwenFamily(ActionFamily):
    """One generation; the two differ in coordinates and in three actions."""

    def __init__(
        self, name: str, kind: SpaceKind, resize: SmartResize, words: Sequence[str]
    ) -> None:
        super().__init__(name, counts=kind, resize=resize)
        self._words = tuple(words)

    def parse(self, reply: Reply | str, space: CoordinateSpace) -> ParsedActions:
        """Read the tool calls; an action that the generation does not offer is a problem."""
        return parse_calls(
            reply, space, self._read, tool_names=(TOOL_NAME, "computer"), tools=self.tools(space)
        )

    def _read(self, call: Call, reading: Reading) -> None:
        fields = Fields(call.arguments, reading, TOOL_NAME)
        fields.read(fields.word("action", {word: _READERS[word] for word in self._words}))

    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return one tool call per action, after a move if the action starts elsewhere.

        Raises:
            InexpressibleActionError: The generation cannot express an action.
        """
        check_countable(self.name, actions)
        calls = [call for action in actions for call in self._calls(action, space)]
        return write_calls((TOOL_NAME, call) for call in calls)

    def _calls(self, action: Action, space: CoordinateSpace) -> list[dict[str, Any]]:
        writing = Writing(self.name, action, space)
        click = click_name(action)
        if click is not None:
            writing.plain(button=True)
            calls = [_placed({"action": click}, writing)]
        elif action.kind in _WRITERS:
            calls = _WRITERS[action.kind](writing)
        else:
            raise writing.refusal(f"its actions are {', '.join(self._words)}")
        if calls[-1]["action"] not in self._words:
            raise writing.refusal(f"its actions are {', '.join(self._words)}")
        return calls

    def system_prompt(self, space: CoordinateSpace) -> str:
        """Return instructions; `tools` describes the tool's arguments."""
        extent = space.extent
        return (
            "You operate a computer through the tool computer_use and see its screen after every "
            f"call. The screen is {extent.width}x{extent.height}. In each reply say in a line "
            "beginning with 'Action:' what you do next, then make one call. When the task is done, "
            "call terminate with status success; when it cannot be done, with status failure."
        )

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return `computer_use` for the size that the model counts in."""
        extent = space.extent
        return (
            ToolSpec(
                name=TOOL_NAME,
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


def _move(fields: Fields) -> Action:
    x, y = fields.pair("coordinate")
    return Action(kind=ActionKind.MOVE, x=x, y=y)


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
    "mouse_move": _move,
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


def _write_move(writing: Writing) -> list[dict[str, Any]]:
    return [{"action": "mouse_move", "coordinate": writing.point()}]


def _write_drag(writing: Writing) -> list[dict[str, Any]]:
    writing.plain()
    start = [] if writing.at_cursor else _write_move(writing)
    return [*start, {"action": "left_click_drag", "coordinate": writing.end()}]


def _write_scroll(writing: Writing) -> list[dict[str, Any]]:
    action = writing.plain()
    writing.one_axis()
    if action.dx:
        return [_placed({"action": "hscroll", "pixels": action.dx}, writing)]
    return [_placed({"action": "scroll", "pixels": -action.dy}, writing)]


def _write_key(writing: Writing) -> list[dict[str, Any]]:
    return [{"action": "key", "keys": writing.keys(KeyColumn.PYAUTOGUI)}]


_WRITERS: Final[dict[ActionKind, Callable[[Writing], list[dict[str, Any]]]]] = {
    ActionKind.MOVE: _write_move,
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.KEY: _write_key,
    ActionKind.TYPE: lambda writing: [{"action": "type", "text": writing.action.text}],
    ActionKind.WAIT: lambda writing: [{"action": "wait", "time": writing.action.seconds}],
    ActionKind.TERMINATE: lambda writing: [
        {"action": "terminate", "status": writing.action.status.value}
    ],
    ActionKind.ANSWER: lambda writing: [{"action": "answer", "text": writing.action.text}],
}

QWEN25_VL: Final = QwenFamily("qwen2.5-vl", SpaceKind.RESIZED, QWEN25_VL_RESIZE, _OLD_ACTIONS)
QWEN3_VL: Final = QwenFamily("qwen3-vl", SpaceKind.NORMALISED, QWEN3_VL_RESIZE, _NEW_ACTIONS)
