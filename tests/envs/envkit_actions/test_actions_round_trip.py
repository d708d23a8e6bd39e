"""Every family reads back what it writes."""

import math

import pytest
from fakes.budget import examples
from fakes.computer_actions import (
    ACTIONS,
    SCREEN,
    STEPS,
    placeless,
    places,
    spelt_out,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit_actions import (
    FAMILIES,
    Action,
    ActionKind,
    InexpressibleActionError,
    Status,
    find_family,
)

EXAMPLES = {
    "click": Action(kind=ActionKind.CLICK, x=100, y=50),
    "click at the cursor": Action(kind=ActionKind.CLICK),
    "ctrl-click": Action(kind=ActionKind.CLICK, x=100, y=50, keys=("ctrl",)),
    "double click": Action(kind=ActionKind.DOUBLE_CLICK, x=100, y=50),
    "triple click": Action(kind=ActionKind.TRIPLE_CLICK, x=100, y=50),
    "move": Action(kind=ActionKind.MOVE, x=100, y=50),
    "move from here": Action(kind=ActionKind.MOVE, x=-7, y=50, is_relative=True),
    "drag from here": Action(kind=ActionKind.DRAG, path=((-9, 3),), is_relative=True),
    "mouse down": Action(kind=ActionKind.MOUSE_DOWN, x=100, y=50),
    "mouse up": Action(kind=ActionKind.MOUSE_UP, x=100, y=50),
    "drag": Action(kind=ActionKind.DRAG, x=100, y=50, path=((300, 200),)),
    "drag along a path": Action(kind=ActionKind.DRAG, x=9, y=9, path=((30, 20), (50, 40))),
    "scroll": Action(kind=ActionKind.SCROLL, x=100, y=50, dy=600),
    "scroll a little": Action(kind=ActionKind.SCROLL, x=100, y=50, dy=50),
    "scroll sideways": Action(kind=ActionKind.SCROLL, x=100, y=50, dx=-120),
    "type": Action(kind=ActionKind.TYPE, text="it's\n"),
    "key": Action(kind=ActionKind.KEY, keys=("ctrl", "c")),
    "hold key": Action(kind=ActionKind.HOLD_KEY, keys=("shift",), seconds=2.0),
    "wait": Action(kind=ActionKind.WAIT, seconds=3.0),
    "screenshot": Action(kind=ActionKind.SCREENSHOT),
    "cursor position": Action(kind=ActionKind.CURSOR_POSITION),
    "zoom": Action(kind=ActionKind.ZOOM, x=10, y=20, path=((110, 120),)),
    "done": Action(kind=ActionKind.TERMINATE),
    "impossible": Action(kind=ActionKind.TERMINATE, status=Status.FAILURE),
    "answer": Action(kind=ActionKind.ANSWER, text="forty-two"),
}
RELATIVE = {"move from here", "drag from here"}
QWEN = (
    RELATIVE
    | {"mouse down", "mouse up", "drag along a path", "hold key", "screenshot", "zoom"}
    | {"ctrl-click", "cursor position"}
)
UI_TARS = QWEN | {
    "click at the cursor",
    "triple click",
    "scroll a little",
    "scroll sideways",
    "wait",
}
GEMINI = (
    RELATIVE
    | {"click at the cursor", "ctrl-click", "drag along a path", "hold key", "zoom"}
    | {"cursor position"}
)
CANNOT = {
    "canonical": set[str](),
    "openai": {"click at the cursor", "triple click", "mouse down", "mouse up", "hold key"}
    | {"wait", "zoom", "cursor position"}
    | RELATIVE,
    "gemini-2.5": GEMINI
    | {"double click", "triple click", "mouse down", "mouse up", "screenshot", "type", "wait"},
    "gemini-3.5": GEMINI,
    "anthropic-20250124": RELATIVE | {"drag along a path", "scroll a little", "zoom"},
    "anthropic-20251124": RELATIVE | {"drag along a path", "scroll a little"},
    "qwen2.5-vl": QWEN | {"triple click", "scroll sideways", "answer"},
    "qwen3-vl": QWEN,
    "ui-tars-1.0": UI_TARS,
    "ui-tars-1.5": UI_TARS,
    "ui-tars-1.5-mobile": UI_TARS | {"double click", "move", "key"},
    "glm-4.5v": UI_TARS | {"answer"},
    "autoglm-phone": (UI_TARS - {"wait"}) | {"move", "key", "scroll", "type"},
    "browsergym": RELATIVE
    | {"click at the cursor", "triple click", "drag along a path", "screenshot"}
    | {"zoom", "cursor position"},
    "osworld": {"drag along a path", "scroll a little", "zoom", "answer", "cursor position"},
}


def test_every_family_is_in_the_table() -> None:
    assert CANNOT.keys() == FAMILIES.keys()


@pytest.mark.parametrize("example", EXAMPLES)
def test_family_expresses_exactly_what_the_table_says(example: str) -> None:
    action = EXAMPLES[example]

    for name, family in FAMILIES.items():
        if example not in CANNOT[name]:
            assert family.write([action], family.space(SCREEN)), name
            _check_round_trip(name, [action], SCREEN)
            continue
        with pytest.raises(InexpressibleActionError, match=f"{name} cannot express {action.kind}"):
            family.write([action], family.space(SCREEN))


def _check_round_trip(name: str, actions: list[Action], screen: tuple[int, int]) -> None:
    family = find_family(name)
    space = family.space(screen)
    try:
        reply = family.write(actions, space)
    except InexpressibleActionError:
        return

    parsed = family.parse(reply, space)

    assert parsed.problems == ()
    assert parsed.warnings == ()
    assert parsed.out_of_range == 0
    assert parsed.thought == ""
    expected, got = spelt_out(actions), spelt_out(parsed.actions)
    assert [placeless(action) for action in got] == [placeless(action) for action in expected]
    width, height = (
        max(1, pixels / extent) for pixels, extent in zip(screen, space.extent, strict=True)
    )
    for one, other in zip(got, expected, strict=True):
        for (x, y), (there_x, there_y) in zip(places(one), places(other), strict=True):
            assert abs(x - there_x) <= (0 if width == 1 else math.ceil(width / 2))
            assert abs(y - there_y) <= (0 if height == 1 else math.ceil(height / 2))


@settings(max_examples=examples(200))
@given(action=ACTIONS)
def test_one_action_reads_back_in_every_family(action: Action) -> None:
    for name in FAMILIES:
        _check_round_trip(name, [action], SCREEN)


@settings(max_examples=examples(60))
@given(actions=st.lists(STEPS, min_size=2, max_size=5))
def test_several_actions_read_back_in_every_family(actions: list[Action]) -> None:
    for name in FAMILIES:
        expressible = [action for action in actions if _is_expressible(name, action)]
        if expressible:
            _check_round_trip(name, expressible, SCREEN)


def _is_expressible(name: str, action: Action) -> bool:
    family = find_family(name)
    try:
        family.write([action], family.space(SCREEN))
    except InexpressibleActionError:
        return False
    return True


@pytest.mark.parametrize("name", FAMILIES)
def test_batch_bounds_are_refused(name: str) -> None:
    family = find_family(name)
    click = Action(kind=ActionKind.CLICK, x=640, y=360)

    for actions in ([], [click] * 51):
        with pytest.raises(InexpressibleActionError, match="1 to 50 actions"):
            family.write(actions, family.space(SCREEN))
    full = family.parse(family.write([click] * 50, family.space(SCREEN)), family.space(SCREEN))
    assert full.actions == (click,) * 50
