"""Names of clicks in the Anthropic and Qwen tools."""

from typing import Final

from envkit_actions.action import Action, ActionKind, Button

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
