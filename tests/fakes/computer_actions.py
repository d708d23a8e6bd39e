"""Strategies of canonical actions, and what two ways of writing them have in common."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st

from envkit_actions import Action, ActionKind, Button, Status
from envkit_actions.keys import TABLE

SCREEN = (1280, 720)
KEY_CHARACTERS = "abcxyz019+-/\\,.'\"`=[];é"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "it's\n",
        'say "no"',
        "C:\\dir\t",
        "</think>",
        "<tool_call>{}</tool_call>",
        "```",
        "DONE",
        "{'",
    ]
)
KEYS = st.lists(
    st.sampled_from([*TABLE, *KEY_CHARACTERS]), min_size=1, max_size=4, unique=True
).map(tuple)
HELD = st.just(()) | st.sampled_from([("ctrl",), ("shift", "alt")])
POINTS = st.tuples(st.integers(0, SCREEN[0] - 1), st.integers(0, SCREEN[1] - 1))
PLACES = POINTS | st.just((None, None))
BUTTONS = st.sampled_from(list(Button))
SECONDS = st.integers(0, 4800).map(lambda eighths: eighths / 8) | st.sampled_from([1.0, 5.0])
AMOUNTS = st.integers(-12, 12).map(lambda clicks: clicks * 120) | st.integers(-2000, 2000)


@st.composite
def _aimed(draw: st.DrawFn) -> Action:
    kind = draw(
        st.sampled_from([ActionKind.CLICK, ActionKind.DOUBLE_CLICK, ActionKind.TRIPLE_CLICK])
    )
    x, y = draw(PLACES)
    button = draw(BUTTONS) if kind is ActionKind.CLICK else Button.LEFT
    return Action(kind=kind, x=x, y=y, button=button, keys=draw(HELD))


@st.composite
def _pressed(draw: st.DrawFn) -> Action:
    kind = draw(st.sampled_from([ActionKind.MOUSE_DOWN, ActionKind.MOUSE_UP]))
    x, y = draw(PLACES)
    return Action(kind=kind, x=x, y=y, button=draw(BUTTONS))


@st.composite
def _moved(draw: st.DrawFn) -> Action:
    x, y = draw(POINTS)
    zoomed = draw(st.booleans())
    path = (draw(POINTS),) if zoomed else ()
    return Action(kind=ActionKind.ZOOM if zoomed else ActionKind.MOVE, x=x, y=y, path=path)


@st.composite
def _dragged(draw: st.DrawFn) -> Action:
    x, y = draw(PLACES)
    path = draw(st.lists(POINTS, min_size=1, max_size=1) | st.lists(POINTS, min_size=2, max_size=9))
    return Action(
        kind=ActionKind.DRAG, x=x, y=y, path=tuple(path), button=draw(BUTTONS), keys=draw(HELD)
    )


@st.composite
def _scrolled(draw: st.DrawFn) -> Action:
    x, y = draw(PLACES)
    dx, dy = draw(
        st.tuples(AMOUNTS, st.just(0))
        | st.tuples(st.just(0), AMOUNTS | st.sampled_from([600, -600]))
        | st.tuples(AMOUNTS, AMOUNTS)
    )
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dx=dx, dy=dy, keys=draw(HELD))


TYPED = TEXTS.map(lambda text: Action(kind=ActionKind.TYPE, text=text))
ENDS = TEXTS.map(lambda text: Action(kind=ActionKind.ANSWER, text=text)) | st.sampled_from(
    [Action(kind=ActionKind.TERMINATE, status=status) for status in Status]
)
STEPS = (
    _aimed()
    | _pressed()
    | _moved()
    | _dragged()
    | _scrolled()
    | TYPED
    | KEYS.map(lambda keys: Action(kind=ActionKind.KEY, keys=keys))
    | st.builds(Action, kind=st.just(ActionKind.HOLD_KEY), keys=KEYS, seconds=SECONDS)
    | SECONDS.map(lambda seconds: Action(kind=ActionKind.WAIT, seconds=seconds))
    | st.just(Action(kind=ActionKind.SCREENSHOT))
)
ACTIONS = STEPS | ENDS


def spelt_out(actions: Iterable[Action]) -> list[Action]:
    """Return the actions with every place as a move of its own: what families may write."""
    result: list[Action] = []
    for action in actions:
        if action.x is None or action.kind in (ActionKind.MOVE, ActionKind.ZOOM):
            result.append(action)
            continue
        result.append(Action(kind=ActionKind.MOVE, x=action.x, y=action.y))
        result.append(replace(action, x=None, y=None))
    return result


def placeless(action: Action) -> Action:
    """Return the action with all its places at the corner."""
    return replace(
        action,
        x=None if action.x is None else 0,
        y=None if action.y is None else 0,
        path=tuple((0, 0) for _ in action.path),
    )


def places(action: Action) -> list[tuple[int, int]]:
    """Return where the action happens, start first."""
    start = [] if action.x is None or action.y is None else [(action.x, action.y)]
    return [*start, *action.path]
