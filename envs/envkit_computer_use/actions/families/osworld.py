"""OSWorld: pyautogui calls, and the words WAIT, DONE and FAIL.

After xlang-ai/OSWorld, desktop_env/desktop_env.py and mm_agents/prompts.py, and
asweigart/pyautogui, pyautogui/__init__.py, for the parameters. Coordinates are pixels of the
screenshot. Positive clicks scroll up, and to the right. Nothing is executed: see `python_calls`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from envkit.tools import ToolSpec
from envkit_computer_use.actions.action import Action, ActionKind, Button
from envkit_computer_use.actions.call_reply import check_countable
from envkit_computer_use.actions.closing import DONE, FAIL, closing_of, closing_text
from envkit_computer_use.actions.code_reply import Code, fenced, parse_code
from envkit_computer_use.actions.fields import Fields, as_pair
from envkit_computer_use.actions.held_keys import HeldKeys
from envkit_computer_use.actions.keys import KeyColumn, canonical_key, chord
from envkit_computer_use.actions.malformed import MalformedActionError, quoted
from envkit_computer_use.actions.parsed import MAX_ACTIONS, ParsedActions, Reading
from envkit_computer_use.actions.python_calls import PythonCall, calls_in, read_statements
from envkit_computer_use.actions.spaces import CoordinateSpace, SmartResize, SpaceKind
from envkit_computer_use.actions.writing import WHEEL_CLICK, Writing

WAIT: Final = "WAIT"
WAIT_SECONDS: Final = 2.0
"""What `step` of desktop_env.py sleeps for WAIT unless told otherwise."""

_WORDS: Final = (WAIT, DONE, FAIL)
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

_PROMPT: Final = """\
You operate a computer and see its screen as a picture of {width}x{height} pixels. Reply with \
Python code between ``` fences that calls pyautogui, with numbers and strings written out: no \
variables, no loops, no other modules but time. The screen may look different after a call, so \
do few things at a time. For instance:
```python
import pyautogui
pyautogui.click(x=100, y=200)
pyautogui.write('some text')
pyautogui.press('enter')
pyautogui.hotkey('ctrl', 's')
pyautogui.moveTo(50, 60)
pyautogui.dragTo(150, 60, button='left')
pyautogui.scroll(-3)  # clicks of the wheel, negative is down
```
Instead of code reply {wait} to wait, {done} when the task is done, {fail} when it cannot be done.
"""


class OSWorldFamily:
    """OSWorld's action space "pyautogui"."""

    @property
    def name(self) -> str:
        """Its key in `FAMILIES`."""
        return "osworld"

    def space(
        self,
        screen: tuple[int, int],
        *,
        sent: tuple[int, int] | None = None,
        resize: SmartResize | None = None,
    ) -> CoordinateSpace:
        """Return pixels of the screenshot as it was sent."""
        return CoordinateSpace.of(SpaceKind.SCREEN, screen, sent=sent, resize=resize)

    def parse(self, reply: str, space: CoordinateSpace) -> ParsedActions:
        """Read the first block between ``` fences, else the whole reply."""
        return parse_code(
            reply,
            space,
            marks=("pyautogui.", "import ", "time.", *_WORDS),
            extract=_extract,
            read=_read_source,
        )

    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return the calls, one a line.

        Raises:
            InexpressibleActionError: pyautogui has no call for an action.
        """
        check_countable(self.name, actions)
        return "\n".join(
            line for action in actions for line in _write(Writing(self.name, action, space))
        )

    def system_prompt(self, space: CoordinateSpace) -> str:
        """Return the form of the code and the three words."""
        extent = space.extent
        return _PROMPT.format(
            width=extent.width, height=extent.height, wait=WAIT, done=DONE, fail=FAIL
        )

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return none: actions are text."""
        return ()


def _extract(body: str) -> Code:
    if body.lstrip().startswith(("pyautogui.", "import ", "time.")):
        return Code(body.strip(), "")
    code = fenced(body)
    before, _, last = code.source.rpartition("\n")
    return Code(last.strip(), before.strip()) if _is_prose_and_word(before, last) else code


def _is_prose_and_word(before: str, last: str) -> bool:
    return last.strip() in _WORDS and "(" not in before


def _read_source(source: str, reading: Reading) -> None:
    *lines, last = source.split("\n")
    word = last.strip()
    code = "\n".join(lines) if word in _WORDS else source
    held = HeldKeys()
    for call in calls_in(read_statements(code)):
        for action in _actions(call, reading, held):
            reading.add(action)
    held.check_released()
    if word == WAIT:
        reading.add(Action(kind=ActionKind.WAIT, seconds=WAIT_SECONDS))
    elif word in _WORDS:
        reading.add(closing_of(word))


def _actions(call: PythonCall, reading: Reading, held: HeldKeys) -> list[Action]:
    """Return the actions of one call; a key that only goes down is none yet."""
    module, _, function = call.name.rpartition(".")
    if module not in ("", "pyautogui") and call.name != "time.sleep":
        raise MalformedActionError(f"only pyautogui and time.sleep are read, got {call.name[:60]}")
    if function == "hotkey":
        return [held.applied(Action(kind=ActionKind.KEY, keys=_hotkey(call)))]
    fields = Fields(_bound(call, function), reading, function)
    if function == "keyDown":
        held.press(canonical_key(fields.text("key")))
        return []
    if function == "keyUp":
        pressed = held.release(canonical_key(fields.text("key")))
        return [] if pressed is None else [pressed]
    actions = _press(fields) if function == "press" else [_READERS[function](fields)]
    return [held.applied(action) for action in actions]


def _bound(call: PythonCall, function: str) -> dict[str, Any]:
    if function in _RELATIVE:
        raise MalformedActionError(f"{function} is relative: use moveTo or dragTo with x and y")
    parameters = _PARAMETERS.get(function)
    if parameters is None:
        raise MalformedActionError(
            f"there is no function {quoted(function)}; there are {', '.join(_PARAMETERS)}, hotkey"
        )
    bound = call.bind(parameters)
    if isinstance(bound.get("x"), list) and bound.get("y") is None:  # pyautogui takes a pair as x
        bound["x"], bound["y"] = as_pair(bound["x"], "x")
    return bound


def _hotkey(call: PythonCall) -> tuple[str, ...]:
    if call.keywords.keys() - {"interval", "logScreenshot"}:
        raise MalformedActionError("hotkey takes keys without names, such as hotkey('ctrl', 'c')")
    names = call.arguments
    return chord(_names(names[0] if len(names) == 1 else list(names)))


def _names(value: object) -> list[str]:
    """Return names of keys from one, or from a list."""
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
    return Action(kind=ActionKind.MOVE, x=x, y=y)


def _drag(fields: Fields) -> Action:
    return Action(kind=ActionKind.DRAG, path=(fields.point(),), button=_button(fields))


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
    "moveTo": _move,
    "dragTo": _drag,
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
_CLICK_WORDS: Final = {
    ActionKind.CLICK: "click",
    ActionKind.DOUBLE_CLICK: "doubleClick",
    ActionKind.TRIPLE_CLICK: "tripleClick",
    ActionKind.MOUSE_DOWN: "mouseDown",
    ActionKind.MOUSE_UP: "mouseUp",
}
_HAS_BUTTON: Final = (ActionKind.CLICK, ActionKind.MOUSE_DOWN, ActionKind.MOUSE_UP)


def _write(writing: Writing) -> list[str]:
    """Return the lines of one action."""
    action = writing.action
    word = _CLICK_WORDS.get(action.kind)
    if word is not None:
        writing.plain(button=action.kind in _HAS_BUTTON, keys=not word.startswith("mouse"))
        return _held(writing, [_call(word, *_place(writing), **_named_button(action))])
    write = _WRITERS.get(action.kind)
    if write is None:
        raise writing.refusal("pyautogui has no such call")
    return write(writing)


def _call(word: str, *values: object, **named: object) -> str:
    written = [*map(repr, values), *(f"{key}={value!r}" for key, value in named.items())]
    return f"pyautogui.{word}({', '.join(written)})"


def _place(writing: Writing) -> list[int | float]:
    return [] if writing.at_cursor else writing.point()


def _named_button(action: Action) -> dict[str, object]:
    return {} if action.button is Button.LEFT else {"button": action.button.value}


def _held(writing: Writing, lines: list[str]) -> list[str]:
    """Return lines between the keys' going down and up."""
    if not writing.action.keys:
        return lines
    keys = writing.keys(KeyColumn.PYAUTOGUI)
    down = [_call("keyDown", key) for key in keys]
    return [*down, *lines, *(_call("keyUp", key) for key in reversed(keys))]


def _write_move(writing: Writing) -> list[str]:
    return [_call("moveTo", *writing.point())]


def _write_drag(writing: Writing) -> list[str]:
    before = [] if writing.at_cursor else _write_move(writing)
    drag = _call("dragTo", *writing.end(), **_named_button(writing.action))
    return [*before, *_held(writing, [drag])]


def _write_scroll(writing: Writing) -> list[str]:
    direction, clicks = writing.wheel_clicks()
    word = "hscroll" if direction in ("left", "right") else "scroll"
    signed = clicks if direction in ("up", "right") else -clicks
    return _held(writing, [_call(word, signed, *_place(writing))])


def _write_end(writing: Writing) -> list[str]:
    text = closing_text(writing.action)
    if text is None or writing.action.kind is ActionKind.ANSWER:
        raise writing.refusal(f"an episode ends with {DONE} or {FAIL}")
    return [text]


def _sleep(writing: Writing) -> str:
    return f"time.sleep({writing.action.seconds!r})"


_WRITERS: Final[dict[ActionKind, Callable[[Writing], list[str]]]] = {
    ActionKind.MOVE: _write_move,
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.TYPE: lambda writing: [_call("write", writing.action.text)],
    ActionKind.KEY: lambda writing: [_call("hotkey", *writing.keys(KeyColumn.PYAUTOGUI))],
    ActionKind.HOLD_KEY: lambda writing: _held(writing, [_sleep(writing)]),
    ActionKind.WAIT: lambda writing: [_sleep(writing)],
    ActionKind.SCREENSHOT: lambda _writing: [_call("screenshot")],
    ActionKind.TERMINATE: _write_end,
    ActionKind.ANSWER: _write_end,
}

OSWORLD: Final = OSWorldFamily()
