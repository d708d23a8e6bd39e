"""The canonical JSON form of actions: schema, writer and reader.

The keys of an object are `action`, `x`, `y`, `to` or `path`, `button`, `dx`, `dy`, `text`, `keys`,
`seconds`, `status` and `relative`. A list of objects is a batch. Fields equal to the default of
`Action` are omitted when written.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from envkit_actions.action import Action, ActionKind, Button, Status
from envkit_actions.fields import MAX_PATH, MAX_SCROLL, MAX_SECONDS, Fields
from envkit_actions.keys import MAX_KEYS
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import MAX_ACTIONS, Reading
from envkit_actions.spaces import CoordinateSpace, SpaceKind

_FIELDS: Final[Mapping[ActionKind, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    ActionKind.CLICK: ((), ("x", "y", "button", "keys")),
    ActionKind.DOUBLE_CLICK: ((), ("x", "y", "keys")),
    ActionKind.TRIPLE_CLICK: ((), ("x", "y", "keys")),
    ActionKind.MOVE: (("x", "y"), ("relative",)),
    ActionKind.MOUSE_DOWN: ((), ("x", "y", "button")),
    ActionKind.MOUSE_UP: ((), ("x", "y", "button")),
    ActionKind.DRAG: ((), ("x", "y", "to", "path", "button", "keys", "relative")),
    ActionKind.SCROLL: ((), ("x", "y", "dx", "dy", "keys")),
    ActionKind.TYPE: (("text",), ()),
    ActionKind.KEY: (("keys",), ()),
    ActionKind.HOLD_KEY: (("keys", "seconds"), ()),
    ActionKind.WAIT: (("seconds",), ()),
    ActionKind.SCREENSHOT: ((), ()),
    ActionKind.CURSOR_POSITION: ((), ()),
    ActionKind.ZOOM: (("x", "y", "to"), ()),
    ActionKind.TERMINATE: (("status",), ()),
    ActionKind.ANSWER: (("text",), ()),
}
"""The fields of each kind: those it needs, and those it may have."""

_POINT: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "number"},
    "minItems": 2,
    "maxItems": 2,
}


def _action_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "action": {"enum": [kind.value for kind in ActionKind], "description": "What to do."},
            "x": {"type": "number", "description": "From the left. Without x and y: the cursor."},
            "y": {"type": "number", "description": "From the top."},
            "to": {**_POINT, "description": "[x, y]: the end of a drag, a zoom's other corner."},
            "path": {
                "type": "array",
                "items": _POINT,
                "minItems": 1,
                "maxItems": MAX_PATH,
                "description": "All points of a drag after its start, instead of to.",
            },
            "button": {"enum": [button.value for button in Button], "description": "Default left."},
            "dx": _amount("Scroll this many pixels to the right."),
            "dy": _amount("Scroll this many pixels down; one click of a wheel is 120."),
            "text": {"type": "string", "description": "To type (a line feed is Enter) or answer."},
            "keys": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": MAX_KEYS,
                "description": 'Pressed together, such as ["ctrl", "c"], or held during a click.',
            },
            "seconds": {"type": "number", "minimum": 0, "maximum": MAX_SECONDS},
            "status": {"enum": [status.value for status in Status]},
            "relative": {"type": "boolean", "description": "A move or drag from the cursor."},
        },
        "required": ["action"],
        "additionalProperties": False,
        "dependentRequired": {"x": ["y"], "y": ["x"]},
        "allOf": [*map(_rule, ActionKind), _DRAG_RULE, _SCROLL_RULE],
    }


def _amount(description: str) -> dict[str, Any]:
    bounds = {"minimum": -MAX_SCROLL, "maximum": MAX_SCROLL}
    return {"type": "number", **bounds, "description": description}


def _is(kind: ActionKind) -> dict[str, Any]:
    return {"properties": {"action": {"const": kind.value}}, "required": ["action"]}


def _rule(kind: ActionKind) -> dict[str, Any]:
    needed, optional = _FIELDS[kind]
    names = {"enum": ["action", *needed, *optional]}
    return {"if": _is(kind), "then": {"required": list(needed), "propertyNames": names}}


_DRAG_RULE: Final[dict[str, Any]] = {
    "if": _is(ActionKind.DRAG),
    "then": {"oneOf": [{"required": ["to"]}, {"required": ["path"]}]},
}
_SCROLL_RULE: Final[dict[str, Any]] = {
    "if": _is(ActionKind.SCROLL),
    "then": {"anyOf": [{"required": ["dx"]}, {"required": ["dy"]}]},
}
ACTION_SCHEMA: Final[Mapping[str, Any]] = _action_schema()
"""JSON Schema (2020-12) of one action."""
BATCH_SCHEMA: Final[Mapping[str, Any]] = {
    "oneOf": [
        ACTION_SCHEMA,
        {"type": "array", "items": ACTION_SCHEMA, "minItems": 1, "maxItems": MAX_ACTIONS},
    ]
}
"""JSON Schema of a reply: one action or a list of them."""


def to_json(action: Action, space: CoordinateSpace | None = None) -> dict[str, Any]:
    """Return an action as plain JSON data.

    Args:
        action: Any action.
        space: Coordinate space; None means screen pixels.
    """
    written: dict[str, Any] = {}
    if action.x is not None and action.y is not None:
        written["x"], written["y"] = _place(action, (action.x, action.y), space)
    points = [_place(action, point, space) for point in action.path]
    if points:
        written |= {"to": points[0]} if len(points) == 1 else {"path": points}
    written |= _details(action)
    takes = {key for keys in _FIELDS[action.kind] for key in keys}
    kept = {key: value for key, value in written.items() if key in takes}
    return {"action": action.kind.value, **kept}


def _details(action: Action) -> dict[str, Any]:
    """Return the fields without coordinates that the kind needs or that differ from the default."""
    needed, _ = _FIELDS[action.kind]
    scrolls_nowhere = action.kind is ActionKind.SCROLL and not action.dx
    kept: dict[str, tuple[Any, bool]] = {
        "button": (action.button.value, action.button is not Button.LEFT),
        "dx": (action.dx, action.dx != 0),
        "dy": (action.dy, action.dy != 0 or scrolls_nowhere),
        "text": (action.text, action.text != "" or "text" in needed),
        "keys": (list(action.keys), bool(action.keys)),
        "seconds": (action.seconds, action.seconds != 0 or "seconds" in needed),
        "status": (action.status.value, action.kind is ActionKind.TERMINATE),
        "relative": (True, action.is_relative),
    }
    return {key: value for key, (value, is_kept) in kept.items() if is_kept}


def from_json(value: object, space: CoordinateSpace | None = None) -> Action:
    """Return the action of an object that follows `ACTION_SCHEMA`.

    Args:
        value: JSON data.
        space: Coordinate space; None means pixels of a screen of any size.

    Raises:
        MalformedActionError: It does not follow the schema.
    """
    return read_action(value, Reading(_ANY_SCREEN if space is None else space))


_ANY_SCREEN: Final = CoordinateSpace.of(SpaceKind.SCREEN, (1 << 20, 1 << 20))
_KINDS: Final = {kind.value: kind for kind in ActionKind}
_STATUSES: Final = {status.value: status for status in Status}


def read_action(value: object, reading: Reading) -> Action:
    """Return an action with its points mapped through the reading's space.

    Raises:
        MalformedActionError: It does not follow the schema.
    """
    if not isinstance(value, dict):
        raise MalformedActionError(f"an action must be an object, got {quoted(value)}")
    fields = Fields(cast(dict[str, Any], value), reading, "an action")
    kind = fields.word("action", _KINDS)
    needed, optional = _FIELDS[kind]
    for key in needed:
        fields.get(key)
    takes = {*needed, *optional}
    fields.is_relative = "relative" in takes and fields.flag("relative", default=False)
    x, y = fields.optional_point() if "x" in takes else (None, None)
    action = Action(
        kind=kind,
        x=x,
        y=y,
        path=_path(kind, fields),
        button=fields.button() if "button" in takes else Button.LEFT,
        dx=fields.amount("dx", 0) if "dx" in takes else 0,
        dy=fields.amount("dy", 0 if fields.has("dx") else None) if "dy" in takes else 0,
        text=fields.text("text") if "text" in takes else "",
        keys=fields.keys("keys") if "keys" in takes and fields.has("keys") else (),
        seconds=fields.seconds("seconds") if "seconds" in takes else 0.0,
        status=fields.choice("status", _STATUSES) if "status" in takes else Status.SUCCESS,
        is_relative=fields.is_relative,
    )
    fields.check_all_known()
    return action


def _path(kind: ActionKind, fields: Fields) -> tuple[tuple[int, int], ...]:
    if kind is ActionKind.ZOOM:
        return (fields.pair("to"),)
    if kind is not ActionKind.DRAG:
        return ()
    if fields.has("to") == fields.has("path"):
        raise MalformedActionError("drag needs either 'to' or 'path'")
    return (fields.pair("to"),) if fields.has("to") else fields.path("path")


def _place(
    action: Action, point: tuple[int, int], space: CoordinateSpace | None
) -> list[int | float]:
    if space is None:
        return list(point)
    convert = space.offset_from_screen if action.is_relative else space.from_screen
    return list(convert(*point))
