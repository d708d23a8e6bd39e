"""Translate the pyautogui programs in task files to input steps.

OSWorld runs them inside its virtual machine. Nearly all press Ctrl+S before grading. They are read
as syntax trees and never run.
"""

import ast
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from envkit_actions.action import Action, ActionKind
from envkit_actions.keys import chord
from envkit_actions.malformed import MalformedActionError
from envkit_actions.writing import WHEEL_CLICK
from envkit_linux_desktop.osworld.refusal import RefusalKind, RefusedError
from envkit_linux_desktop.osworld.steps import LONGEST_WAIT

_CENTRE: Final = ("{SCREEN_WIDTH_HALF}", "{SCREEN_HEIGHT_HALF}")
_PRESS_AND_RELEASE: Final = ["pyautogui.mouseDown()", "pyautogui.mouseUp()"]
_MARKER: Final = -1
"""Stands for a coordinate of the screen's centre, whose size a task file does not know."""
_CENTRE_PIXEL: Final = (960, 540)
"""The centre of OSWorld's screen, as some files write it."""
_CLICKS: Final = (ActionKind.CLICK, ActionKind.DOUBLE_CLICK)
_MAX_PRESSES: Final = 200
_MAX_CLICKS: Final = 1000
_LONGEST_TEXT: Final = 10_000
_Values = list[Any]
_Named = dict[str, Any]


def translate(code: str) -> tuple[Action, ...]:
    """Return the input steps of a pyautogui program.

    Raises:
        RefusedError: It does anything besides pressing, typing, clicking, scrolling and sleeping.
    """
    for name in _CENTRE:
        code = code.replace(name, str(_MARKER))
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _refused(f"a program that is not valid Python ({type(error).__name__})") from error
    statements = [one for one in body if not isinstance(one, ast.Import)]
    steps: list[Action] = []
    while statements:
        has_clicked = any(step.kind in _CLICKS for step in steps)
        if has_clicked and [ast.unparse(one) for one in statements[:2]] == _PRESS_AND_RELEASE:
            # A click where the pointer is: all clicks before it were at the centre.
            steps.append(Action(kind=ActionKind.CLICK))
            del statements[:2]
        else:
            steps += _statement(statements.pop(0))
    return tuple(steps)


def _statement(statement: ast.stmt) -> tuple[Action, ...]:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        raise _refused(f"the statement {ast.unparse(statement)[:80]!r}")
    call = statement.value
    name = ast.unparse(call.func)
    make = _CALLS.get(name)
    if make is None:
        raise _refused(f"{name}()")
    try:
        values = [ast.literal_eval(argument) for argument in call.args]
        named = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
        return make(values, named)
    except (MalformedActionError, ValueError, TypeError, IndexError, KeyError) as error:
        raise _refused(f"the call {ast.unparse(call)[:80]!r}") from error


def _hotkey(values: _Values, _: _Named) -> tuple[Action, ...]:
    keys = values[0] if isinstance(values[0], list) else values
    return (Action(kind=ActionKind.KEY, keys=chord(str(key) for key in keys)),)


def _press(values: _Values, named: _Named) -> tuple[Action, ...]:
    keys = values[0] if isinstance(values[0], list) else values[:1]
    times = int(named.get("presses", values[1] if len(values) > 1 else 1))
    if not 0 <= times * len(keys) <= _MAX_PRESSES:
        raise ValueError("too many presses")
    chords = [chord([str(key)]) for key in keys] * times
    return tuple(Action(kind=ActionKind.KEY, keys=one) for one in chords)


def _write(values: _Values, named: _Named) -> tuple[Action, ...]:
    text = values[0] if values else named["message"]
    if len(str(text)) > _LONGEST_TEXT:
        raise ValueError("too long a text")
    return (Action(kind=ActionKind.TYPE, text=str(text)),)


def _sleep(values: _Values, _: _Named) -> tuple[Action, ...]:
    seconds = float(values[0])
    if not 0 <= seconds <= LONGEST_WAIT:
        raise ValueError("too long a wait")
    return (Action(kind=ActionKind.WAIT, seconds=seconds),)


def _scroll(values: _Values, _: _Named) -> tuple[Action, ...]:
    clicks = int(values[0])
    if abs(clicks) > _MAX_CLICKS:
        raise ValueError("too far a scroll")
    return (Action(kind=ActionKind.SCROLL, dy=-clicks * WHEEL_CLICK),)


def _click(
    values: _Values, named: _Named, kind: ActionKind = ActionKind.CLICK
) -> tuple[Action, ...]:
    x = values[0] if values else named.get("x", _MARKER)
    y = values[1] if len(values) > 1 else named.get("y", _MARKER)
    if (x, y) in ((_MARKER, _MARKER), _CENTRE_PIXEL):
        return (Action(kind=kind),)
    # Pixels of OSWorld's 1920x1080 screen mean another place on any other desktop.
    raise _refused(f"a click at the fixed pixel {x}, {y}")


_CALLS: Final[dict[str, Callable[[_Values, _Named], tuple[Action, ...]]]] = {
    "pyautogui.hotkey": _hotkey,
    "pyautogui.press": _press,
    "pyautogui.write": _write,
    "pyautogui.typewrite": _write,
    "pyautogui.click": _click,
    "pyautogui.doubleClick": partial(_click, kind=ActionKind.DOUBLE_CLICK),
    "pyautogui.scroll": _scroll,
    "time.sleep": _sleep,
}


def _refused(what: str) -> RefusedError:
    return RefusedError(RefusalKind.INPUT, what)
