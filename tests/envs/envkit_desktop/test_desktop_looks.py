"""What is measured instead of looked at: no text is clipped, no control lies on another."""

import io
import random

import pytest
from fakes.matrix import share
from PIL import Image as PilImage

from envkit.env import PolicyContext
from envkit_actions.random_clicks import random_clicks
from envkit_desktop import FAMILIES, LEVELS, ComputerUseEnv, DesktopTasks
from envkit_desktop.desktop import Desktop
from envkit_desktop.painter import intersect, text_width
from envkit_desktop.policies import oracle
from envkit_desktop.screen import Screen
from envkit_desktop.theme import THEMES
from envkit_desktop.widgets import ScrollPane, Widget, Window, walk

ONE_OF_EACH_SIZE = tuple({theme.type_pixels: n for n, theme in enumerate(THEMES)}.values())


def _problems(desk: Desktop) -> list[str]:
    found: list[str] = []
    for window in desk.windows:
        assert desk.width >= window.width
        assert desk.height >= window.height
        for widget in walk(window):
            found += [
                f"{window.name}/{widget.name}: {text!r} needs more than {room} pixels"
                for text, room in widget.captions(desk.type_pixels)
                if text_width(text, desk.type_pixels) > room
            ]
            found += _overlaps(widget)
    return found


def _overlaps(parent: Widget) -> list[str]:
    shown = [child for child in parent.children if child.visible]
    boxes = [(c.x, c.y, c.x + c.width, c.y + c.height) for c in shown]
    found = [
        f"{type(first).__name__} {first.name!r} lies on {second.name!r}"
        for index, first in enumerate(shown)
        for other, second in enumerate(shown[:index])
        if intersect(boxes[index], boxes[other]) is not None
    ]
    left, top = parent.child_origin()
    box = parent.child_box()
    high = parent.content if isinstance(parent, ScrollPane) else box[3] - top
    room = (0, 0, box[2] - left, high)
    return found + [
        f"{type(child).__name__} {child.name!r} reaches out of {parent.name!r}"
        for child, place in zip(shown, boxes, strict=True)
        if intersect(place, room) != place
    ]


@pytest.mark.parametrize("count", [len(ONE_OF_EACH_SIZE), pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", share(sorted(FAMILIES), of=3))
def test_no_text_is_clipped_and_no_control_covers_another(family: str, count: int) -> None:
    env = ComputerUseEnv()
    for level in LEVELS:
        source = DesktopTasks(families=[family], level=level, seed=5)
        for index in range(count):
            theme = ONE_OF_EACH_SIZE[index % len(ONE_OF_EACH_SIZE)]
            env.reset(options={"task": {**source.task(index), "theme": theme}})
            assert _problems(env.desk) == [], (family, level, index, theme)


@pytest.mark.parametrize("family", share(sorted(FAMILIES), of=3))
def test_nothing_is_clipped_on_the_way_of_the_oracle(family: str) -> None:
    env, policy = ComputerUseEnv(), oracle()
    env.reset(seed=1, options={"task": DesktopTasks(families=[family], level=4).task(1)})
    for turn in range(env.max_turns):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=1)
        step = env.step(policy(context))
        assert _problems(env.desk) == []
        if step.terminated:
            break


def _check_invariants(desk: Desktop) -> None:
    assert desk.windows[0].is_pinned
    names = [window.name for window in desk.windows]
    assert len(set(names)) == len(names)
    widgets = [widget for window in desk.windows for widget in walk(window)]
    assert len({id(widget) for widget in widgets}) == len(widgets)
    focused = [widget for widget in widgets if widget.focused]
    assert focused == ([] if desk.focus is None else [desk.focus])
    assert desk.capture is None or any(desk.capture is widget for widget in widgets)
    assert [w.is_active for w in desk.windows[:-1]] == [False] * (len(desk.windows) - 1)
    for window in desk.windows[1:]:
        assert isinstance(window, Window)
        assert window.x < desk.width
        assert 0 <= window.y < desk.height
    for menu in desk.menus:
        assert desk.window(menu.window) is not None


@pytest.mark.parametrize("turns", [8, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", share(sorted(FAMILIES), of=3))
def test_partial_repaints_equal_full_ones_under_random_actions(family: str, turns: int) -> None:
    env, policy = ComputerUseEnv(max_turns=turns), random_clicks()
    env.reset(seed=2, options={"task": DesktopTasks(families=[family], level=5).task(2)})
    for turn in range(turns):
        context = PolicyContext(env=env, task=env.task, turn=turn, messages=(), seed=2)
        step = env.step(policy(context))
        _check_invariants(env.desk)
        with PilImage.open(io.BytesIO(step.observation["images"][0].png_bytes())) as shown:
            fresh = Screen(env.desk.width, env.desk.height)
            fresh.shoot(env.desk)
            assert shown.tobytes() == fresh.canvas.tobytes(), (family, turn)
        if step.terminated:
            break


@pytest.mark.parametrize("family", share(sorted(FAMILIES), of=3))
def test_desktop_survives_wild_actions(family: str) -> None:
    rng = random.Random(f"wild {family}")
    env = ComputerUseEnv(max_turns=60)
    env.reset(seed=3, options={"task": DesktopTasks(families=[family], level=3).task(3)})
    keys = ("tab", "enter", "escape", "up", "down", "left", "home", "end", "delete", "x", "f5")
    for _ in range(60):
        x, y = rng.randint(-50, 800), rng.randint(-50, 600)
        reply = rng.choice(
            (
                f'{{"action": "click", "x": {x}, "y": {y}, "button": "right"}}',
                f'{{"action": "mouse_down", "x": {x}, "y": {y}}}',
                f'{{"action": "mouse_up", "x": {x}, "y": {y}}}',
                f'{{"action": "triple_click", "x": {x}, "y": {y}}}',
                f'{{"action": "drag", "x": {x}, "y": {y}, "to": [{y}, {x}]}}',
                f'{{"action": "scroll", "x": {x}, "y": {y}, "dy": {y - x}}}',
                f'{{"action": "key", "keys": ["ctrl", "{rng.choice("acvx")}"]}}',
                f'{{"action": "key", "keys": ["shift", "{rng.choice(keys)}"]}}',
                f'{{"action": "hold_key", "keys": ["{rng.choice(keys)}"], "seconds": 1}}',
                '{"action": "type", "text": "a\\nb\\tc\\u0007 \\ud83d"}',
                '{"action": "wait", "seconds": 3}',
                '{"action": "key", "keys": ["alt", "f4"]}',
                '{"action": "zoom"}',
            )
        )
        step = env.step(reply)
        _check_invariants(env.desk)
        assert Desktop.from_json(env.desk.to_json()).to_json() == env.desk.to_json()
        if step.terminated or step.truncated:
            break
