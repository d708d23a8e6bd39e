"""Other ways to do what a model family has no words for.

OpenAI's tool waits for one second and UI-TARS for five; UI-TARS turns the wheel by 600 pixels and
no less; both it and Qwen's tool hold no keys during a click; Qwen2.5-VL and OSWorld give no
answers. On a screen the same can be had otherwise: by several waits, by the scroll bar, by the
keyboard, by writing into a field.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from envkit_computer_use import hands
from envkit_computer_use.actions.action import Action, ActionKind
from envkit_computer_use.actions.parsed import MAX_ACTIONS
from envkit_computer_use.desktop import Desktop
from envkit_computer_use.families.family import ANSWER_FIELD
from envkit_computer_use.pointer import hit_test
from envkit_computer_use.widgets import Button, ListBox, TextField, Widget, walk
from envkit_computer_use.widgets.scrolling import BAR, Scrolled

_WAITS: Final = (5.0, 1.0)
"""Seconds that families wait for, the longer first."""


def rephrased(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Yield other actions that do the same, or bring it nearer, the best first."""
    match action.kind:
        case ActionKind.WAIT:
            yield from _in_parts(action)
        case ActionKind.SCROLL:
            yield from _by_bar(desk, action)
        case ActionKind.CLICK if action.keys:
            yield from _by_keyboard(desk, action)
        case ActionKind.ANSWER:
            yield from _in_writing(desk, action)
        case _:
            return


def _in_parts(action: Action) -> Iterator[list[Action]]:
    for seconds in _WAITS:
        count = -(-action.seconds // seconds)
        if count <= MAX_ACTIONS:
            yield [replace(action, seconds=seconds)] * int(count)


def _by_bar(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Press the track where the way is long, else an arrow as often as it takes."""
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
        presses = hands.press(desk, widget, part=(left, top, left + BAR, top + BAR))
        press = next(presses, None)
        if press is not None:
            yield [press] * (1 if is_far else max(1, round(abs(action.dy) / bar.step)))
        return


def _by_keyboard(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Walk through a list with ctrl and the arrows and toggle the row, or extend to it by shift."""
    if action.x is None or action.y is None:
        return
    hit = hit_test(desk, action.x, action.y)
    widget, _, top = hit.chain[-1] if hit is not None else (None, 0, 0)
    if not isinstance(widget, ListBox):
        return
    if not widget.focused:
        yield [hands.key("tab")]
        return
    away = widget.row_at(action.y - top) - widget.selected
    arrow = "down" if away > 0 else "up"
    if action.keys == ("shift",):
        yield [hands.key("shift", arrow)] * abs(away)
    elif action.keys == ("ctrl",):
        yield [hands.key("ctrl", arrow)] * abs(away) + [hands.key("ctrl", "space")]


def _in_writing(desk: Desktop, action: Action) -> Iterator[list[Action]]:
    """Write the answer into the field for it, then press the button beside it."""
    for window in desk.windows:
        named: dict[str, Widget] = {widget.name: widget for widget in walk(window)}
        field, button = named.get(ANSWER_FIELD), named.get("Send")
        if isinstance(field, TextField) and isinstance(button, Button):
            moves = [*hands.fill(desk, field, action.text), *hands.press(desk, button)]
            yield moves[:1]
            return
