"""UI-TARS 1.0 and 1.5: `Thought: ...` and `Action: click(start_box='(x,y)')`.

After bytedance/UI-TARS, codes/ui_tars/{prompt,action_parser}.py, where a scroll is five clicks of
the wheel and a wait five seconds. 1.0 counts thousandths, 1.5 pixels of the resized image. Places
come as `(x,y)`, `[x1,y1,x2,y2]` (its middle), `<point>x y</point>` and between box marks.

A model has one `Vocabulary` for a computer and one for a phone (in `ui_tars_mobile`). GLM-4.5V's
words (in `glm`) have the same form.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from envkit.smart_resize import SmartResize
from envkit_actions.action import Action, ActionKind, Button, Status
from envkit_actions.closing import closing_of, closing_text
from envkit_actions.code_reply import Code, CodeFamily
from envkit_actions.fields import Fields, as_number
from envkit_actions.keys import KeyColumn
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import Reading
from envkit_actions.python_calls import read_calls
from envkit_actions.spaces import UI_TARS_RESIZE, SpaceKind
from envkit_actions.writing import Place, Writing, direction_pixels

WAIT_SECONDS: Final = 5.0
_ACTION: Final = re.compile(r"^[ \t]*Action:[ \t]*", re.MULTILINE)
_LOOSE_TEXT: Final = re.compile(
    r"(?P<head>(?:type|finished)\(\s*content)\s*=\s*(?P<quote>['\"])(?P<text>.*)(?P=quote)\s*\)",
    re.DOTALL,
)


class Word(NamedTuple):
    """One action word and how its arguments are read."""

    parameters: tuple[str, ...]
    """Argument names, in order."""
    read: Callable[[Fields], Action]


class PlaceForm(NamedTuple):
    """How a vocabulary writes places."""

    name: str
    """Argument of an action at one place."""
    start: str
    end: str
    """The arguments of a drag."""
    template: str
    """Format string for x and y."""

    def argument(self, name: str, place: Place) -> str:
        """Return the argument `name` for a place."""
        return f"{name}='{self.template.format(*place)}'"


Writer = Callable[[Writing, PlaceForm], str]


def _extract(body: str) -> Code:
    found = _ACTION.search(body)
    if found is None:
        return Code(body.strip(), "")
    thought = body[: found.start()].strip().removeprefix("Thought:").strip()
    return Code(body[found.end() :].strip(), thought)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The action words of one kind of device."""

    prompt: str
    """Describes the reply format and the words; has `{width}` and `{height}`."""
    words: Mapping[str, Word]
    form: PlaceForm
    clicks: Mapping[tuple[ActionKind, Button], str]
    """Words of clicks without further arguments."""
    writers: Mapping[ActionKind, Writer]
    extract: Callable[[str], Code] = _extract
    """Finds the calls in a reply."""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Unsupported action words of the source: word -> why, and what to do instead."""


class WordFamily(CodeFamily):
    """A model whose reply is words of a vocabulary, called with arguments."""

    marks = ("Action:", "Thought:")
    wait_seconds = WAIT_SECONDS

    def __init__(
        self,
        name: str,
        kind: SpaceKind,
        vocabulary: Vocabulary,
        *,
        resize: SmartResize | None = UI_TARS_RESIZE,
    ) -> None:
        super().__init__(name, counts=kind, resize=resize)
        self.prompt, self._vocabulary = vocabulary.prompt, vocabulary

    def _extract(self, body: str) -> Code:
        return self._vocabulary.extract(body)

    def _read(self, source: str, reading: Reading) -> None:
        words, refused = self._vocabulary.words, self._vocabulary.refused
        for call in read_calls(source, _LOOSE_TEXT):
            if call.name in refused:
                raise MalformedActionError(f"{call.name}: {refused[call.name]}")
            word = words.get(call.name)
            if word is None:
                raise MalformedActionError(
                    f"there is no action {quoted(call.name)}; the actions are {', '.join(words)}"
                )
            Fields(call.bind(word.parameters), reading, call.name).read(word.read)

    def _write(self, writing: Writing) -> list[str]:
        action, form = writing.action, self._vocabulary.form
        word = self._vocabulary.clicks.get((action.kind, action.button))
        if word is not None:
            writing.plain(button=True)
            return [f"{word}({form.argument(form.name, writing.point())})"]
        write = self._vocabulary.writers.get(action.kind)
        if write is None:
            raise writing.refusal(f"its actions are {', '.join(self._vocabulary.words)}")
        return [write(writing, form)]

    def _joined(self, parts: Sequence[str]) -> str:
        """Return the actions after `Action:`, separated by empty lines, without a thought."""
        return "Action: " + "\n\n".join(parts)


SCROLL_PIXELS: Final = 600
"""Five clicks of the wheel."""

_NUMBER: Final = re.compile(r"-?\d{1,12}(?:\.\d{1,12})?", re.ASCII)
_PLACE: Final = ("start_box", "start_point", "point")
_AIMED: Final = (*_PLACE, "end_box", "end_point", "direction", "time")
_TEXT: Final = ("content",)
_KEYS: Final = ("key", "hotkey")

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


def click(kind: ActionKind, button: Button = Button.LEFT, *, extras: Sequence[str] = ()) -> Word:
    """Return the action word for a click at a place; `extras` change nothing."""

    def read(fields: Fields) -> Action:
        x, y = _place(fields)
        for extra in extras:
            fields.has(extra)
        return Action(kind=kind, x=x, y=y, button=button)

    return Word(_AIMED, read)


def _drag(fields: Fields) -> Action:
    x, y = _place(fields)
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=(_place(fields, ("end_box", "end_point")),))


def _scroll(fields: Fields) -> Action:
    x, y = _place(fields) if any(map(fields.has, _PLACE)) else (None, None)
    direction = fields.direction("direction")
    dx, dy = direction_pixels(direction, SCROLL_PIXELS)
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=dx, dy=dy)


def _hotkey(fields: Fields) -> Action:
    return Action(kind=ActionKind.KEY, keys=fields.keys("key" if fields.has("key") else "hotkey"))


def _finished(fields: Fields) -> Action:
    text = fields.text("content", "").strip()
    return closing_of(text) if text else Action(kind=ActionKind.TERMINATE)


def _type(fields: Fields) -> Action:
    return Action(kind=ActionKind.TYPE, text=fields.text("content"))


def _wait(fields: Fields) -> Action:
    return Action(kind=ActionKind.WAIT, seconds=WAIT_SECONDS)


def _call_user(fields: Fields) -> Action:
    return Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)


SHARED_WORDS: Final[dict[str, Word]] = {
    "click": click(ActionKind.CLICK),
    "drag": Word(_AIMED, _drag),
    "scroll": Word(_AIMED, _scroll),
    "type": Word(_TEXT, _type),
    "wait": Word((), _wait),
    "finished": Word(_TEXT, _finished),
    "call_user": Word((), _call_user),
}
"""The words of every device, after table 1 of the UI-TARS paper (arXiv 2501.12326)."""


def _write_drag(writing: Writing, form: PlaceForm) -> str:
    writing.plain()
    start = form.argument(form.start, writing.point())
    return f"drag({start}, {form.argument(form.end, writing.end())})"


def _write_scroll(writing: Writing, form: PlaceForm) -> str:
    writing.plain()
    direction, pixels = writing.one_axis()
    if pixels != SCROLL_PIXELS:
        raise writing.refusal(f"it always goes {SCROLL_PIXELS} pixels, got {pixels}")
    place = "" if writing.at_cursor else f"{form.argument(form.name, writing.point())}, "
    return f"scroll({place}direction='{direction}')"


def _write_key(writing: Writing, form: PlaceForm) -> str:
    named = writing.joined_keys(KeyColumn.PYAUTOGUI, " ")
    return f"hotkey(key={named!r})"


def _write_wait(writing: Writing, form: PlaceForm) -> str:
    writing.seconds(WAIT_SECONDS)
    return "wait()"


def _write_end(writing: Writing, form: PlaceForm) -> str:
    action = writing.action
    if action.kind is ActionKind.TERMINATE:
        return "finished()" if action.status is Status.SUCCESS else "call_user()"
    if closing_text(action) is None or action.text != action.text.strip() or not action.text:
        raise writing.refusal("its text would not read back unchanged")
    return f"finished(content={action.text!r})"


SHARED_WRITERS: Final[dict[ActionKind, Writer]] = {
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.TYPE: lambda writing, form: f"type(content={writing.action.text!r})",
    ActionKind.WAIT: _write_wait,
    ActionKind.TERMINATE: _write_end,
    ActionKind.ANSWER: _write_end,
}
_COMPUTER: Final = Vocabulary(
    prompt=_PROMPT,
    words={
        **SHARED_WORDS,
        "left_single": click(ActionKind.CLICK),
        "left_double": click(ActionKind.DOUBLE_CLICK),
        "right_single": click(ActionKind.CLICK, Button.RIGHT),
        "hover": click(ActionKind.MOVE),
        "select": SHARED_WORDS["drag"],
        "hotkey": Word(_KEYS, _hotkey),
        "press": Word(_KEYS, _hotkey),
    },
    form=PlaceForm("start_box", "start_box", "end_box", "({},{})"),
    clicks={
        (ActionKind.CLICK, Button.LEFT): "click",
        (ActionKind.CLICK, Button.RIGHT): "right_single",
        (ActionKind.DOUBLE_CLICK, Button.LEFT): "left_double",
        (ActionKind.MOVE, Button.LEFT): "hover",
    },
    writers={**SHARED_WRITERS, ActionKind.KEY: _write_key},
)

UI_TARS_10: Final = WordFamily("ui-tars-1.0", SpaceKind.NORMALISED, _COMPUTER)
UI_TARS_15: Final = WordFamily("ui-tars-1.5", SpaceKind.RESIZED, _COMPUTER)
