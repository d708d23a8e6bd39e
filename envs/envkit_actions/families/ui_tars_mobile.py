"""UI-TARS 1.5 on a phone: taps, long presses, scrolls and drags, without mouse and keyboard.

Words and syntax are those of `MOBILE_USE_DOUBAO` in bytedance/UI-TARS, codes/ui_tars/prompt.py;
`press_enter`, `wait` and `call_user` come from table 1 of the paper (arXiv 2501.12326). Here a long
press is a right click, as on desktop touch screens, and `press_back` is Escape. `open_app` and
`press_home` are rejected with a reason.
"""

from typing import Final

from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.families import ui_tars
from envkit_actions.fields import Fields
from envkit_actions.spaces import SpaceKind
from envkit_actions.writing import Writing

_PROMPT: Final = """\
You operate a screen by touch and see it. Reply in this form, with one action:
Thought: what you see and what you do next
Action: one of the following
click(point='<point>x y</point>') # a tap
long_press(point='<point>x y</point>') # opens menus, like the right button of a mouse
type(content='text') # \\n at the end presses Enter; write \\' for a quote
scroll(point='<point>x y</point>', direction='down') # or up, left, right: where to see more
drag(start_point='<point>x1 y1</point>', end_point='<point>x2 y2</point>') # moves and selects
press_back() # closes menus and dialogs, like Escape
press_enter()
wait() # 5 seconds
finished(content='answer') # the task is done; finished() if it asks for no answer
call_user() # the task cannot be done
The screen spans {width} across and {height} down, from (0,0) at the top left.
"""
_KEYS: Final = {"escape": "press_back", "enter": "press_enter"}
_REFUSED: Final = {
    "open_app": "there are no apps to open: what the task needs is on the screen, and a tap brings "
    "a window to the front",
    "press_home": "there is no home screen: use the windows on the screen, or press_back()",
}


def _key(key: str) -> ui_tars.Word:
    def read(fields: Fields) -> Action:
        return Action(kind=ActionKind.KEY, keys=(key,))

    return ui_tars.Word((), read)


def _write_key(writing: Writing, form: ui_tars.PlaceForm) -> str:
    keys = writing.action.keys
    word = _KEYS.get(keys[0]) if len(keys) == 1 else None
    if word is None:
        raise writing.refusal(f"its keys are {', '.join(_KEYS.values())}, got {'+'.join(keys)}")
    return f"{word}()"


UI_TARS_15_MOBILE: Final = ui_tars.WordFamily(
    "ui-tars-1.5-mobile",
    SpaceKind.RESIZED,
    ui_tars.Vocabulary(
        prompt=_PROMPT,
        words={
            **ui_tars.SHARED_WORDS,
            "long_press": ui_tars.click(ActionKind.CLICK, Button.RIGHT, extras=("time",)),
            **{word: _key(key) for key, word in _KEYS.items()},
        },
        form=ui_tars.PlaceForm("point", "start_point", "end_point", "<point>{} {}</point>"),
        clicks={
            (ActionKind.CLICK, Button.LEFT): "click",
            (ActionKind.CLICK, Button.RIGHT): "long_press",
        },
        writers={**ui_tars.SHARED_WRITERS, ActionKind.KEY: _write_key},
        refused=_REFUSED,
    ),
)
