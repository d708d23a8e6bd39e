"""The mouse: what is under it, presses, drags, releases and the wheel."""

from typing import Final, NamedTuple

from envkit_actions.action import Button as MouseButton
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.widgets import Icon, ListBox, Widget, Window

_DRAG_PIXELS: Final = 6
"""Minimum distance between press and release of a drag to another widget."""


class Hit(NamedTuple):
    """Widgets at a point of the screen."""

    window: Window
    chain: list[tuple[Widget, int, int]]
    """From the window down to the deepest widget, with their places on the screen."""


def hit_test(desk: Desktop, x: int, y: int) -> Hit | None:
    """Return what a press at (x, y) would reach; None if a modal dialog blocks it."""
    for window in reversed(desk.windows):
        if window.holds(x - window.x, y - window.y):
            modal = desk.modal
            if modal is not None and window is not modal:
                return None
            return Hit(window, _chain(window, window.x, window.y, x, y))
    return None


def _chain(widget: Widget, left: int, top: int, x: int, y: int) -> list[tuple[Widget, int, int]]:
    found = [(widget, left, top)]
    box = widget.child_box()
    if not (box[0] <= x - left < box[2] and box[1] <= y - top < box[3]):
        return found
    origin = widget.child_origin()
    for child in reversed(widget.children):
        child_left, child_top = left + origin[0] + child.x, top + origin[1] + child.y
        if child.visible and child.holds(x - child_left, y - child_top):
            return found + _chain(child, child_left, child_top, x, y)
    return found


def press(desk: Desktop, x: int, y: int, button: MouseButton, clicks: int) -> str | None:
    """Press a button; return why nothing happened, or None."""
    move(desk, x, y)
    if desk.menus:
        return _press_menu(desk, x, y)
    hit = hit_test(desk, x, y)
    if hit is None:
        return "a dialog must be closed first"
    desk.raise_window(hit.window)
    widget, left, top = hit.chain[-1]
    if not widget.enabled:
        return "that control is disabled"
    if button is MouseButton.RIGHT:
        _open_context(desk, hit, x, y)
    elif button is MouseButton.LEFT:
        desk.set_focus(widget if widget.takes_focus else None)
        desk.capture, desk.pressed_at = widget, (x, y)
        widget.press(desk, x - left, y - top, clicks)
    return None


def _press_menu(desk: Desktop, x: int, y: int) -> None:
    for menu in reversed(desk.menus):
        row = menu.row_at(x, y)
        if row >= 0:
            desk.choose(menu, row)
            return
    desk.menus.clear()


def _open_context(desk: Desktop, hit: Hit, x: int, y: int) -> None:
    """Select the widget under the pointer, then open its context menu or its parent's."""
    deepest, left, top = hit.chain[-1]
    if isinstance(deepest, ListBox) and deepest.is_multiple:
        _toggle_row(desk, deepest, x - left, y - top)
        return
    is_one_of_several = isinstance(deepest, Icon) and deepest.selected
    if deepest.context and not is_one_of_several:
        deepest.press(desk, x - left, y - top, 1)
        deepest.release(desk, -1, -1)
    for widget, left, top in reversed(hit.chain):
        if widget.context:
            desk.open_menu(widget, widget.context, x - left, y - top, 0)
            return


def _toggle_row(desk: Desktop, rows: ListBox, x: int, y: int) -> None:
    """Toggle a row, as ctrl does: touch screens have no ctrl."""
    held, desk.held = desk.held, frozenset({"ctrl"})
    desk.set_focus(rows)
    rows.press(desk, x, y, 1)
    rows.release(desk, -1, -1)
    desk.held = held


def move(desk: Desktop, x: int, y: int) -> None:
    """Move the pointer; the pressed widget follows."""
    desk.pointer = (x, y)
    widget = desk.capture
    origin = None if widget is None else desk.origin_of(widget)
    if widget is None or origin is None:
        return
    widget.drag(desk, x - origin[0], y - origin[1])
    if isinstance(widget, Window):
        desk.keep_reachable(widget)


def release(desk: Desktop) -> None:
    """Release the left button where the pointer is."""
    widget, desk.capture = desk.capture, None
    origin = None if widget is None else desk.origin_of(widget)
    if widget is None or origin is None:
        return
    x, y = desk.pointer
    widget.release(desk, x - origin[0], y - origin[1])
    way = max(abs(x - desk.pressed_at[0]), abs(y - desk.pressed_at[1]))
    if widget.is_draggable and way >= _DRAG_PIXELS:
        _drop(desk, widget, x, y)


def _drop(desk: Desktop, widget: Widget, x: int, y: int) -> None:
    source, hit = desk.window_of(widget), hit_test(desk, x, y)
    if source is None or hit is None or hit.chain[-1][0] is widget:
        return
    desk.tell(Event(window=source, source=widget, kind="dropped", target=hit.chain[-1][0]))


def click(desk: Desktop, x: int, y: int, button: MouseButton, times: int = 1) -> str | None:
    """Press and release one or several times; return why nothing happened, or None."""
    note: str | None = None
    for clicks in range(1, times + 1):
        note = press(desk, x, y, button, clicks)
        release(desk)
    return note


def scroll(desk: Desktop, x: int, y: int, dx: int, dy: int) -> str | None:
    """Scroll the innermost widget that can; return why none did, or None."""
    move(desk, x, y)
    if desk.menus:
        desk.menus.clear()
    hit = hit_test(desk, x, y)
    if hit is None:
        return "a dialog must be closed first"
    for widget, _, _ in reversed(hit.chain):
        if widget.enabled and widget.wheel(desk, dx, dy):
            return None
    return "nothing scrolled there"
