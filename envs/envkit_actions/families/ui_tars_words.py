"""Action words of UI-TARS 1.0 and 1.5: for every device, and for a computer."""

import re
from collections.abc import Sequence
from typing import Any, Final, cast

from envkit_actions.action import Action, ActionKind, Button, Status
from envkit_actions.closing import closing_of, closing_text
from envkit_actions.families import ui_tars
from envkit_actions.fields import Fields, as_number
from envkit_actions.keys import KeyColumn
from envkit_actions.malformed import MalformedActionError
from envkit_actions.spaces import SpaceKind
from envkit_actions.writing import Writing, direction_pixels

SCROLL_PIXELS: Final = 600
"""Five clicks of the wheel."""

_NUMBER: Final = re.compile(r"-?\d{1,12}(?:\.\d{1,12})?", re.ASCII)
_PLACE: Final = ("start_box", "start_point", "point")
_AIMED: Final = (*_PLACE, "end_box", "end_point", "direction", "time")
_TEXT: Final = ("content",)
_KEYS: Final = ("key", "hotkey")
_DIRECTIONS: Final = ("up", "down", "left", "right")

_PROMPT: Final = """\
You operate a computer and see its screen. Reply in this form, with one action:
Thought: what you see and what you do next
Action: one of the following
click(start_box='(x,y)')
left_double(start_box='(x,y)')
right_single(start_box='(x,y)')
drag(start_box='(x1,y1)', end_box='(x2,y2)')
hotkey(key='ctrl c') # keys apart by spaces, at most 3
type(content='text') # \\n at the end presses Enter; write \\' for a quote
scroll(start_box='(x,y)', direction='down') # or up, left, right
wait() # 5 seconds
finished() # the task is done; finished(content='answer') answers a question
call_user() # the task cannot be done
The screen spans {width} across and {height} down, from (0,0) at the top left.
"""


def _place(fields: Fields, keys: Sequence[str] = _PLACE) -> tuple[int, int]:
    key = next((key for key in keys if fields.has(key)), None)
    if key is None:
        raise MalformedActionError(f"{fields.name} needs '{keys[0]}'")
    value: Any = fields.get(key)
    if isinstance(value, list):
        numbers = [as_number(number, key) for number in cast(list[object], value)]
    else:
        numbers = [float(number) for number in _NUMBER.findall(fields.text(key)[:200])]
    if len(numbers) == 4:
        left, top, right, bottom = numbers
        return fields.place(((left + right) / 2, (top + bottom) / 2))
    if len(numbers) != 2:
        raise MalformedActionError(f"'{key}' must be '(x,y)', got {len(numbers)} numbers")
    return fields.place((numbers[0], numbers[1]))


def click(
    kind: ActionKind, button: Button = Button.LEFT, *, extras: Sequence[str] = ()
) -> ui_tars.Word:
    """Return the action word for a click at a place; `extras` change nothing."""

    def read(fields: Fields) -> Action:
        x, y = _place(fields)
        for extra in extras:
            fields.has(extra)
        return Action(kind=kind, x=x, y=y, button=button)

    return ui_tars.Word(_AIMED, read)


def _drag(fields: Fields) -> Action:
    x, y = _place(fields)
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=(_place(fields, ("end_box", "end_point")),))


def _scroll(fields: Fields) -> Action:
    x, y = _place(fields) if any(map(fields.has, _PLACE)) else (None, None)
    direction = fields.choice("direction", {word: word for word in _DIRECTIONS})
    dx, dy = direction_pixels(direction, SCROLL_PIXELS)
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=dx, dy=dy)


def _hotkey(fields: Fields) -> Action:
    return Action(kind=ActionKind.KEY, keys=fields.keys("key" if fields.has("key") else "hotkey"))


def _type(fields: Fields) -> Action:
    return Action(kind=ActionKind.TYPE, text=fields.text("content"))


def _finished(fields: Fields) -> Action:
    text = fields.text("content", "").strip()
    return closing_of(text) if text else Action(kind=ActionKind.TERMINATE)


def _wait(fields: Fields) -> Action:
    return Action(kind=ActionKind.WAIT, seconds=ui_tars.WAIT_SECONDS)


def _call_user(fields: Fields) -> Action:
    return Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)


SHARED_WORDS: Final[dict[str, ui_tars.Word]] = {
    "click": click(ActionKind.CLICK),
    "drag": ui_tars.Word(_AIMED, _drag),
    "scroll": ui_tars.Word(_AIMED, _scroll),
    "type": ui_tars.Word(_TEXT, _type),
    "wait": ui_tars.Word((), _wait),
    "finished": ui_tars.Word(_TEXT, _finished),
    "call_user": ui_tars.Word((), _call_user),
}
"""The words of every device, after table 1 of the UI-TARS paper (arXiv 2501.12326)."""


def _write_drag(writing: Writing, form: ui_tars.PlaceForm) -> str:
    writing.plain()
    start = form.argument(form.start, writing.point())
    return f"drag({start}, {form.argument(form.end, writing.end())})"


def _write_scroll(writing: Writing, form: ui_tars.PlaceForm) -> str:
    writing.plain()
    direction, pixels = writing.one_axis()
    if pixels != SCROLL_PIXELS:
        raise writing.refusal(f"it always goes {SCROLL_PIXELS} pixels, got {pixels}")
    place = "" if writing.at_cursor else f"{form.argument(form.name, writing.point())}, "
    return f"scroll({place}direction='{direction}')"


def _write_key(writing: Writing, form: ui_tars.PlaceForm) -> str:
    named = writing.joined_keys(KeyColumn.PYAUTOGUI, " ")
    return f"hotkey(key={named!r})"


def _write_wait(writing: Writing, form: ui_tars.PlaceForm) -> str:
    writing.seconds(ui_tars.WAIT_SECONDS)
    return "wait()"


def _write_end(writing: Writing, form: ui_tars.PlaceForm) -> str:
    action = writing.action
    if action.kind is ActionKind.TERMINATE:
        return "finished()" if action.status is Status.SUCCESS else "call_user()"
    if closing_text(action) is None or action.text != action.text.strip() or not action.text:
        raise writing.refusal("its text would not read back unchanged")
    return f"finished(content={action.text!r})"


SHARED_WRITERS: Final[dict[ActionKind, ui_tars.Writer]] = {
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.TYPE: lambda writing, form: f"type(content={writing.action.text!r})",
    ActionKind.WAIT: _write_wait,
    ActionKind.TERMINATE: _write_end,
    ActionKind.ANSWER: _write_end,
}
_COMPUTER: Final = ui_tars.Vocabulary(
    prompt=_PROMPT,
    words={
        **SHARED_WORDS,
        "left_single": click(ActionKind.CLICK),
        "left_double": click(ActionKind.DOUBLE_CLICK),
        "right_single": click(ActionKind.CLICK, Button.RIGHT),
        "hover": click(ActionKind.MOVE),
        "select": SHARED_WORDS["drag"],
        "hotkey": ui_tars.Word(_KEYS, _hotkey),
        "press": ui_tars.Word(_KEYS, _hotkey),
    },
    form=ui_tars.PlaceForm("start_box", "start_box", "end_box", "({},{})"),
    clicks={
        (ActionKind.CLICK, Button.LEFT): "click",
        (ActionKind.CLICK, Button.RIGHT): "right_single",
        (ActionKind.DOUBLE_CLICK, Button.LEFT): "left_double",
        (ActionKind.MOVE, Button.LEFT): "hover",
    },
    writers={**SHARED_WRITERS, ActionKind.KEY: _write_key},
)

UI_TARS_10: Final = ui_tars.WordFamily("ui-tars-1.0", SpaceKind.NORMALISED, _COMPUTER)
UI_TARS_15: Final = ui_tars.WordFamily("ui-tars-1.5", SpaceKind.RESIZED, _COMPUTER)
