"""BrowserGym's coordinate actions.

After ServiceNow/BrowserGym, browsergym/core/src/browsergym/core/action/functions.py. Coordinates
are pixels of the viewport, keys have Playwright's names. `send_msg_to_user` and `report_infeasible`
end the episode. Actions on element ids (bid) make no sense on a screenshot and are rejected.
"""

from collections.abc import Callable
from typing import Final

from envkit_actions.action import Action, ActionKind, Button, Status
from envkit_actions.closing import closing_of, closing_text
from envkit_actions.code_reply import Code, CodeFamily, fenced
from envkit_actions.fields import Fields
from envkit_actions.held_keys import HeldKeys
from envkit_actions.keys import KeyColumn
from envkit_actions.malformed import MalformedActionError, quoted
from envkit_actions.parsed import Reading
from envkit_actions.python_calls import PythonCall, calls_in, read_statements
from envkit_actions.writing import Writing

_AIMED: Final = ("x", "y", "button")
_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "mouse_move": ("x", "y"),
    "mouse_click": _AIMED,
    "mouse_dblclick": _AIMED,
    "mouse_down": _AIMED,
    "mouse_up": _AIMED,
    "mouse_drag_and_drop": ("from_x", "from_y", "to_x", "to_y"),
    "scroll": ("delta_x", "delta_y"),
    "scroll_at": ("x", "y", "dx", "dy"),
    "keyboard_press": ("key",),
    "keyboard_down": ("key",),
    "keyboard_up": ("key",),
    "keyboard_type": ("text",),
    "keyboard_insert_text": ("text",),
    "noop": ("wait_ms",),
    "send_msg_to_user": ("text",),
    "report_infeasible": ("reason",),
}
_ON_ELEMENTS: Final = frozenset(
    ("click", "dblclick", "hover", "fill", "press", "focus", "clear", "check", "uncheck")
) | frozenset(("select_option", "drag_and_drop", "upload_file"))

_PROMPT: Final = """\
You operate a web page and see it as a picture of {width}x{height} pixels. Reply with calls of \
these functions between ``` fences, one a line; a thought may stand before them.
mouse_click(x, y, button='left'), mouse_dblclick(x, y), mouse_move(x, y), mouse_down(x, y), \
mouse_up(x, y)
mouse_drag_and_drop(from_x, from_y, to_x, to_y)
scroll(delta_x, delta_y) # pixels, positive is right and down, where the mouse is
keyboard_type('text'), keyboard_press('Control+a'), keyboard_down('Shift'), keyboard_up('Shift')
noop(wait_ms=1000)
send_msg_to_user('answer') # ends with an answer; with '{done}' when the task is done
report_infeasible('reason') # ends: the task cannot be done
"""


class BrowserGymFamily(CodeFamily):
    """The subsets `coord`, `chat` and `infeas` of its high-level actions."""

    prompt = _PROMPT
    marks = tuple(_PARAMETERS)

    def _extract(self, body: str) -> Code:
        """Find the calls between ``` fences or <action> tags, or else in the whole body."""
        if body.lstrip().startswith(self.marks):
            return Code(body.strip(), "")
        before, tag, rest = body.partition("<action>")
        if tag:
            return Code(rest.partition("</action>")[0].strip(), before.strip())
        return fenced(body)

    def _read(self, source: str, reading: Reading) -> None:
        held = HeldKeys()
        for call in calls_in(read_statements(source)):
            fields = _fields(call, reading)
            if call.name == "keyboard_down":
                held.press(fields.text("key"))
            elif call.name == "keyboard_up":
                reading.add(*held.release(fields.text("key")))
            else:
                fields.read(lambda known: held.applied(_READERS[known.name](known)))
        held.check_released()

    def _write(self, writing: Writing) -> list[str]:
        action = writing.action
        if action.kind in _WORDS:
            line = _WORDS[action.kind] + _arguments(*writing.point(), *_button(action))
            return _held(writing, line) if action.kind is ActionKind.CLICK else [line]
        return writing.by_kind(_WRITERS, f"its functions are {', '.join(_PARAMETERS)}")


def _fields(call: PythonCall, reading: Reading) -> Fields:
    parameters = _PARAMETERS.get(call.name)
    if parameters is not None:
        return Fields(call.bind(parameters), reading, call.name)
    if call.name in _ON_ELEMENTS:
        raise MalformedActionError(
            f"{call.name} takes an element's id, but there is only an image: "
            "use mouse_click(x, y) and the like"
        )
    raise MalformedActionError(
        f"there is no function {quoted(call.name)}; there are {', '.join(_PARAMETERS)}"
    )


def _mouse(kind: ActionKind) -> Callable[[Fields], Action]:
    def read(fields: Fields) -> Action:
        x, y = fields.point()
        return Action(kind=kind, x=x, y=y, button=fields.button())

    return read


def _double_click(fields: Fields) -> Action:
    x, y = fields.point()
    if fields.button() != "left":
        raise MalformedActionError("mouse_dblclick works with the left button only")
    return Action(kind=ActionKind.DOUBLE_CLICK, x=x, y=y)


def _drag(fields: Fields) -> Action:
    x, y = fields.place((fields.number("from_x"), fields.number("from_y")))
    end = fields.place((fields.number("to_x"), fields.number("to_y")))
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=(end,))


def _scroll(fields: Fields) -> Action:
    dx, dy = fields.amount("delta_x"), fields.amount("delta_y")
    return Action(kind=ActionKind.SCROLL, dx=dx, dy=dy)


def _scroll_at(fields: Fields) -> Action:
    x, y = fields.point()
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=fields.amount("dx"), dy=fields.amount("dy"))


def _type(fields: Fields) -> Action:
    return Action(kind=ActionKind.TYPE, text=fields.text("text"))


def _wait(fields: Fields) -> Action:
    seconds = fields.seconds("wait_ms", 1000, per_second=1000)
    return Action(kind=ActionKind.WAIT, seconds=seconds)


def _give_up(fields: Fields) -> Action:
    fields.text("reason")
    return Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)


_READERS: Final[dict[str, Callable[[Fields], Action]]] = {
    "mouse_move": _mouse(ActionKind.MOVE),
    "mouse_click": _mouse(ActionKind.CLICK),
    "mouse_dblclick": _double_click,
    "mouse_down": _mouse(ActionKind.MOUSE_DOWN),
    "mouse_up": _mouse(ActionKind.MOUSE_UP),
    "mouse_drag_and_drop": _drag,
    "scroll": _scroll,
    "scroll_at": _scroll_at,
    "keyboard_press": lambda fields: Action(kind=ActionKind.KEY, keys=fields.keys("key")),
    "keyboard_type": _type,
    "keyboard_insert_text": _type,
    "noop": _wait,
    "send_msg_to_user": lambda fields: closing_of(fields.text("text")),
    "report_infeasible": _give_up,
}
_WORDS: Final = {
    ActionKind.CLICK: "mouse_click",
    ActionKind.MOUSE_DOWN: "mouse_down",
    ActionKind.MOUSE_UP: "mouse_up",
}


def _arguments(*values: object) -> str:
    return f"({', '.join(map(repr, values))})"


def _button(action: Action) -> list[str]:
    return [] if action.button is Button.LEFT else [action.button.value]


def _held(writing: Writing, line: str) -> list[str]:
    return writing.holding([line], KeyColumn.PLAYWRIGHT, "keyboard_down", "keyboard_up")


def _write_double(writing: Writing) -> list[str]:
    writing.plain(keys=True)
    return _held(writing, f"mouse_dblclick{_arguments(*writing.point())}")


def _write_drag(writing: Writing) -> list[str]:
    writing.plain(keys=True)
    places = _arguments(*writing.point(), *writing.end())
    return _held(writing, f"mouse_drag_and_drop{places}")


def _write_scroll(writing: Writing) -> list[str]:
    amounts = (writing.action.dx, writing.action.dy)
    if writing.at_cursor:
        return _held(writing, f"scroll{_arguments(*amounts)}")
    return _held(writing, f"scroll_at{_arguments(*writing.point(), *amounts)}")


def _write_end(writing: Writing) -> list[str]:
    if writing.action == Action(kind=ActionKind.TERMINATE, status=Status.FAILURE):
        return ["report_infeasible('the task cannot be done')"]
    text = closing_text(writing.action)
    if text is None:
        raise writing.refusal("its text means something else")
    return [f"send_msg_to_user({text!r})"]


def _milliseconds(writing: Writing) -> str:
    return f"noop(wait_ms={writing.action.seconds * 1000!r})"


_WRITERS: Final[dict[ActionKind, Callable[[Writing], list[str]]]] = {
    ActionKind.MOVE: lambda writing: [f"mouse_move{_arguments(*writing.point())}"],
    ActionKind.DOUBLE_CLICK: _write_double,
    ActionKind.DRAG: _write_drag,
    ActionKind.SCROLL: _write_scroll,
    ActionKind.TYPE: lambda writing: [f"keyboard_type({writing.action.text!r})"],
    ActionKind.KEY: lambda writing: [
        f"keyboard_press({writing.joined_keys(KeyColumn.PLAYWRIGHT)!r})"
    ],
    ActionKind.HOLD_KEY: lambda writing: _held(writing, _milliseconds(writing)),
    ActionKind.WAIT: lambda writing: [_milliseconds(writing)],
    ActionKind.TERMINATE: _write_end,
    ActionKind.ANSWER: _write_end,
}

BROWSERGYM: Final = BrowserGymFamily("browsergym")
