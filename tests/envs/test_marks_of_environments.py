"""Every turn that acts says what it did, in pixels of the image that the model saw."""

import json
from typing import Any, cast

import pytest
from fakes.oracles import steps_of

import envkit
from envkit.env import Env
from envkit.marks import mark_problems, words
from envkit_actions import FAMILIES, Action, ActionKind, InexpressibleActionError, marks
from envkit_actions.dialect import Dialect
from envkit_desktop.env import ComputerUseEnv


@pytest.mark.parametrize("dialect", sorted(FAMILIES))
def test_oracle_marks_every_turn_of_computer_use_in_every_dialect(dialect: str) -> None:
    env = ComputerUseEnv(action=dialect)
    for seed in range(6):
        for step in steps_of(env, seed=seed):
            done = step.info["marks"]
            assert len(done) == step.info["actions"] > 0
            assert list(mark_problems(done)) == []
            assert json.loads(json.dumps(done)) == done
            assert all(words(mark) for mark in done)


@pytest.mark.parametrize("dialect", sorted(FAMILIES))
def test_click_is_marked_where_the_pointer_lands_in_every_dialect(dialect: str) -> None:
    env = ComputerUseEnv(action=dialect)
    env.reset(seed=1)
    mark = env.step(env.write_click(409, 257)).info["marks"][0]
    assert mark["kind"] == "click"
    assert (mark["x"], mark["y"]) == env.desk.pointer
    assert abs(mark["x"] - 409) <= 1
    assert abs(mark["y"] - 257) <= 1


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("canary-v0", {}),
        ("geo3k-v0", {}),
        ("search-v0", {}),
        ("gymnasium-v0", {"env": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}),
    ],
)
def test_oracle_marks_every_turn_of_other_environments(
    env_id: str, arguments: dict[str, Any]
) -> None:
    for step in steps_of(envkit.make(env_id, **arguments).unwrapped, seed=3):
        assert step.info["marks"]
        assert list(mark_problems(step.info["marks"])) == []


def test_place_after_a_zoom_counts_on_the_last_whole_screenshot() -> None:
    env = ComputerUseEnv()
    env.reset(seed=1)
    zoom = Action(kind=ActionKind.ZOOM, x=50, y=60, path=((150, 130),))
    (box,) = env.step(env.dialect.write([zoom])).info["marks"]
    assert box == {"kind": "box", "box": [50, 60, 150, 130], "label": "zoom"}
    saved = env.get_state()
    (again,) = env.step(env.dialect.write([zoom])).info["marks"]
    assert again["image"] == 0
    (click,) = env.step(env.write_click(5, 6)).info["marks"]
    assert click["image"] == 0
    (late,) = env.step(env.write_click(5, 6)).info["marks"]
    assert "image" not in late
    env.set_state(saved)
    assert env.get_state()["whole"] == 0


def test_action_without_effect_says_why() -> None:
    env = ComputerUseEnv()
    env.reset(seed=1)
    step = env.step(env.dialect.write([Action(kind=ActionKind.TYPE, text="lost")]))
    (mark,) = step.info["marks"]
    assert mark["ok"] is False
    assert mark["note"] in step.info["notes"][0]


def test_geo3k_zoom_is_a_box_in_pixels_of_the_first_figure() -> None:
    env = cast("Env", envkit.make("geo3k-v0", zoom=True).unwrapped)
    observation, _ = env.reset(seed=2)
    width, height = observation["images"][0].size
    call = {"name": "zoom", "arguments": {"region": [0.5, 0.25, 1, 1]}}
    for _ in range(2):
        step = env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        (mark,) = step.info["marks"]
        assert mark["image"] == 0
        assert mark["box"] == [width // 2, height // 4, width, height]
    call["arguments"] = {"region": [0.5, 0.5, 0.1, 2]}
    (mark,) = env.step(f"<tool_call>{json.dumps(call)}</tool_call>").info["marks"]
    assert words(mark).endswith("(outside the figure)")


def test_actions_without_a_place_happen_at_the_pointer() -> None:
    done = [
        Action(kind=ActionKind.MOVE, x=10, y=20),
        Action(kind=ActionKind.MOVE, x=5, y=-5, is_relative=True),
        Action(kind=ActionKind.DRAG, x=1, y=2, path=((3, 4), (7, 8))),
        Action(kind=ActionKind.CLICK),
    ]
    places = marks(done, cursor=(100, 100))
    assert [(m["x"], m["y"]) for m in places if "x" in m] == [(10, 20), (15, 15), (7, 8)]
    assert places[2]["path"] == [[1, 2], [3, 4], [7, 8]]


@pytest.mark.parametrize("dialect", sorted(FAMILIES))
def test_every_expressible_kind_has_a_valid_mark_in_every_dialect(dialect: str) -> None:
    form = Dialect(dialect, 672, 448)
    said = 0
    for kind in ActionKind:
        keys = ("ctrl", "a") if kind in (ActionKind.KEY, ActionKind.HOLD_KEY) else ()
        end = ((200, 150),)
        action = Action(kind=kind, x=100, y=50, path=end, dy=120, text="hé", keys=keys, seconds=1)
        try:
            parsed = form.read(form.write([action]))
        except InexpressibleActionError:
            continue
        assert list(mark_problems(marks(parsed.actions))) == [], kind
        said += 1
    assert said > 3
