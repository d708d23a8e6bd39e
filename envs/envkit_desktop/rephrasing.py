"""Alternatives for actions that a model family cannot express.

OpenAI's tool waits for one second and UI-TARS for five; UI-TARS scrolls at least 600 pixels; both
it and Qwen's tool cannot hold keys during a click; Qwen2.5-VL and OSWorld give no answers; a phone
has neither a double click nor keys; AutoGLM and Gemini 2.5 type only to replace a text. The
alternatives are several waits, the scroll bar, the keyboard, drags and right clicks, and writing
into a field.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from envkit_actions.action import Action, ActionKind
from envkit_actions.action import Button as MouseButton
from envkit_actions.dialect import Dialect
from envkit_actions.parsed import MAX_ACTIONS
from envkit_actions.writing import DELETE, replacing
from envkit_desktop import moves, widgets
from envkit_desktop.desktop import Desktop
from envkit_desktop.families.family import ANSWER_FIELD
from envkit_desktop.painter import line_height
from envkit_desktop.pointer import hit_test
from envkit_desktop.widgets.scrolling import BAR, Scrolled
from envkit_desktop.widgets.widget import PADDING

_FAR: Final = 600
"""Pixels that every family with a wheel can scroll."""


def rephrased(dialect: Dialect, desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Yield alternative actions with the same effect, or progress towards it, best first."""
    match action.kind:
        case ActionKind.WAIT:
            if len(waits := dialect.waits(action)) <= MAX_ACTIONS:
                yield waits
        case ActionKind.SCROLL:
            yield from _by_bar(desk, action)
        case ActionKind.CLICK if action.keys:
            yield from _by_keyboard(desk, action)
            yield from _by_right_click(desk, action)
        case ActionKind.CLICK if action.button is MouseButton.RIGHT:
            yield [replace(action, button=MouseButton.LEFT), moves.key("shift", "f10")]
        case ActionKind.DOUBLE_CLICK:
            yield [replace(action, kind=ActionKind.CLICK), moves.key("enter")]
        case ActionKind.KEY:
            yield from _by_pointer(desk, action)
        case ActionKind.TYPE:
            yield from _by_replacing(desk, action)
        case ActionKind.ANSWER:
            yield from _in_writing(desk, action)
        case _:
            return


def _by_bar(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Press the track for long distances, or else an arrow repeatedly."""
    if action.x is None or action.y is None:
        return
    hit = hit_test(desk, action.x, action.y)
    for widget, _, _ in reversed(hit.chain if hit is not None else []):
        if not isinstance(widget, Scrolled) or not widget.bar.most:
            continue
        bar, left = widget.bar, widget.width - BAR
        is_far = abs(action.dy) >= bar.length
        inset = BAR if is_far else 0
        top = widget.bar_top + (bar.length - inset - BAR if action.dy > 0 else inset)
        presses = moves.press(desk, widget, part=(left, top, left + BAR, top + BAR))
        press = next(presses, None)
        if press is not None:
            yield [press] * (1 if is_far else max(1, round(abs(action.dy) / bar.step)))
        return


def _by_keyboard(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Move through a list with ctrl and arrows and toggle the row, or extend to it with shift."""
    if action.x is None or action.y is None:
        return
    hit = hit_test(desk, action.x, action.y)
    widget, _, top = hit.chain[-1] if hit is not None else (None, 0, 0)
    if not isinstance(widget, widgets.ListBox):
        return
    if not widget.focused:
        yield [moves.key("tab")]
        return
    away = widget.row_at(action.y - top) - widget.selected
    arrow = "down" if away > 0 else "up"
    if action.keys == ("shift",):
        yield [moves.key("shift", arrow)] * abs(away)
    elif action.keys == ("ctrl",):
        yield [moves.key("ctrl", arrow)] * abs(away) + [moves.key("ctrl", "space")]


def _by_right_click(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Add a row of a list; for a shift selection, its end first."""
    if action.x is None or action.y is None:
        return
    hit = hit_test(desk, action.x, action.y)
    if hit is not None and isinstance(hit.chain[-1][0], widgets.ListBox):
        yield [replace(action, button=MouseButton.RIGHT, keys=())]


def _by_pointer(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Select a whole text by a drag, empty it, or move a slider's knob to where a key would."""
    focus = desk.focus
    if action == DELETE:
        yield replacing("")
    elif action.keys == ("ctrl", "a") and isinstance(focus, widgets.TextField | widgets.TextArea):
        yield from _select_by_drag(desk, focus)
    elif action.keys in (("left",), ("right",)) and isinstance(focus, widgets.Slider):
        step = focus.step if action.keys == ("right",) else -focus.step
        at = focus.knob(focus.value + step)
        press = next(moves.press(desk, focus, part=(at, 2, at + 1, focus.height - 2)), None)
        if press is not None:
            yield [press]


def _select_by_drag(
    desk: Desktop, editor: widgets.TextField | widgets.TextArea
) -> Iterator[list[Action]]:
    """Drag from the start to the far corner, or from the end backwards if the text is scrolled."""
    line = line_height(desk.type_pixels)
    bottom, right = editor.height - PADDING, editor.width - BAR
    part = (1, PADDING, PADDING, min(bottom, PADDING + line))
    far = (desk.width - 1, desk.height - 1)
    if editor.offset:
        part, far = (right - PADDING, max(PADDING, bottom - line), right - 1, bottom), (0, 0)
    press = next(moves.press(desk, editor, part=part), None)
    if press is None:
        return
    if moves.visible_point(desk, editor, part) != (press.x, press.y):
        yield [press]
    elif editor.offset and isinstance(editor, widgets.TextArea) and not editor.is_at_end(desk):
        yield [Action(kind=ActionKind.SCROLL, x=press.x, y=press.y, dy=_FAR)]
    else:
        yield [replace(press, kind=ActionKind.DRAG, path=(far,))]


def _by_replacing(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Select all of the focused field before typing, and press the field before that."""
    yield replacing(action.text)
    if desk.focus is not None:
        for press in moves.press(desk, desk.focus):
            yield [press, *replacing(action.text)]


def _in_writing(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Type the answer into its field, then press the button next to it."""
    for window in desk.windows:
        named: dict[str, widgets.Widget] = {widget.name: widget for widget in widgets.walk(window)}
        field, button = named.get(ANSWER_FIELD), named.get("Send")
        if isinstance(field, widgets.TextField) and isinstance(button, widgets.Button):
            actions = [*moves.fill(desk, field, action.text), *moves.press(desk, button)]
            yield actions[:1]
            return
