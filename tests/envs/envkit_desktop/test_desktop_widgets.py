"""Each widget does by mouse and keyboard what such a widget does."""

from typing import Any

import pytest

from envkit_actions.action import Action, ActionKind, Button
from envkit_desktop import widgets
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.performing import perform
from envkit_desktop.widgets import Widget, Window

ROWS = tuple(f"row {number}" for number in range(30))


class Scene:
    """One window with widgets, and what its program heard."""

    def __init__(self, *controls: Widget) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.drops: list[str] = []
        self.desk = Desktop(width=672, height=448, program=self._hear)
        window = Window(name="w", title="W", x=100, y=100, width=300, height=250, is_resizable=True)
        window.children.extend(controls)
        self.desk.open(window)

    def _hear(self, desk: Desktop, event: Event) -> bool:
        self.events.append((event.source.name, event.kind, event.value))
        if event.target is not None:
            self.drops.append(event.target.name)
        return False

    @property
    def window(self) -> Window:
        return self.desk.windows[1]

    def at(self, x: int, y: int) -> tuple[int, int]:
        """Return the screen's place of a place in the window's inside."""
        left, top = self.window.child_origin()
        return self.window.x + left + x, self.window.y + top + y

    def do(self, kind: ActionKind, at: tuple[int, int] | None = None, **rest: Any) -> str | None:
        x, y = (None, None) if at is None else self.at(*at)
        return perform(self.desk, Action(kind=kind, x=x, y=y, **rest))

    def click(self, x: int, y: int, kind: ActionKind = ActionKind.CLICK) -> str | None:
        return self.do(kind, (x, y))

    def keys(self, *chords: str) -> None:
        for chord in chords:
            self.do(ActionKind.KEY, keys=tuple(chord.split("+")))

    def type(self, text: str) -> str | None:
        return self.do(ActionKind.TYPE, text=text)


def _box(kind: type[Any], name: str, y: int = 10, height: int = 24, **fields: Any) -> Any:
    return kind(name=name, x=10, y=y, width=200, height=height, **fields)


def test_text_is_typed_selected_cut_and_pasted_elsewhere() -> None:
    first, second = _box(widgets.TextField, "a"), _box(widgets.TextField, "b", 50)
    scene = Scene(first, second)
    scene.click(20, 20)
    scene.type("Hello world")
    scene.click(20, 20, ActionKind.DOUBLE_CLICK)
    assert first.text[slice(*first.selection)] == "Hello"
    scene.keys("ctrl+x", "tab", "ctrl+v", "ctrl+v")
    assert (first.text, second.text) == (" world", "HelloHello")


def test_field_moves_by_keys_and_drags_select() -> None:
    field = _box(widgets.TextField, "a")
    scene = Scene(field)
    scene.click(20, 20)
    scene.type("one two")
    scene.keys("ctrl+left", "shift+end", "delete", "home", "x", "shift+y")
    assert field.text == "xYone "
    start, end = scene.at(12, 20), scene.at(205, 20)
    perform(scene.desk, Action(kind=ActionKind.DRAG, x=start[0], y=start[1], path=(end,)))
    assert field.selection == (0, 6)


def test_area_keeps_lines_and_locked_areas_do_not_change() -> None:
    area = _box(widgets.TextArea, "a", height=60)
    locked = _box(widgets.TextArea, "b", 80, 60, text="secret", is_locked=True)
    scene = Scene(area, locked)
    scene.click(20, 20)
    scene.type("ab\ncd")
    scene.keys("up", "home", "x", "down", "end", "backspace")
    assert area.text == "xab\nc"
    scene.click(20, 90, ActionKind.TRIPLE_CLICK)
    scene.keys("ctrl+x", "delete")
    assert (locked.text, scene.desk.clipboard) == ("secret", "secret")


def test_drag_out_of_an_area_selects_to_its_start_or_end() -> None:
    area = _box(widgets.TextArea, "a", height=60, text="\n".join(ROWS))
    scene = Scene(area)

    def drag(start: tuple[int, int], end: tuple[int, int]) -> None:
        scene.do(ActionKind.DRAG, start, path=(scene.at(*end),))

    drag((13, 18), (100, 75))
    assert area.selection == (0, len(area.text))
    drag((190, 62), (100, 5))
    assert area.selection == (0, len(area.text))
    drag((13, 18), (13, 35))
    assert area.text[slice(*area.selection)] == "row 0\n"


def test_button_acts_on_release_over_it_only() -> None:
    scene = Scene(_box(widgets.Button, "a", text="A"))
    scene.do(ActionKind.MOUSE_DOWN, (20, 20))
    scene.do(ActionKind.MOUSE_UP, (20, 100))
    assert scene.events == []
    scene.click(20, 20)
    assert scene.events == [("a", "clicked", "")]


def test_enter_and_escape_press_default_and_cancel() -> None:
    scene = Scene(
        _box(widgets.Button, "ok", text="OK", is_default=True),
        _box(widgets.Button, "no", 50, text="No", is_cancel=True),
    )
    scene.keys("enter", "escape")
    assert [name for name, _, _ in scene.events] == ["ok", "no"]


def test_disabled_control_ignores_the_press_and_says_so() -> None:
    scene = Scene(_box(widgets.Button, "a", text="A", enabled=False))
    assert scene.click(20, 20) == "that control is disabled"
    assert scene.events == []


def test_checks_toggle_and_radios_exclude_each_other() -> None:
    check = _box(widgets.Check, "c", text="C")
    radios = [_box(widgets.Radio, n, y, text=n, group="g") for n, y in (("r", 40), ("s", 70))]
    scene = Scene(check, *radios)
    scene.click(15, 20)
    scene.click(15, 50)
    scene.click(15, 80)
    assert (check.checked, radios[0].checked, radios[1].checked) == (True, False, True)
    scene.keys("tab", "space")  # back to the first, around the end
    assert not check.checked


def test_dropdown_is_chosen_by_mouse_and_by_keys() -> None:
    dropdown = _box(widgets.Dropdown, "d", options=("red", "green", "blue"))
    scene = Scene(dropdown)
    scene.click(20, 20)
    x, y = scene.desk.menus[0].middle_of(2)
    perform(scene.desk, Action(kind=ActionKind.CLICK, x=x, y=y))
    assert dropdown.text == "blue"
    scene.keys("up")
    assert dropdown.text == "green"
    scene.click(20, 20)
    scene.keys("down", "enter")
    assert dropdown.text == "red"
    scene.click(20, 20)
    scene.click(150, 200)
    assert (dropdown.text, scene.desk.menus) == ("red", [])


def test_list_scrolls_by_wheel_and_thumb_and_keeps_the_choice_in_view() -> None:
    rows = _box(widgets.ListBox, "l", height=102, items=ROWS)
    scene = Scene(rows)
    scene.do(ActionKind.SCROLL, (50, 50), dy=200)
    scene.click(50, 25)
    assert rows.items[rows.selected] == "row 10"
    scene.keys("end")
    assert (rows.selected, rows.offset) == (29, rows.bar.most)
    top = 10 + rows.bar.thumb[0] + 5
    start, end = scene.at(204, top), scene.at(204, 0)
    perform(scene.desk, Action(kind=ActionKind.DRAG, x=start[0], y=start[1], path=(end,)))
    assert rows.offset == 0


def test_table_sorts_numbers_by_value_both_ways() -> None:
    table = _box(
        widgets.Table, "t", height=120, columns=(("N", 100), ("V", 80)),
        rows=(("a", "9"), ("b", "100"), ("c", "25")),
    )  # fmt: skip
    scene = Scene(table)
    scene.click(150, 18)
    assert [row[0] for row in table.rows] == ["a", "c", "b"]
    scene.click(150, 18)
    assert [row[0] for row in table.rows] == ["b", "c", "a"]
    scene.keys("enter")
    assert ("t", "opened", "b") not in scene.events
    scene.click(20, 45)
    scene.keys("enter")
    assert scene.events[-1] == ("t", "opened", "b")


@pytest.mark.parametrize("value", [0, 1, 37, 99, 100])
def test_slider_goes_where_it_is_pressed_and_steps_by_keys(value: int) -> None:
    slider = widgets.Slider(name="s", x=10, y=10, width=256, height=24, value=50)
    scene = Scene(slider)
    scene.click(10 + slider.knob(value), 20)
    assert slider.value == value
    scene.keys("right", "left", "left")
    assert slider.value == max(0, min(100, value + 1) - 2)


def test_spinner_takes_digits_arrows_and_bounds() -> None:
    spinner = _box(widgets.Spinner, "s", high=60)
    scene = Scene(spinner)
    scene.click(20, 20)
    scene.type("4a2")
    assert spinner.value == 42
    scene.keys("up", "pageup", "pageup")
    assert spinner.value == 60
    scene.click(205, 28)
    assert spinner.value == 59


def test_tabs_show_one_page_whose_controls_alone_react() -> None:
    tabs = _box(widgets.Tabs, "t", height=120, titles=("A", "B"), tab_width=60)
    for index, name in enumerate("ab"):
        tabs.page(index).children.append(_box(widgets.Check, name, text=name))
    scene = Scene(tabs)
    scene.click(100, 20)
    scene.click(25, 10 + 24 + 20)
    assert [page.children[0].checked for page in tabs.children] == [False, True]


def test_nested_menu_reports_the_command_of_the_item() -> None:
    inner = (("Deep", "deep", ()),)
    bar = _box(
        widgets.MenuBar, "m", 0, 22, menus=(("File", (("More", "", inner), ("New", "new", ()))),)
    )
    scene = Scene(bar)
    scene.click(20, 10)
    for _ in range(2):
        x, y = scene.desk.menus[-1].middle_of(0)
        perform(scene.desk, Action(kind=ActionKind.CLICK, x=x, y=y))
    assert scene.events == [("m", "command", "deep")]


def test_pane_clips_scrolled_content() -> None:
    pane = _box(widgets.ScrollPane, "p", height=60, content=300)
    pane.children.append(_box(widgets.Check, "low", 200, text="low"))
    scene = Scene(pane)
    scene.click(25, 220)
    assert not pane.children[0].checked
    scene.do(ActionKind.SCROLL, (50, 40), dy=190)
    scene.click(25, 10 + 10 + 12)
    assert pane.children[0].checked


def test_icon_is_dropped_on_another_and_opened_by_two_clicks() -> None:
    first = widgets.Icon(name="f", text="f", x=10, y=10, width=76, height=56)
    second = widgets.Icon(name="g", text="g", mark="folder", x=150, y=10, width=76, height=56)
    scene = Scene(first, second)
    start, end = scene.at(40, 30), scene.at(180, 30)
    perform(scene.desk, Action(kind=ActionKind.DRAG, x=start[0], y=start[1], path=(end,)))
    assert scene.drops == ["g"]
    scene.click(180, 30, ActionKind.DOUBLE_CLICK)
    assert scene.events[-1] == ("g", "opened", "")


def test_context_menu_belongs_to_what_was_pressed() -> None:
    icon = widgets.Icon(
        name="f", text="f", x=10, y=10, width=76, height=56, context=(("Go", "go", ()),)
    )
    scene = Scene(icon)
    scene.do(ActionKind.CLICK, (40, 30), button=Button.RIGHT)
    scene.keys("down", "enter")
    assert scene.events[-1] == ("f", "command", "go")


def test_context_menu_opens_by_the_keyboard_too() -> None:
    icon = widgets.Icon(
        name="f", text="f", x=10, y=10, width=76, height=56, context=(("Go", "go", ()),)
    )
    scene = Scene(icon)
    scene.click(40, 30)
    perform(scene.desk, Action(kind=ActionKind.KEY, keys=("shift", "f10")))
    scene.keys("down", "enter")
    assert scene.events[-1] == ("f", "command", "go")


def test_progress_follows_the_clock_only() -> None:
    bar = _box(widgets.Progress, "p", duration=10.0)
    scene = Scene(bar)
    scene.do(ActionKind.WAIT, seconds=5.0)
    assert bar.percent in (50, 51)
    scene.do(ActionKind.WAIT, seconds=5.0)
    assert scene.events == [("p", "finished", "")]


def test_window_moves_resizes_and_closes() -> None:
    scene = Scene()
    window = scene.window
    perform(scene.desk, Action(kind=ActionKind.DRAG, x=150, y=110, path=((200, 130),)))
    assert (window.x, window.y) == (150, 120)
    perform(scene.desk, Action(kind=ActionKind.DRAG, x=447, y=367, path=((407, 347),)))
    assert (window.width, window.height) == (260, 230)
    perform(scene.desk, Action(kind=ActionKind.CLICK, x=150 + 260 - 11, y=132))
    assert scene.desk.window("w") is None


def test_window_stays_reachable_however_it_is_dragged() -> None:
    scene = Scene()
    perform(scene.desk, Action(kind=ActionKind.DRAG, x=150, y=110, path=((0, 447), (671, 447))))
    assert 0 <= scene.window.y <= 448 - 24
    assert scene.window.x <= 672 - 60


def test_modal_dialog_keeps_presses_from_what_is_below() -> None:
    check = _box(widgets.Check, "c", text="C")
    scene = Scene(check)
    scene.desk.open(Window(name="d", x=420, y=10, width=150, height=90, is_modal=True))
    assert scene.click(15, 20) == "a dialog must be closed first"
    assert not check.checked


def test_lower_window_is_raised_by_a_press() -> None:
    scene = Scene()
    scene.desk.open(Window(name="v", x=120, y=120, width=150, height=90))
    assert not scene.window.is_active
    perform(scene.desk, Action(kind=ActionKind.CLICK, x=110, y=300))
    assert scene.desk.top.name == "w"


def test_text_without_a_focus_goes_nowhere_and_says_so() -> None:
    assert Scene().type("lost") == "no text field has the focus"


def test_ctrl_and_shift_choose_several_rows_of_a_list() -> None:
    rows = widgets.ListBox(
        name="l", items=ROWS, is_multiple=True, x=10, y=10, width=150, height=202
    )
    scene = Scene(rows)

    def press(row: int, *keys: str) -> None:
        scene.do(ActionKind.CLICK, (20, 10 + 1 + 20 * row + 10), keys=keys)

    press(2)
    press(5, "shift")
    assert rows.chosen_rows == (2, 3, 4, 5)
    press(3, "shift")
    assert rows.chosen_rows == (2, 3)
    press(7, "ctrl")
    assert rows.chosen_rows == (2, 3, 7)
    press(2, "ctrl")
    assert rows.chosen_rows == (3, 7)
    press(9, "ctrl", "shift")
    assert rows.chosen_rows == (2, 3, 4, 5, 6, 7, 8, 9)
    press(1)
    assert rows.chosen_rows == (1,)


def test_right_click_toggles_a_row_of_a_multiple_choice_list() -> None:
    rows = widgets.ListBox(
        name="l", items=ROWS, is_multiple=True, x=10, y=10, width=150, height=202
    )
    scene = Scene(rows)

    def press(row: int) -> None:
        scene.do(ActionKind.CLICK, (20, 10 + 1 + 20 * row + 10), button=Button.RIGHT)

    press(2)
    press(5)
    assert rows.chosen_rows == (2, 5)
    press(2)
    assert rows.chosen_rows == (5,)
    rows.is_multiple = False
    press(3)
    assert rows.chosen_rows == (5,)
    assert scene.desk.held == frozenset()


def test_keyboard_chooses_several_rows_of_a_list() -> None:
    rows = widgets.ListBox(
        name="l", items=ROWS, is_multiple=True, x=10, y=10, width=150, height=202
    )
    scene = Scene(rows)
    scene.do(ActionKind.CLICK, (20, 31))

    def key(*keys: str) -> None:
        scene.do(ActionKind.KEY, keys=keys)

    key("shift", "down")
    assert rows.chosen_rows == (0, 1) or rows.chosen_rows == (1, 2)
    first = rows.chosen_rows[0]
    key("ctrl", "down")
    key("ctrl", "down")
    key("ctrl", "space")
    assert rows.chosen_rows == (first, first + 1, first + 3)
    key("down")
    assert rows.chosen_rows == (first + 4,)


def test_held_keys_mean_nothing_to_a_list_of_one_choice_and_end_with_the_action() -> None:
    rows = widgets.ListBox(name="l", items=ROWS, x=10, y=10, width=150, height=202)
    scene = Scene(rows)
    scene.do(ActionKind.CLICK, (20, 31))
    chosen = rows.selected
    scene.do(ActionKind.CLICK, (20, 91), keys=("ctrl",))
    assert rows.selected == chosen + 3
    assert scene.desk.held == frozenset()


def test_shift_extends_a_selection_of_text_by_click_and_drag() -> None:
    field = widgets.TextField(name="f", text="one two three", x=10, y=10, width=200, height=24)
    scene = Scene(field)
    scene.do(ActionKind.CLICK, (16, 20))
    scene.do(ActionKind.CLICK, (200, 20), keys=("shift",))
    assert field.selection == (0, 13)
    scene.do(ActionKind.CLICK, (16, 20))
    assert field.selection == (0, 0)
    start = scene.at(200, 20)
    perform(
        scene.desk,
        Action(
            kind=ActionKind.DRAG,
            x=start[0],
            y=start[1],
            path=(scene.at(17, 20),),
            keys=("shift",),
        ),
    )
    assert field.anchor == 0


def test_ctrl_and_shift_select_several_icons_which_a_right_click_keeps() -> None:
    menu = (("Delete", "delete", ()),)
    icons = [
        widgets.Icon(
            name=f"i{n}", text=f"i{n}", x=10 + 70 * n, y=10, width=60, height=56, context=menu
        )
        for n in range(4)
    ]
    scene = Scene(*icons)

    def press(number: int, *keys: str, button: Button = Button.LEFT) -> list[bool]:
        scene.do(ActionKind.CLICK, (40 + 70 * number, 30), keys=keys, button=button)
        return [icon.selected for icon in icons]

    assert press(0) == [True, False, False, False]
    assert press(2, "ctrl") == [True, False, True, False]
    assert press(2, button=Button.RIGHT) == [True, False, True, False]
    assert press(3, "shift") == [True, False, True, False]  # closes the menu
    assert press(3, "shift") == [True, True, True, True]
    assert press(1, "ctrl") == [True, False, True, True]
    assert press(1) == [False, True, False, False]
