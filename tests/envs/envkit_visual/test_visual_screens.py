"""Rules of the screens: gestures, the hit test, and what a click, a drag or a text does."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from envkit_visual.answers import at
from envkit_visual.canvas import SIDE
from envkit_visual.screens import WORLDS
from envkit_visual.screens.clicks import (
    SAVE,
    Entry,
    Form,
    FormState,
    Keypad,
    KeypadState,
    Menu,
    MenuState,
    Scroll,
    Target,
    TargetState,
)
from envkit_visual.screens.drags import Drag, DragState, Slider, Sliders, SliderState
from envkit_visual.screens.screen import (
    Gesture,
    Kind,
    Verb,
    Widget,
    hit,
    read_gesture,
)
from envkit_visual.world import LEVELS

HALF = SIDE / 2
FORM = FormState(
    entries=(
        Entry(name="City", kind=Kind.FIELD, goal="Oslo 12", value=""),
        Entry(name="Size", kind=Kind.RADIO, goal="M", value=""),
        Entry(name="News", kind=Kind.CHECK, goal="no", value="yes"),
    ),
    card=(("City", "Oslo 12"), ("Size", "M"), ("News", "no")),
    is_card_left=True,
    top=100,
)
DRAG = DragState(
    files=("mars", "moon"),
    folders=("Work", "Home"),
    cells=(0, 5, 10, 15),
    note=((1, 0), (0, 1)),
    is_note_left=False,
)
SLIDERS = SliderState(
    sliders=(
        Slider(name="Bass", left=100, width=240, low=10, high=20, value=10, goal=15),
        Slider(name="Heat", left=100, width=240, low=0, high=10, value=4, goal=4),
    ),
    card=(1, 0),
    is_card_below=True,
)
KEYPAD = KeypadState(
    code="407",
    entered="",
    orders=("0123456789<", "<9876543210"),
    presses=0,
    left=20,
    top=20,
    is_code_below=True,
)


def by_key(widgets: list[Widget], key: str) -> Widget:
    return next(widget for widget in widgets if widget.key == key)


def click(widget: Widget) -> str:
    return f"click {at(widget.center)}"


def play(world: Any, state: Any, actions: Iterable[str]) -> Any:
    """Return the state after some actions, all of them valid."""
    for action in actions:
        outcome = world.act(state, action)
        assert outcome.error is None, action
        state = outcome.state
    return state


def fewest(world: Any, start: Any, actions: Callable[[Any], Iterable[str]]) -> int:
    """Return the fewest actions to a solved state, by trying all of them."""
    seen, layer, depth = {start}, [start], 0
    while True:
        if any(world.is_solved(state) for state in layer):
            return depth
        after = [world.act(state, action).state for state in layer for action in actions(state)]
        layer = list(dict.fromkeys(state for state in after if state not in seen))
        seen.update(layer)
        depth += 1


def clicks(world: Any, state: Any) -> list[str]:
    """Return clicks on all widgets that do something."""
    return [click(widget) for widget in world.widgets(state) if widget.key]


@pytest.mark.parametrize(
    ("text", "gesture"),
    [
        ("click 500, 250", Gesture(verb=Verb.CLICK, start=(HALF, HALF / 2))),
        ("Click (500 250)", Gesture(verb=Verb.CLICK, start=(HALF, HALF / 2))),
        (
            "drag 0, 0 to 1000, 500",
            Gesture(verb=Verb.DRAG, start=(0.0, 0.0), end=(SIDE, HALF)),
        ),
        ("type click 1, 2", Gesture(verb=Verb.TYPE, text="click 1, 2")),
        ("scroll down 12", Gesture(verb=Verb.SCROLL, rows=12)),
        ("SCROLL UP 3", Gesture(verb=Verb.SCROLL, rows=-3)),
        ("click", None),
        ("click 1001, 5", None),
        ("click -1, 5", None),
        ("click 5", None),
        ("drag 1, 2", None),
        ("drag 1, 2 to", None),
        ("type", None),
        ("scroll down", None),
        ("scroll left 3", None),
        ("scroll down 1e3", None),
        ("scroll down \u0661", None),
        ("press 1, 2", None),
    ],
)
def test_gesture_is_read_from_its_text(text: str, gesture: Gesture | None) -> None:
    assert read_gesture(text) == gesture


def test_mark_has_the_units_of_the_canvas() -> None:
    assert Target().act(_target(), "click 500, 250").mark == {"kind": "click", "x": 224, "y": 112}
    mark = Drag().act(DRAG, "drag 0, 0 to 1000, 500").mark
    assert mark == {"kind": "drag", "path": [[0, 0], [448, 224]]}


def test_hit_test_takes_the_topmost_widget_but_no_label() -> None:
    boxes = [(0, 0, 100, 100), (10, 10, 50, 50), (10, 10, 90, 90)]
    kinds = (Kind.WINDOW, Kind.BUTTON, Kind.LABEL)
    widgets = [Widget(kind=kind, box=box) for kind, box in zip(kinds, boxes, strict=True)]
    assert hit(widgets, (20, 20)) is widgets[1]
    assert hit(widgets, (60, 60)) is widgets[0]
    assert hit(widgets, (100, 20)) is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_widgets_are_on_the_screen_and_do_not_overlap(world: Any, level: int) -> None:
    """Windows hold widgets, panels hold items, and handles lie on tracks."""
    for seed in range(20):
        state = world().create(random.Random(seed), world.levels[level - 1])
        while True:
            widgets = world().widgets(state)
            for widget in widgets:
                left, top, right, bottom = widget.box
                assert 0 <= left < right <= SIDE, widget
                assert 0 <= top < bottom <= SIDE, widget
            active = [widget.box for widget in widgets if widget.key]
            for index, (left, top, right, bottom) in enumerate(active):
                for other in active[:index]:
                    apart = other[0] >= right or other[2] <= left
                    assert apart or other[1] >= bottom or other[3] <= top
            plan = world().plan(state)
            if not plan:
                break
            state = play(world(), state, plan[:1])


def _target(**changes: Any) -> TargetState:
    state = TargetState(labels=("Save 1", "Save 2"), places=((20, 50), (20, 90)), target=1)
    return replace(state, **changes)


def test_target_takes_one_click() -> None:
    world, state = Target(), _target()
    for spot, solved in (((46, 98), True), ((46, 58), False), ((200, 300), False), ((2, 2), False)):
        after = play(world, state, [f"click {at(spot)}"])
        assert (world.is_solved(after), world.is_over(after)) == (solved, True)
        assert world.plan(after) == []


@pytest.mark.parametrize("level", LEVELS)
def test_target_is_at_most_half_a_percent_of_the_picture(level: int) -> None:
    state = Target().create(random.Random(level), Target.levels[level - 1])
    left, top, right, bottom = Target().widgets(state)[1].box
    assert (right - left) * (bottom - top) <= 0.005 * SIDE**2


def test_form_needs_a_focus_to_type() -> None:
    world = Form()
    outcome = world.act(FORM, "type Oslo 12")
    assert (outcome.state, outcome.text) == (FORM, "No text field has the focus.")
    focused = play(world, FORM, [click(by_key(world.widgets(FORM), "0"))])
    typed = play(world, focused, ["type Lima", "type Oslo 12"])
    assert typed.entries[0].value == "Oslo 12"
    assert world.act(focused, "type oslo 12").state.entries[0].value == "oslo 12"
    unfocused = play(world, typed, [click(by_key(world.widgets(typed), "2"))])
    assert (unfocused.focus, unfocused.entries[2].value) == (-1, "no")


def test_form_is_saved_only_when_all_is_right() -> None:
    world = Form()
    save = click(by_key(world.widgets(FORM), SAVE))
    outcome = world.act(FORM, save)
    assert (outcome.state, outcome.text) == (FORM, "Not saved: the form differs from the card.")
    plan = world.plan(FORM)
    assert plan[1] == "type Oslo 12"
    assert plan[-1] == save
    assert world.is_solved(play(world, FORM, plan))
    assert not world.is_solved(play(world, FORM, plan[:-1]))


def test_form_shows_the_start_of_a_long_text() -> None:
    world = Form()
    typed = play(world, replace(FORM, focus=0), ["type " + "W" * 90])
    assert by_key(world.widgets(typed), "0").text == "W" * 13 + "…"


def test_form_plan_is_as_short_as_a_search_finds() -> None:
    world = Form()

    def actions(state: FormState) -> list[str]:
        return [*clicks(world, state), "type Oslo 12"]

    states, rng = [FORM], random.Random(3)
    for _ in range(5):
        states.append(play(world, states[-1], [rng.choice(actions(states[-1])[:-2])]))
    for state in states:
        assert len(world.plan(state)) == fewest(world, state, actions)


def test_slider_takes_the_nearest_value() -> None:
    world = Sliders()
    assert world.plan(SLIDERS) == [f"drag {at((100, 78))} to {at((220, 78))}"]
    for x, value in ((231, 15), (233, 16), (448, 20), (0, 10)):
        after = play(world, SLIDERS, [f"drag {at((100, 78))} to {at((x, 440))}"])
        assert after.sliders[0].value == value
        assert world.is_solved(after) == (value == 15)
    outcome = world.act(SLIDERS, f"drag {at((200, 78))} to {at((220, 78))}")
    assert (outcome.state, outcome.text) == (SLIDERS, "There is no handle where the drag starts.")
    assert world.act(SLIDERS, "click 10, 10").error is not None


def test_drag_moves_a_file_into_its_folder_only() -> None:
    world = Drag()
    spot = {widget.text: at(widget.center) for widget in world.widgets(DRAG) if widget.key}
    for start, end, text in (
        ("moon", "Home", "That file does not belong there; it stays."),
        ("Work", "Home", "There is no file where the drag starts."),
        ("moon", "mars", "There is no folder where the drag ends."),
    ):
        outcome = world.act(DRAG, f"drag {spot[start]} to {spot[end]}")
        assert (outcome.state, outcome.text) == (DRAG, text)
    moved = play(world, DRAG, [f"drag {spot['moon']} to {spot['Work']}"])
    assert (moved.moved, world.progress(moved)) == ((1,), 0.5)
    assert "moon" not in [widget.text for widget in world.widgets(moved)]
    assert world.plan(moved) == [f"drag {spot['mars']} to {spot['Home']}"]


def test_scroll_stops_at_the_ends_and_after_twenty_rows() -> None:
    world = Scroll()
    state = replace(world.create(random.Random(1), 40), offset=10)
    assert play(world, state, ["scroll down 5"]).offset == 15
    assert play(world, state, ["scroll up 99"]).offset == 0
    assert play(world, state, ["scroll down 30"]).offset == 28
    assert play(world, replace(state, offset=0), ["scroll down 30"]).offset == 20
    assert world.act(state, "scroll down 5").text == "Scrolled."
    assert world.act(state, "scroll down 20").text.startswith("Scrolled less")


def test_scroll_is_lost_by_another_button() -> None:
    world = Scroll()
    state = world.create(random.Random(1), 40)
    name = state.names[state.offset]
    lost = play(world, state, [click(by_key(world.widgets(state), f"{name}, Call"))])
    assert world.is_over(lost)
    assert not world.is_solved(lost)
    assert world.plan(lost) == []


def test_scroll_plan_is_as_short_as_a_search_finds() -> None:
    world = Scroll()
    for seed in range(3):
        state = world.create(random.Random(seed), 60)
        key = f"{state.names[state.target]}, {state.button}"
        scrolls = [f"scroll {way} {rows}" for way in ("up", "down") for rows in range(1, 21)]

        def actions(state: Any, key: str = key, scrolls: Any = scrolls) -> list[str]:
            right = [click(widget) for widget in world.widgets(state) if widget.key == key]
            return [*right, *scrolls]

        assert len(world.plan(state)) == fewest(world, state, actions)


def test_menu_opens_another_branch_and_is_lost_at_its_end() -> None:
    world = Menu()
    state = MenuState(seed=5, path=(2, 0, 1), left=10, top=20)
    astray = play(world, state, [click(by_key(world.widgets(state), "3"))])
    assert (astray.open, len(world.plan(astray))) == ((3,), 3)
    deeper = play(world, state, world.plan(state)[:2])
    assert (deeper.open, world.progress(deeper)) == ((2, 0), 2 / 3)
    lost = play(world, deeper, [click(by_key(world.widgets(deeper), "2 0 2"))])
    assert world.is_over(lost)
    assert not world.is_solved(lost)
    assert world.act(state, "click 999, 999").text == "There is no item."


def test_menu_plan_is_as_short_as_a_search_finds() -> None:
    world = Menu()
    start = MenuState(seed=8, path=(1, 4), left=10, top=20)
    for opened in ((), (1,), (3,)):
        state = replace(start, open=opened)
        steps = fewest(
            world, state, lambda state: [] if world.is_over(state) else clicks(world, state)
        )
        assert len(world.plan(state)) == steps


def test_keypad_takes_back_wrong_digits() -> None:
    world = Keypad()
    wrong = play(world, KEYPAD, [click(by_key(world.widgets(KEYPAD), "4"))])
    assert (wrong.entered, wrong.presses) == ("4", 1)
    wrong = play(world, wrong, [click(by_key(world.widgets(wrong), "7"))])
    assert wrong.entered == "47"
    assert len(world.plan(wrong)) == 3
    assert world.is_solved(play(world, wrong, world.plan(wrong)))
    full = replace(KEYPAD, entered="123")
    outcome = world.act(full, click(by_key(world.widgets(full), "4")))
    assert (outcome.state, outcome.text) == (full, "The display is full.")
    assert world.act(KEYPAD, "click 1, 1").text == "There is no key."


def test_keypad_keys_change_places() -> None:
    world = Keypad()
    pressed = play(world, KEYPAD, [click(by_key(world.widgets(KEYPAD), "4"))])
    assert by_key(world.widgets(KEYPAD), "7").box != by_key(world.widgets(pressed), "7").box
