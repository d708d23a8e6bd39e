"""Input moves of the oracle: each reads the state and yields the actions still needed.

Each function yields the next actions towards its goal, and nothing once the goal is reached. A plan
chains them; only its first action is played, then the plan is rebuilt. A plan can therefore resume
from any state.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from envkit_actions.action import Action, ActionKind, Button
from envkit_actions.writing import WHEEL_CLICK
from envkit_desktop import widgets
from envkit_desktop.desktop import Desktop, placed
from envkit_desktop.painter import Box, intersect
from envkit_desktop.pointer import hit_test
from envkit_desktop.widgets import Widget, Window
from envkit_desktop.widgets.tables import HEADER
from envkit_desktop.widgets.widget import ROW
from envkit_desktop.widgets.window import TITLE

Moves = Iterator[Action]
Control = widgets.Check | widgets.Slider | widgets.Spinner | widgets.TextField | widgets.Dropdown
Value = bool | int | str
_GRID = (0.5, 0.25, 0.75, 0.08, 0.92)
_AROUND = ((0, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))


def key(*keys: str) -> Action:
    """Return a key press."""
    return Action(kind=ActionKind.KEY, keys=keys)


def _box_of(desk: Desktop, widget: Widget) -> Box:
    origin = desk.origin_of(widget) or (0, 0)
    return origin[0], origin[1], origin[0] + widget.width, origin[1] + widget.height


def visible_point(desk: Desktop, widget: Widget, part: Box | None = None) -> tuple[int, int] | None:
    """Return a screen point where a press reaches the widget; None if there is none.

    The surrounding pixels reach the widget too: some dialects cannot name every pixel.

    Args:
        desk: The desktop.
        widget: The widget to reach.
        part: Part of the widget, relative to it; None means all of it.
    """
    left, top, right, bottom = _box_of(desk, widget)
    if part is not None:
        left, top, right, bottom = left + part[0], top + part[1], left + part[2], top + part[3]
    shown = intersect((left, top, right, bottom), (0, 0, desk.width, desk.height))
    if shown is None:
        return None
    for down in _GRID:
        for across in _GRID:
            x = shown[0] + int((shown[2] - shown[0] - 1) * across)
            y = shown[1] + int((shown[3] - shown[1] - 1) * down)
            if all(_reaches(desk, widget, x + dx, y + dy) for dx, dy in _AROUND):
                return x, y
    return None


def _reaches(desk: Desktop, widget: Widget, x: int, y: int) -> bool:
    hit = hit_test(desk, x, y)
    return hit is not None and hit.chain[-1][0] is widget


def reach(desk: Desktop, widget: Widget, part: Box | None = None) -> Moves:
    """Make a widget visible: close menus, raise its window, open its tab, scroll to it."""
    if desk.menus:
        yield key("escape")
    window = desk.window_of(widget)
    if window is None:
        return
    if visible_point(desk, widget, part) is not None:
        return
    yield from _uncover(desk, window)
    for parent, child in pairwise(_ancestors(window, widget)):
        if isinstance(parent, widgets.Tabs) and not child.visible:
            yield from tab(desk, parent, parent.children.index(child))
        if isinstance(parent, widgets.ScrollPane):
            yield from _scroll_to(desk, parent, widget)


def _uncover(desk: Desktop, window: Window) -> Moves:
    """Raise a window by a harmless press, or move windows that cover it."""
    if window is desk.top:
        left, top, right, bottom = _box_of(desk, window)
        is_inside = min(left, top) >= 0 and right <= desk.width and bottom <= desk.height
        if not is_inside and not window.is_pinned:
            yield from move_window(desk, window, (20, 20))
        return
    bar = None
    if not window.is_pinned:
        bar = visible_point(desk, window, (8, 2, window.width - 30, TITLE - 2))
        bar = bar or visible_point(desk, window, (0, TITLE, window.width, window.height))
    if bar is not None:
        yield Action(kind=ActionKind.CLICK, x=bar[0], y=bar[1])
        return
    box = _box_of(desk, window)
    for other in reversed(desk.windows):
        if other is window:
            return
        if intersect(box, _box_of(desk, other)) is not None:
            yield from move_window(desk, other, _away_from(desk, box, other))
            return


def _away_from(desk: Desktop, box: Box, other: Window) -> tuple[int, int]:
    """Return a position where a window leaves the box free, or most of it."""
    across = (4, desk.width - other.width - 4, 70 - other.width, desk.width - 70)
    down = (4, desk.height - other.height - 4, desk.height - TITLE)

    def overlap(place: tuple[int, int]) -> int:
        x, y = place
        common = intersect(box, (x, y, x + other.width, y + other.height))
        return 0 if common is None else (common[2] - common[0]) * (common[3] - common[1])

    return min(((x, y) for x in across for y in down), key=overlap)


def _ancestors(root: Widget, target: Widget) -> list[Widget]:
    if root is target:
        return [root]
    for child in root.children:
        found = _ancestors(child, target)
        if found:
            return [root, *found]
    return []


def _scroll_to(desk: Desktop, pane: widgets.ScrollPane, widget: Widget) -> Moves:
    places = {id(item): y for item, _, y in placed(pane)}
    inside = places[id(widget)] - places[id(pane)] + pane.offset
    way = _way(pane, inside - (pane.height - widget.height) // 2)
    if way:
        left, top, right, bottom = _box_of(desk, pane)
        yield Action(kind=ActionKind.SCROLL, x=(left + right) // 2, y=(top + bottom) // 2, dy=way)


def _way(widget: widgets.ScrollPane | widgets.ListBox | widgets.Table, wanted: int) -> int:
    """Return the whole wheel clicks, in pixels, that come closest to an offset.

    At least one click; at the ends it scrolls only the remaining distance.
    """
    away = widget.bar.clamp(wanted) - widget.offset
    clicks = max(1, round(abs(away) / WHEEL_CLICK))
    return clicks * WHEEL_CLICK * (1 if away > 0 else -1)


def press(
    desk: Desktop,
    widget: Widget,
    *,
    part: Box | None = None,
    kind: ActionKind = ActionKind.CLICK,
    button: Button = Button.LEFT,
    keys: tuple[str, ...] = (),
) -> Moves:
    """Click on a widget, or on a part of it, with keys held."""
    yield from reach(desk, widget, part)
    point = visible_point(desk, widget, part)
    if point is not None:
        yield Action(kind=kind, x=point[0], y=point[1], button=button, keys=keys)


def fill(desk: Desktop, field: widgets.TextField | widgets.TextArea, text: str) -> Moves:
    """Set a field to a text."""
    if field.text == text:
        return
    if not field.focused or desk.top is not desk.window_of(field):
        yield from press(desk, field)
    if field.selection != (0, len(field.text)):
        yield key("ctrl", "a")
    if text:
        yield Action(kind=ActionKind.TYPE, text=text)
    yield key("delete")


def check(desk: Desktop, box: widgets.Check | widgets.Radio, *, on: bool = True) -> Moves:
    """Tick a box or choose a radio button."""
    if box.checked != on:
        yield from press(desk, box)


def choose(desk: Desktop, dropdown: widgets.Dropdown, option: str) -> Moves:
    """Choose an option of a dropdown."""
    if dropdown.text == option:
        return
    if desk.menus and desk.menus[0].owner == dropdown.name:
        x, y = desk.menus[0].middle_of(dropdown.options.index(option))
        yield Action(kind=ActionKind.CLICK, x=x, y=y)
    yield from press(desk, dropdown)


def slide(desk: Desktop, slider: widgets.Slider, value: int) -> Moves:
    """Set a slider: by a press on its track, then by arrow keys."""
    if slider.value == value:
        return
    if slider.focused and abs(slider.value - value) <= 4 * slider.step:
        yield key("right" if slider.value < value else "left")
    at = slider.knob(value)
    yield from press(desk, slider, part=(at, 2, at + 1, slider.height - 2))


def spin(desk: Desktop, spinner: widgets.Spinner, value: int) -> Moves:
    """Set a spinner by typing the number."""
    if spinner.value == value:
        return
    if spinner.focused and not spinner.typed:
        yield Action(kind=ActionKind.TYPE, text=str(value))
    yield from press(desk, spinner, part=(2, 2, spinner.width - 22, spinner.height - 2))


def set_control(desk: Desktop, control: Control, value: Value) -> Moves:
    """Set a control of a form; a dropdown cannot be emptied."""
    match control, value:
        case widgets.Check(), bool():
            yield from check(desk, control, on=value)
        case widgets.Slider(), int():
            yield from slide(desk, control, value)
        case widgets.Spinner(), int():
            yield from spin(desk, control, value)
        case widgets.TextField(), str():
            yield from fill(desk, control, value)
        case widgets.Dropdown(), str() if value:
            yield from choose(desk, control, value)
        case _:
            return


def tab(desk: Desktop, tabs: widgets.Tabs, index: int) -> Moves:
    """Open a page."""
    if tabs.selected != index:
        left = index * tabs.tab_width
        yield from press(desk, tabs, part=(left + 4, 4, left + tabs.tab_width - 4, 20))


def row(desk: Desktop, rows: widgets.ListBox | widgets.Table, index: int) -> Moves:
    """Choose a row alone, scrolling to it."""
    if rows.selected != index:
        yield from press_row(desk, rows, index)


def press_row(
    desk: Desktop,
    rows: widgets.ListBox | widgets.Table,
    index: int,
    *,
    kind: ActionKind = ActionKind.CLICK,
    keys: tuple[str, ...] = (),
) -> Moves:
    """Click on a row even if it is already chosen, scrolling to it."""
    header = HEADER if isinstance(rows, widgets.Table) else 0
    top = index * ROW - rows.offset + header
    if top < header or top + ROW > rows.height:
        yield from reach(desk, rows)
        point = visible_point(desk, rows)
        if point is not None:
            way = _way(rows, index * ROW - (rows.height - header) // 2)
            yield Action(kind=ActionKind.SCROLL, x=point[0], y=point[1], dy=way)
    part = (4, top + 3, rows.width - 20, top + ROW - 3)
    yield from press(desk, rows, part=part, kind=kind, keys=keys)


def menu(desk: Desktop, bar: widgets.MenuBar, path: Sequence[str]) -> Moves:
    """Choose an item by the texts that lead to it, the menu's title first."""
    titles = [title for title, _ in bar.menus]
    if not desk.menus or desk.menus[0].items != bar.menus[titles.index(path[0])][1]:
        for left, right, title in bar.titles(desk.type_pixels):
            if title == path[0]:
                yield from press(desk, bar, part=(left + 2, 2, right - 2, bar.height - 2))
        return
    yield from items(desk, path[1:])


def items(desk: Desktop, path: Sequence[str]) -> Moves:
    """Choose an item of the open menus by the texts that lead to it."""
    open_menus = desk.menus
    for depth, text in enumerate(path):
        texts = [item[0] for item in open_menus[depth].items]
        if text not in texts:
            yield key("escape")
            return
        index = texts.index(text)
        if depth + 1 < len(open_menus) and open_menus[depth].highlighted == index:
            continue
        x, y = open_menus[depth].middle_of(index)
        yield Action(kind=ActionKind.CLICK, x=x, y=y)
        return


def context(desk: Desktop, widget: Widget, path: Sequence[str]) -> Moves:
    """Choose an item of a widget's context menu."""
    if desk.menus and desk.menus[0].owner == widget.name and widget.context == desk.menus[0].items:
        yield from items(desk, path)
        return
    yield from press(desk, widget, button=Button.RIGHT)


def drop(desk: Desktop, icon: widgets.Icon, target: Widget) -> Moves:
    """Drag an icon onto a widget."""
    yield from reach(desk, icon)
    yield from reach(desk, target)
    start, end = visible_point(desk, icon), visible_point(desk, target)
    if start is not None and end is not None:
        yield Action(kind=ActionKind.DRAG, x=start[0], y=start[1], path=(end,))


def move_window(desk: Desktop, window: Window, to: tuple[int, int]) -> Moves:
    """Drag a window so that its corner reaches a position."""
    point = visible_point(desk, window, (8, 2, window.width - 30, TITLE - 2))
    if point is None:
        if window is not desk.top:
            yield from _uncover(desk, window)
        return
    end = (
        max(0, min(desk.width - 1, point[0] + to[0] - window.x)),
        max(0, min(desk.height - 1, point[1] + to[1] - window.y)),
    )
    yield Action(kind=ActionKind.DRAG, x=point[0], y=point[1], path=(end,))


def close_window(desk: Desktop, window: Window) -> Moves:
    """Press the closing box."""
    x, y = window.close_box()
    part = (x - 5, y - 5, x + 5, y + 5)
    yield from reach(desk, window, part)
    yield from press(desk, window, part=part)
