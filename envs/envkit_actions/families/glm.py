"""GLM-4.5V on a computer: a line of thought, then one call between box marks.

After zai-org/GLM-V, examples/gui-agent/glm-45v/agent.md and gui_agent_45v.py, desktop environment.
Places are thousandths as `[x,y]`; a step of a scroll is one click of the wheel, WAIT lasts five
seconds. The memory that may follow the call is not part of the action.
"""

import re
from typing import Final

from envkit_actions.action import Action, ActionKind, Button, Status
from envkit_actions.code_reply import Code
from envkit_actions.families import ui_tars
from envkit_actions.fields import Fields
from envkit_actions.keys import KeyColumn
from envkit_actions.malformed import MalformedActionError
from envkit_actions.spaces import SpaceKind
from envkit_actions.writing import WHEEL_CLICK, Writing, direction_pixels

_PROMPT: Final = """\
You operate a computer and see its screen. Think in a sentence, then write one action:
Action: one of the following
left_click(start_box='[x,y]', element_info='what is there'), and right_click, middle_click, \
left_double_click and hover with the same arguments; element_info may be left out
left_drag(start_box='[x1,y1]', end_box='[x2,y2]')
key(keys='ctrl+c')
type(content='text') # into the field that has the focus
scroll(start_box='[x,y]', direction='down', step=5) # or up; clicks of the wheel
WAIT() # 5 seconds
DONE() # the task is done
FAIL() # the task cannot be done
The screen spans {width} across and {height} down, from [0,0] at the top left.
"""
_STEPS: Final = 5
_INFO: Final = "element_info"
_BOX: Final = re.compile(r"<\|(?:begin|start)_of_box\|>")
_END_OF_BOX: Final = "<|end_of_box|>"
_MEMORY: Final = re.compile(r"^[ \t]*Memory:", re.MULTILINE)


def _aimed(kind: ActionKind, button: Button = Button.LEFT) -> ui_tars.Word:
    return ui_tars.Word(("start_box", _INFO), ui_tars.click(kind, button, extras=(_INFO,)).read)


def _drag(fields: Fields) -> Action:
    fields.has(_INFO)
    return ui_tars.SHARED_WORDS["drag"].read(fields)


def _scroll(fields: Fields) -> Action:
    fields.has(_INFO)
    x, y = fields.pair("start_box")
    direction = fields.choice("direction", {word: word for word in ("down", "up")})
    steps = fields.amount("step", _STEPS)
    if steps < 0:
        raise MalformedActionError(f"'step' must be 0 or more, got {steps}")
    dx, dy = direction_pixels(direction, steps * WHEEL_CLICK)
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=dx, dy=dy)


def _key(fields: Fields) -> Action:
    return Action(kind=ActionKind.KEY, keys=fields.keys("keys"))


def _done(fields: Fields) -> Action:
    return Action(kind=ActionKind.TERMINATE)


def _write_scroll(writing: Writing, form: ui_tars.PlaceForm) -> str:
    writing.plain()
    direction, steps = writing.wheel_clicks()
    if direction in ("left", "right"):
        raise writing.refusal("it goes up or down")
    place = form.argument("start_box", writing.point())
    return f"scroll({place}, direction='{direction}', step={steps})"


_WORDS: Final[dict[str, ui_tars.Word]] = {
    "left_click": _aimed(ActionKind.CLICK),
    "right_click": _aimed(ActionKind.CLICK, Button.RIGHT),
    "middle_click": _aimed(ActionKind.CLICK, Button.MIDDLE),
    "left_double_click": _aimed(ActionKind.DOUBLE_CLICK),
    "hover": _aimed(ActionKind.MOVE),
    "left_drag": ui_tars.Word(("start_box", "end_box", _INFO), _drag),
    "key": ui_tars.Word(("keys",), _key),
    "type": ui_tars.SHARED_WORDS["type"],
    "scroll": ui_tars.Word(("start_box", "direction", "step", _INFO), _scroll),
    "WAIT": ui_tars.SHARED_WORDS["wait"],
    "DONE": ui_tars.Word((), _done),
    "FAIL": ui_tars.SHARED_WORDS["call_user"],
}
_CALL: Final = re.compile(rf"\b(?:{'|'.join(_WORDS)})\(")


def _extract(body: str) -> Code:
    """Return the call between the box marks, or else the first, up to the memory."""
    box = _BOX.search(body)
    found = box or _CALL.search(body)
    if found is None:
        return Code(body.strip(), "")
    source = body[box.end() if box else found.start() :]
    memory = _MEMORY.search(source)
    source = source.partition(_END_OF_BOX)[0] if box else source[: memory and memory.start()]
    return Code(source.strip(), body[: found.start()].strip().removesuffix("Action:").strip())


GLM_45V: Final = ui_tars.WordFamily(
    "glm-4.5v",
    SpaceKind.NORMALISED,
    ui_tars.Vocabulary(
        prompt=_PROMPT,
        words=_WORDS,
        form=ui_tars.PlaceForm("start_box", "start_box", "end_box", "[{},{}]"),
        clicks={
            (ActionKind.CLICK, Button.LEFT): "left_click",
            (ActionKind.CLICK, Button.RIGHT): "right_click",
            (ActionKind.CLICK, Button.MIDDLE): "middle_click",
            (ActionKind.DOUBLE_CLICK, Button.LEFT): "left_double_click",
            (ActionKind.MOVE, Button.LEFT): "hover",
        },
        writers={
            ActionKind.DRAG: lambda writing, form: (
                "left_" + ui_tars.SHARED_WRITERS[ActionKind.DRAG](writing, form)
            ),
            ActionKind.KEY: lambda writing, form: (
                f"key(keys={writing.joined_keys(KeyColumn.PYAUTOGUI)!r})"
            ),
            ActionKind.TYPE: ui_tars.SHARED_WRITERS[ActionKind.TYPE],
            ActionKind.SCROLL: _write_scroll,
            ActionKind.WAIT: lambda writing, form: ui_tars.SHARED_WRITERS[ActionKind.WAIT](
                writing, form
            ).upper(),
            ActionKind.TERMINATE: lambda writing, form: (
                "DONE()" if writing.action.status is Status.SUCCESS else "FAIL()"
            ),
        },
        extract=_extract,
    ),
    resize=None,
)
