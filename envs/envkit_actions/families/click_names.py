"""Names of clicks in the Anthropic and Qwen tools, and the move that both have."""

from typing import Any, Final

from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.fields import Fields
from envkit_actions.writing import Writing

CLICKS: Final[dict[str, tuple[ActionKind, Button]]] = {
    "left_click": (ActionKind.CLICK, Button.LEFT),
    "right_click": (ActionKind.CLICK, Button.RIGHT),
    "middle_click": (ActionKind.CLICK, Button.MIDDLE),
    "double_click": (ActionKind.DOUBLE_CLICK, Button.LEFT),
    "triple_click": (ActionKind.TRIPLE_CLICK, Button.LEFT),
}
_NAMES: Final = {click: name for name, click in CLICKS.items()}


def click_name(action: Action) -> str | None:
    """Return the tools' name of a click; None if they have none."""
    return _NAMES.get((action.kind, action.button))


def read_move(fields: Fields) -> Action:
    """Read `mouse_move`."""
    x, y = fields.pair("coordinate")
    return Action(kind=ActionKind.MOVE, x=x, y=y)


def write_move(writing: Writing) -> list[dict[str, Any]]:
    """Write `mouse_move`."""
    return [{"action": "mouse_move", "coordinate": writing.point()}]
