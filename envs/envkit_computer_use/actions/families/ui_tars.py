"""UI-TARS 1.0 and 1.5: `Thought: ...` and `Action: click(start_box='(x,y)')`.

After bytedance/UI-TARS, codes/ui_tars/{prompt,action_parser}.py, where a scroll is five clicks of
the wheel and a wait five seconds. 1.0 counts thousandths, 1.5 pixels of the resized image. Places
come as `(x,y)`, `[x1,y1,x2,y2]` (its middle), `<point>x y</point>` and between box marks.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from envkit.tools import ToolSpec
from envkit_computer_use.actions.action import Action, ActionKind, Button, Status
from envkit_computer_use.actions.call_reply import check_countable
from envkit_computer_use.actions.closing import closing_of, closing_text
from envkit_computer_use.actions.code_reply import Code, parse_code
from envkit_computer_use.actions.family import ActionFamily
from envkit_computer_use.actions.fields import Fields, as_number
from envkit_computer_use.actions.keys import KeyColumn
from envkit_computer_use.actions.malformed import MalformedActionError, quoted
from envkit_computer_use.actions.parsed import ParsedActions, Reading
from envkit_computer_use.actions.python_calls import (
    MAX_ESCAPES,
    PythonCall,
    calls_in,
    read_statements,
)
from envkit_computer_use.actions.spaces import (
    UI_TARS_RESIZE,
    CoordinateSpace,
    SpaceKind,
)
from envkit_computer_use.actions.writing import Place, Writing, direction_pixels

SCROLL_PIXELS: Final = 600
"""Five clicks of the wheel."""
WAIT_SECONDS: Final = 5.0

_ACTION: Final = re.compile(r"^[ \t]*Action:[ \t]*", re.MULTILINE)
_NUMBER: Final = re.compile(r"-?\d{1,12}(?:\.\d{1,12})?", re.ASCII)
_LOOSE_TEXT: Final = re.compile(
    r"(?P<word>type|finished)\(\s*content\s*=\s*(?P<quote>['\"])(?P<text>.*)(?P=quote)\s*\)",
    re.DOTALL,
)
_NEXT_CALL: Final = re.compile(r"['\"][ \t]*\)\s*\n\s*\w+\(")
_ESCAPE: Final = re.compile(r"\\([nt'\"\\])")
_ESCAPED: Final = {"n": "\n", "t": "\t"}
_PLACE: Final = ("start_box", "start_point", "point")
_PARAMETERS: Final = {
    "place": (*_PLACE, "end_box", "end_point", "direction"),
    "text": ("content",),
    "keys": ("key", "hotkey"),
}
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


class UITarsFamily(ActionFamily):
    """One generation; they differ in what they count."""

    def __init__(self, name: str, kind: SpaceKind) -> None:
        super().__init__(name, counts=kind, resize=UI_TARS_RESIZE)

    def parse(self, reply: str, space: CoordinateSpace) -> ParsedActions:
        """Read the calls behind `Action:`, or of the whole reply where the word is missing."""
        return parse_code(
            reply, space, marks=("Action:", "Thought:"), extract=_extract, read=_read_source
        )

    def write(self, actions: Sequence[Action], space: CoordinateSpace) -> str:
        """Return the actions behind `Action:`, apart by empty lines, without a thought.

        Raises:
            InexpressibleActionError: The family has no word for an action.
        """
        check_countable(self.name, actions)
        calls = (_write(Writing(self.name, action, space)) for action in actions)
        return "Action: " + "\n\n".join(calls)

    def system_prompt(self, space: CoordinateSpace) -> str:
        """Return the form of the reply and the action list."""
        extent = space.extent
        return _PROMPT.format(width=extent.width, height=extent.height)

    def tools(self, space: CoordinateSpace) -> tuple[ToolSpec, ...]:
        """Return none: actions are text."""
        return ()


def _extract(body: str) -> Code:
    found = _ACTION.search(body)
    if found is None:
        return Code(body.strip(), "")
    thought = body[: found.start()].strip().removeprefix("Thought:").strip()
    return Code(body[found.end() :].strip(), thought)


def _read_source(source: str, reading: Reading) -> None:
    try:
        statements = read_statements(source)
    except MalformedActionError as error:
        call = _loose_call(source)
        if call is None:
            raise error from None
        _read(call, reading)
        return
    for call in calls_in(statements):
        _read(call, reading)


def _loose_call(source: str) -> PythonCall | None:
    """Return the one call with a text whose quotes or line breaks were left unescaped."""
    found = _LOOSE_TEXT.fullmatch(source)
    if found is None or _NEXT_CALL.search(found["text"]) or source.count("\\") > MAX_ESCAPES:
        return None
    text = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), found["text"])
    return PythonCall(name=found["word"], arguments=(), keywords={"content": text})


def _read(call: PythonCall, reading: Reading) -> None:
    word = _READERS.get(call.name)
    if word is None:
        raise MalformedActionError(
            f"there is no action {quoted(call.name)}; the actions are {', '.join(_READERS)}"
        )
    parameters, read = word
    bound = call.bind(_PARAMETERS.get(parameters, ()))
    reading.add(read(Fields(bound, reading, call.name)))


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


def _click(kind: ActionKind, button: Button = Button.LEFT) -> Callable[[Fields], Action]:
    def read(fields: Fields) -> Action:
        x, y = _place(fields)
        return Action(kind=kind, x=x, y=y, button=button)

    return read


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


def _finished(fields: Fields) -> Action:
    text = fields.text("content", "").strip()
    return closing_of(text) if text else Action(kind=ActionKind.TERMINATE)


def _wait(fields: Fields) -> Action:
    return Action(kind=ActionKind.WAIT, seconds=WAIT_SECONDS)


def _call_user(fields: Fields) -> Action:
    return Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)


_READERS: Final[dict[str, tuple[str, Callable[[Fields], Action]]]] = {
    "click": ("place", _click(ActionKind.CLICK)),
    "left_single": ("place", _click(ActionKind.CLICK)),
    "left_double": ("place", _click(ActionKind.DOUBLE_CLICK)),
    "right_single": ("place", _click(ActionKind.CLICK, Button.RIGHT)),
    "hover": ("place", _click(ActionKind.MOVE)),
    "drag": ("place", _drag),
    "select": ("place", _drag),
    "scroll": ("place", _scroll),
    "hotkey": ("keys", _hotkey),
    "press": ("keys", _hotkey),
    "type": ("text", lambda fields: Action(kind=ActionKind.TYPE, text=fields.text("content"))),
    "wait": ("", _wait),
    "finished": ("text", _finished),
    "call_user": ("text", _call_user),
}
_WORDS: Final = {
    (ActionKind.CLICK, Button.LEFT): "click",
    (ActionKind.CLICK, Button.RIGHT): "right_single",
    (ActionKind.DOUBLE_CLICK, Button.LEFT): "left_double",
    (ActionKind.MOVE, Button.LEFT): "hover",
}


def _box(place: Place) -> str:
    return f"'({place[0]},{place[1]})'"


def _write(writing: Writing) -> str:
    action = writing.action
    word = _WORDS.get((action.kind, action.button))
    if word is not None:
        writing.plain(button=True)
        return f"{word}(start_box={_box(writing.point())})"
    write = _WRITERS.get(action.kind)
    if write is None:
        raise writing.refusal(f"its actions are {', '.join(_READERS)}")
    return write(writing)


def _write_drag(writing: Writing) -> str:
    writing.plain()
    return f"drag(start_box={_box(writing.point())}, end_box={_box(writing.end())})"


def _write_scroll(writing: Writing) -> str:
    writing.plain()
    direction, pixels = writing.one_axis()
    if pixels != SCROLL_PIXELS:
        raise writing.refusal(f"it always goes {SCROLL_PIXELS} pixels, got {pixels}")
    place = "" if writing.at_cursor else f"start_box={_box(writing.point())}, "
    return f"scroll({place}direction='{direction}')"


def _write_key(writing: Writing) -> str:
    named = writing.joined_keys(KeyColumn.PYAUTOGUI, " ")
    return f"hotkey(key={named!r})"


def _write_wait(writing: Writing) -> str:
    writing.seconds(WAIT_SECONDS)
    return "wait()"


def _write_end(writing: Writing) -> str:
    action = writing.action
    if action.kind is ActionKind.TERMINATE:
        return "finished()" if action.status is Status.SUCCESS else "call_user()"
    if closing_text(action) is None or action.text != action.text.strip() or not action.text:
        raise writing.refusal("its text would be read as something else")
    return f"finished(content={action.text!r})"


_WRITERS: Final[dict[ActionKind, Callable[[Writing], str]]] = {
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.KEY: _write_key,
    ActionKind.TYPE: lambda writing: f"type(content={writing.action.text!r})",
    ActionKind.WAIT: _write_wait,
    ActionKind.TERMINATE: _write_end,
    ActionKind.ANSWER: _write_end,
}

UI_TARS_10: Final = UITarsFamily("ui-tars-1.0", SpaceKind.NORMALISED)
UI_TARS_15: Final = UITarsFamily("ui-tars-1.5", SpaceKind.RESIZED)
