"""Read pyautogui calls into actions.

After asweigart/pyautogui, pyautogui/__init__.py, for the parameters; `module.name` may be written
without the module. Positive clicks scroll up, and to the right. Nothing is executed: see
`python_calls`.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.fields import Fields, as_pair
from envkit_actions.held_keys import HeldKeys
from envkit_actions.keys import chord
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import MAX_ACTIONS, Reading
from envkit_actions.python_calls import PythonCall, calls_in, read_statements
from envkit_actions.writing import WHEEL_CLICK

_CLICK_REST: Final = ("duration", "tween", "logScreenshot", "_pause")
_BUTTON: Final = ("x", "y", "button", *_CLICK_REST)
_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "click": ("x", "y", "clicks", "interval", "button", *_CLICK_REST),
    "leftClick": ("x", "y", "interval", *_CLICK_REST),
    "rightClick": ("x", "y", "interval", *_CLICK_REST),
    "middleClick": ("x", "y", "interval", *_CLICK_REST),
    "doubleClick": ("x", "y", "interval", "button", *_CLICK_REST),
    "tripleClick": ("x", "y", "interval", "button", *_CLICK_REST),
    "moveTo": ("x", "y", "duration", "tween", "logScreenshot", "_pause"),
    "dragTo": ("x", "y", "duration", "tween", "button", "logScreenshot", "_pause", "mouseDownUp"),
    **dict.fromkeys(("move", "moveRel"), ("xOffset", "yOffset", *_CLICK_REST)),
    **dict.fromkeys(
        ("drag", "dragRel"),
        ("xOffset", "yOffset", "duration", "tween", "button", *_CLICK_REST[2:], "mouseDownUp"),
    ),
    "mouseDown": _BUTTON,
    "mouseUp": _BUTTON,
    "scroll": ("clicks", "x", "y", "logScreenshot", "_pause"),
    "vscroll": ("clicks", "x", "y", "logScreenshot", "_pause"),
    "hscroll": ("clicks", "x", "y", "logScreenshot", "_pause"),
    "write": ("message", "interval", "logScreenshot", "_pause"),
    "typewrite": ("message", "interval", "logScreenshot", "_pause"),
    "press": ("keys", "presses", "interval", "logScreenshot", "_pause"),
    "keyDown": ("key", "logScreenshot", "_pause"),
    "keyUp": ("key", "logScreenshot", "_pause"),
    "sleep": ("seconds",),
    "screenshot": ("imageFilename", "region"),
}
_RELATIVE: Final = frozenset({"move", "moveRel", "drag", "dragRel"})
_WITHOUT_EFFECT: Final = frozenset((*_CLICK_REST, "interval", "imageFilename", "region"))
"""Arguments that change how fast an action is, or what is kept of it."""


def read_pyautogui(source: str, reading: Reading) -> None:
    """Add the actions of a source to a reading.

    Raises:
        MalformedActionError: At the first call that is not pyautogui's, or cannot be read.
    """
    held = HeldKeys()
    for call in calls_in(read_statements(source)):
        for action in _actions(call, reading, held):
            reading.add(action)
    held.check_released()


def _actions(call: PythonCall, reading: Reading, held: HeldKeys) -> list[Action]:
    """Return the actions of one call; a key-down alone yields none until its release."""
    module, _, function = call.name.rpartition(".")
    if module not in ("", "pyautogui") and call.name != "time.sleep":
        raise MalformedActionError(f"only pyautogui and time.sleep are read, got {call.name[:60]}")
    if function == "hotkey":
        return [held.applied(Action(kind=ActionKind.KEY, keys=_hotkey(call)))]
    fields = Fields(_bound(call, function), reading, function)
    fields.is_relative = function in _RELATIVE
    if function == "keyDown":
        held.press(fields.text("key"))
        return []
    if function == "keyUp":
        return held.release(fields.text("key"))
    actions = _press(fields) if function == "press" else [_READERS[function](fields)]
    fields.check_all_known()
    return [held.applied(action) for action in actions]


def _bound(call: PythonCall, function: str) -> dict[str, Any]:
    parameters = _PARAMETERS.get(function)
    if parameters is None:
        raise MalformedActionError(
            f"there is no function {quoted(function)}; there are {', '.join(_PARAMETERS)}, hotkey"
        )
    bound = call.bind(parameters)
    bound = {key: value for key, value in bound.items() if key not in _WITHOUT_EFFECT}
    keys = ("xOffset", "yOffset") if function in _RELATIVE else ("x", "y")
    x, y = _axes(*(bound.pop(key, None) for key in keys))
    if function in _RELATIVE and (x, y) != (None, None):
        x, y = (0 if offset is None else offset for offset in (x, y))
    return {**bound, "x": x, "y": y}


def _axes(x: object, y: object) -> tuple[object, object]:
    """Return both coordinates; pyautogui also accepts a pair as the first argument."""
    if not isinstance(x, list) or y is not None:
        return cast(object, x), y
    return as_pair(cast(list[object], x), "x")


def _hotkey(call: PythonCall) -> tuple[str, ...]:
    if call.keywords.keys() - {"interval", "logScreenshot"}:
        raise MalformedActionError("hotkey takes keys without names, such as hotkey('ctrl', 'c')")
    names = call.arguments
    return chord(_names(names[0] if len(names) == 1 else list(names)))


def _names(value: object) -> list[str]:
    """Return key names from a string or a list."""
    names = cast(list[object], value) if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names) or len(names) > MAX_ACTIONS:
        raise MalformedActionError(f"keys must be 1 to {MAX_ACTIONS} strings, such as 'ctrl'")
    return cast(list[str], names)


def _press(fields: Fields) -> list[Action]:
    names, presses = _names(fields.get("keys")), fields.amount("presses", 1)
    if not 1 <= presses * len(names) <= MAX_ACTIONS:
        raise MalformedActionError(f"press presses 1 to {MAX_ACTIONS} times, got {presses}")
    return [
        Action(kind=ActionKind.KEY, keys=chord([name])) for _ in range(presses) for name in names
    ]


_KINDS: Final = {1: ActionKind.CLICK, 2: ActionKind.DOUBLE_CLICK, 3: ActionKind.TRIPLE_CLICK}
_PRIMARY: Final = {"primary": Button.LEFT, "secondary": Button.RIGHT}
_BUTTONS: Final = {**{button.value: button for button in Button}, **_PRIMARY}


def _button(fields: Fields) -> Button:
    return fields.choice("button", _BUTTONS, Button.LEFT)


def _clicked(fields: Fields, clicks: int, button: Button) -> Action:
    kind = _KINDS.get(clicks)
    if kind is None:
        raise MalformedActionError(f"'clicks' must be 1, 2 or 3, got {clicks}")
    if clicks > 1 and button is not Button.LEFT:
        raise MalformedActionError(
            f"only the left button clicks {clicks} times, got {button.value}"
        )
    x, y = fields.optional_point()
    return Action(kind=kind, x=x, y=y, button=button)


def _pressed(kind: ActionKind) -> Callable[[Fields], Action]:
    def read(fields: Fields) -> Action:
        x, y = fields.optional_point()
        return Action(kind=kind, x=x, y=y, button=_button(fields))

    return read


def _move(fields: Fields) -> Action:
    x, y = fields.point()
    return Action(kind=ActionKind.MOVE, x=x, y=y, is_relative=fields.is_relative)


def _drag(fields: Fields) -> Action:
    path, button = (fields.point(),), _button(fields)
    return Action(kind=ActionKind.DRAG, path=path, button=button, is_relative=fields.is_relative)


def _scroll(fields: Fields) -> Action:
    x, y = fields.optional_point()
    pixels = fields.amount("clicks") * WHEEL_CLICK
    if fields.name == "hscroll":
        return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=pixels)
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dy=-pixels)


def _type(fields: Fields) -> Action:
    message: Any = fields.get("message")
    if isinstance(message, list):
        raise MalformedActionError("write takes one string; press a list of keys with press")
    return Action(kind=ActionKind.TYPE, text=fields.text("message"))


_READERS: Final[dict[str, Callable[[Fields], Action]]] = {
    "click": lambda fields: _clicked(fields, fields.amount("clicks", 1), _button(fields)),
    "leftClick": lambda fields: _clicked(fields, 1, Button.LEFT),
    "rightClick": lambda fields: _clicked(fields, 1, Button.RIGHT),
    "middleClick": lambda fields: _clicked(fields, 1, Button.MIDDLE),
    "doubleClick": lambda fields: _clicked(fields, 2, _button(fields)),
    "tripleClick": lambda fields: _clicked(fields, 3, _button(fields)),
    **dict.fromkeys(("moveTo", "move", "moveRel"), _move),
    **dict.fromkeys(("dragTo", "drag", "dragRel"), _drag),
    "mouseDown": _pressed(ActionKind.MOUSE_DOWN),
    "mouseUp": _pressed(ActionKind.MOUSE_UP),
    "scroll": _scroll,
    "vscroll": _scroll,
    "hscroll": _scroll,
    "write": _type,
    "typewrite": _type,
    "sleep": lambda fields: Action(kind=ActionKind.WAIT, seconds=fields.seconds("seconds")),
    "screenshot": lambda _fields: Action(kind=ActionKind.SCREENSHOT),
}
