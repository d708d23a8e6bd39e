"""OSWorld: pyautogui calls, and the words WAIT, DONE and FAIL.

After xlang-ai/OSWorld, desktop_env/desktop_env.py and mm_agents/prompts.py. Coordinates are pixels
of the screenshot.
"""

from collections.abc import Callable
from typing import Final

from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.closing import DONE, FAIL, closing_of, closing_text
from envkit_actions.code_reply import Code, CodeFamily, fenced
from envkit_actions.families.pyautogui import read_pyautogui
from envkit_actions.keys import KeyColumn
from envkit_actions.parsed import Reading
from envkit_actions.writing import Writing

WAIT: Final = "WAIT"
WAIT_SECONDS: Final = 2.0
"""Default sleep for WAIT in `step` of desktop_env.py."""

_WORDS: Final = (WAIT, DONE, FAIL)
_STARTS: Final = ("pyautogui.", "import ", "time.")
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
Instead of code reply WAIT to wait, {done} when the task is done, {fail} when it cannot be done.
"""


class OSWorldFamily(CodeFamily):
    """OSWorld's action space "pyautogui"."""

    prompt = _PROMPT
    marks = (*_STARTS, *_WORDS)

    def _extract(self, body: str) -> Code:
        """Find the first block between ``` fences, or else take the whole body."""
        if body.lstrip().startswith(_STARTS):
            return Code(body.strip(), "")
        code = fenced(body)
        before, _, last = code.source.rpartition("\n")
        is_word_after_prose = last.strip() in _WORDS and "(" not in before
        return Code(last.strip(), before.strip()) if is_word_after_prose else code

    def _read(self, source: str, reading: Reading) -> None:
        *lines, last = source.split("\n")
        word = last.strip()
        read_pyautogui("\n".join(lines) if word in _WORDS else source, reading)
        if word == WAIT:
            reading.add(Action(kind=ActionKind.WAIT, seconds=WAIT_SECONDS))
        elif word in _WORDS:
            reading.add(closing_of(word))

    def _write(self, writing: Writing) -> list[str]:
        action = writing.action
        word = _CLICK_WORDS.get(action.kind)
        if word is None:
            return writing.by_kind(_WRITERS, "pyautogui has no such call")
        writing.plain(button=action.kind in _HAS_BUTTON, keys=not word.startswith("mouse"))
        return _held(writing, _call(word, *_place(writing), **_named_button(action)))


_CLICK_WORDS: Final = {
    ActionKind.CLICK: "click",
    ActionKind.DOUBLE_CLICK: "doubleClick",
    ActionKind.TRIPLE_CLICK: "tripleClick",
    ActionKind.MOUSE_DOWN: "mouseDown",
    ActionKind.MOUSE_UP: "mouseUp",
}
_HAS_BUTTON: Final = (ActionKind.CLICK, ActionKind.MOUSE_DOWN, ActionKind.MOUSE_UP)


def _call(word: str, *values: object, **named: object) -> str:
    written = [*map(repr, values), *(f"{key}={value!r}" for key, value in named.items())]
    return f"pyautogui.{word}({', '.join(written)})"


def _place(writing: Writing) -> list[int | float]:
    return [] if writing.at_cursor else writing.point()


def _named_button(action: Action) -> dict[str, object]:
    return {} if action.button is Button.LEFT else {"button": action.button.value}


def _held(writing: Writing, line: str) -> list[str]:
    return writing.holding([line], KeyColumn.PYAUTOGUI, "pyautogui.keyDown", "pyautogui.keyUp")


def _write_move(writing: Writing) -> list[str]:
    if writing.action.is_relative:
        return [_call("move", *_offset(writing, writing.action.x, writing.action.y))]
    return [_call("moveTo", *writing.point())]


def _offset(writing: Writing, dx: int | None, dy: int | None) -> tuple[float, float]:
    return writing.space.offset_from_screen(dx or 0, dy or 0)


def _write_drag(writing: Writing) -> list[str]:
    action = writing.action
    if action.is_relative and writing.at_cursor and len(action.path) == 1:
        drag = _call("drag", *_offset(writing, *action.path[0]), **_named_button(action))
        return _held(writing, drag)
    before = [] if writing.at_cursor else _write_move(writing)
    drag = _call("dragTo", *writing.end(), **_named_button(action))
    return [*before, *_held(writing, drag)]


def _write_scroll(writing: Writing) -> list[str]:
    direction, clicks = writing.wheel_clicks()
    word = "hscroll" if direction in ("left", "right") else "scroll"
    signed = clicks if direction in ("up", "right") else -clicks
    return _held(writing, _call(word, signed, *_place(writing)))


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
    ActionKind.HOLD_KEY: lambda writing: _held(writing, _sleep(writing)),
    ActionKind.WAIT: lambda writing: [_sleep(writing)],
    ActionKind.SCREENSHOT: lambda _writing: [_call("screenshot")],
    ActionKind.TERMINATE: _write_end,
    ActionKind.ANSWER: _write_end,
}

OSWORLD: Final = OSWorldFamily("osworld")
