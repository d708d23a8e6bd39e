"""Convert canonical actions to marks, the data of `info["marks"]`."""

from collections.abc import Sequence
from typing import Any

from envkit.marks import Mark, clip
from envkit_actions.action import Action, ActionKind, Button


def marks(
    actions: Sequence[Action], *, cursor: tuple[int, int] = (0, 0), image: int | None = None
) -> list[Mark]:
    """Return the marks of actions, in order.

    Args:
        actions: Actions that were carried out, in screen pixels.
        cursor: Pointer position before them, in pixels. An action without a position happens where
            the previous one left the pointer.
        image: Index, within the episode, of the image that the coordinates refer to; None means the
            last image the model saw.
    """
    made: list[Mark] = []
    for action in actions:
        last = mark(action, cursor=cursor, image=image)
        made.append(last)
        if "path" in last:
            cursor = (last["path"][-1][0], last["path"][-1][1])
        elif "x" in last:
            cursor = (last["x"], last["y"])
    return made


def mark(
    action: Action,
    *,
    cursor: tuple[int, int] = (0, 0),
    note: str | None = None,
    image: int | None = None,
) -> Mark:
    """Return the mark of one action.

    Args:
        action: The action that was carried out, in screen pixels.
        cursor: Pointer position before it, in pixels.
        note: Why it had no effect; None if it had one.
        image: Index, within the episode, of the image that the coordinates refer to; None means the
            last image the model saw.
    """
    action = action.from_cursor(*cursor)
    x, y = cursor if action.x is None or action.y is None else (action.x, action.y)
    made: Mark = {"kind": action.kind.value, **_keys_of(action, x, y)}
    if action.keys and action.kind not in (ActionKind.KEY, ActionKind.HOLD_KEY):
        made["keys"] = list(action.keys)
    if action.button is not Button.LEFT:
        made["button"] = action.button.value
    if action.kind is ActionKind.ZOOM:
        made["kind"] = "box"
    if action.kind is ActionKind.HOLD_KEY:
        made["kind"] = "key"
    if image is not None:
        made["image"] = image
    if note is not None:
        made |= {"ok": False, "note": clip(note, 512)}
    return made


def _keys_of(action: Action, x: int, y: int) -> dict[str, Any]:
    """Return the mark's keys for the action's kind."""
    match action.kind:
        case ActionKind.DRAG:
            return {"path": [[x, y], *map(list, action.path)]}
        case ActionKind.SCROLL:
            return {"x": x, "y": y, "dx": action.dx, "dy": action.dy}
        case ActionKind.TYPE | ActionKind.ANSWER:
            return {"text": clip(action.text)}
        case ActionKind.KEY:
            return {"keys": list(action.keys)}
        case ActionKind.HOLD_KEY:
            return {"keys": list(action.keys), "seconds": max(0.0, action.seconds)}
        case ActionKind.WAIT:
            return {"seconds": max(0.0, action.seconds)}
        case ActionKind.TERMINATE:
            return {"status": action.status.value}
        case ActionKind.ZOOM:
            right, bottom = action.path[0] if action.path else (x, y)
            (left, right), (top, bottom) = sorted((x, right)), sorted((y, bottom))
            return {"box": [left, top, right, bottom], "label": "zoom"}
        case ActionKind.SCREENSHOT | ActionKind.CURSOR_POSITION:
            return {}
        case _:
            return {"x": x, "y": y}
