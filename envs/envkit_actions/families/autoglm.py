"""AutoGLM on a phone: `do(action="Tap", element=[x,y])` and `finish(message="...")`.

After zai-org/Open-AutoGLM, phone_agent/config/prompts_zh.py and actions/handler.py. Places are
thousandths. Type replaces the whole text of the field that has the focus. Here a long press is a
right click, a swipe is a drag with the left button, and Back is Escape. What needs a person, an
app or a home screen is rejected with a reason, and so are notes.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.closing import closing_of, closing_text
from envkit_actions.code_reply import Code, CodeFamily
from envkit_actions.fields import Fields, Reader
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import Reading
from envkit_actions.python_calls import read_calls
from envkit_actions.spaces import CoordinateSpace, SpaceKind
from envkit_actions.writing import Place, Writing, replaced, replacing

_PROMPT: Final = """\
You operate a screen by touch and see it. Think first, then reply with one line:
do(action="Tap", element=[x,y])
do(action="Double Tap", element=[x,y])
do(action="Long Press", element=[x,y]) # opens menus, like the right button of a mouse
do(action="Swipe", start=[x1,y1], end=[x2,y2]) # drags what is at the start to the end
do(action="Type", text="xxx") # replaces the text of the field that was tapped
do(action="Back") # closes menus and dialogs, like Escape
do(action="Wait", duration="5 seconds")
finish(message="xxx") # ends; the message is the answer, {done} when the task is done, or {fail} \
when it cannot be done
The screen spans {width} across and {height} down, from [0,0] at the top left.
"""
_START: Final = re.compile(r"\b(?:do\(\s*action|finish\()")
_OPEN, _CLOSE = "<answer>", "</answer>"
_LOOSE_TEXT: Final = re.compile(
    r"(?P<head>do\(\s*action\s*=\s*(?P<mark>['\"])Type(?:_Name)?(?P=mark)\s*,\s*text"
    r"|finish\(\s*message)\s*=\s*(?P<quote>['\"])(?P<text>.*)(?P=quote)\s*\)",
    re.DOTALL,
)
_ARGUMENTS: Final = (
    "action",
    "element",
    "start",
    "end",
    "text",
    "duration",
    "app",
    "message",
    "instruction",
)


def _tap(kind: ActionKind, button: Button = Button.LEFT) -> Reader:
    def read(fields: Fields) -> Action:
        fields.has("message")  # asks a person to confirm
        x, y = fields.pair("element")
        return Action(kind=kind, x=x, y=y, button=button)

    return read


def _swipe(fields: Fields) -> Action:
    (x, y), end = fields.pair("start"), fields.pair("end")
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=(end,))


def _type(fields: Fields) -> list[Action]:
    return replacing(fields.text("text"))


def _refuse(why: str) -> Reader:
    def read(fields: Fields) -> Action:
        raise MalformedActionError(f"{fields.name}: {why}")

    return read


_ALONE: Final = "nobody is there to ask: go on by yourself, or finish"
_UNRECORDED: Final = "nothing is recorded: put what you found into the message of finish"
_READERS: Final[dict[str, Reader]] = {
    "tap": _tap(ActionKind.CLICK),
    "double tap": _tap(ActionKind.DOUBLE_CLICK),
    "long press": _tap(ActionKind.CLICK, Button.RIGHT),
    "swipe": _swipe,
    "type": _type,
    "type_name": _type,
    "back": lambda _fields: Action(kind=ActionKind.KEY, keys=("escape",)),
    "wait": lambda fields: Action(kind=ActionKind.WAIT, seconds=fields.seconds("duration")),
    "launch": _refuse(
        "there are no apps to open: what the task needs is on the screen, and a tap brings a "
        "window to the front"
    ),
    "home": _refuse("there is no home screen: use the windows on the screen, or Back"),
    "take_over": _refuse(_ALONE),
    "interact": _refuse(_ALONE),
    "note": _refuse(_UNRECORDED),
    "call_api": _refuse(_UNRECORDED),
}


class AutoGLMFamily(CodeFamily):
    """The action space of AutoGLM-Phone."""

    prompt = _PROMPT
    marks = ("do(", "finish(", _OPEN)

    def _extract(self, body: str) -> Code:
        """Find the calls, with or without <answer> tags around them."""
        found = _START.search(body)
        if found is None:
            return Code(body.strip(), "")
        before, source = body[: found.start()].strip(), body[found.start() :]
        if before.endswith(_OPEN):
            source = source.rpartition(_CLOSE)[0] or source
        return Code(source.strip(), before.removesuffix(_OPEN).strip())

    def _read(self, source: str, reading: Reading) -> None:
        for call in read_calls(source, _LOOSE_TEXT):
            if call.name == "finish":
                Fields(call.bind(("message",)), reading, call.name).read(_finish)
            elif call.name == "do":
                bound = call.bind(_ARGUMENTS)
                if isinstance(duration := bound.get("duration"), str):
                    bound["duration"] = duration.strip().removesuffix("s").removesuffix("second")
                fields = Fields(bound, reading, call.name)
                fields.read(fields.word("action", _READERS))
            else:
                raise MalformedActionError(f"there is no {quoted(call.name)}; write do or finish")

    def _write_next(
        self, actions: Sequence[Action], space: CoordinateSpace
    ) -> tuple[Sequence[str], int]:
        text = replaced(actions)
        if text is None:
            return super()._write_next(actions, space)
        return [f'do(action="Type", text={_literal(text)})'], 2

    def _write(self, writing: Writing) -> list[str]:
        word = _TAPS.get((writing.action.kind, writing.action.button))
        if word is None:
            return [writing.by_kind(_WRITERS, "a phone has no mouse")]
        writing.plain(button=True)
        return [f'do(action="{word}", element={_shown(writing.point())})']


def _finish(fields: Fields) -> Action:
    message = fields.text("message", "")
    return closing_of(message) if message else Action(kind=ActionKind.TERMINATE)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # whose escapes are Python's too


def _shown(place: Place) -> str:
    return "[{},{}]".format(*place)


def _write_swipe(writing: Writing) -> str:
    writing.plain()
    start, end = _shown(writing.point()), _shown(writing.end())
    return f'do(action="Swipe", start={start}, end={end})'


def _write_key(writing: Writing) -> str:
    if writing.action.keys != ("escape",):
        raise writing.refusal(f"its only key is Back, got {'+'.join(writing.action.keys)}")
    return 'do(action="Back")'


def _write_text(writing: Writing) -> str:
    raise writing.refusal("Type replaces a text: select all of it before")


def _write_end(writing: Writing) -> str:
    text = closing_text(writing.action)
    if not text:
        raise writing.refusal("its text would not read back unchanged")
    return f"finish(message={_literal(text)})"


_TAPS: Final = {
    (ActionKind.CLICK, Button.LEFT): "Tap",
    (ActionKind.CLICK, Button.RIGHT): "Long Press",
    (ActionKind.DOUBLE_CLICK, Button.LEFT): "Double Tap",
}
_WRITERS: Final[dict[ActionKind, Callable[[Writing], str]]] = {
    ActionKind.DRAG: _write_swipe,
    ActionKind.KEY: _write_key,
    ActionKind.TYPE: _write_text,
    ActionKind.WAIT: lambda writing: (
        f'do(action="Wait", duration="{writing.action.seconds!r} seconds")'
    ),
    ActionKind.TERMINATE: _write_end,
    ActionKind.ANSWER: _write_end,
}

AUTOGLM_PHONE: Final = AutoGLMFamily("autoglm-phone", counts=SpaceKind.NORMALISED)
