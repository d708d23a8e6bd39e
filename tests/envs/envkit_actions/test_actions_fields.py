"""Fields that an action does not know, or lacks, are problems in every dialect."""

import json
import re
from typing import Any, cast

import pytest

from envkit_actions import FAMILIES, Action, ActionKind, InexpressibleActionError, find_family
from envkit_desktop import ComputerUseEnv

SCREEN = (1280, 720)
EVERY = [
    Action(kind=ActionKind.CLICK, x=640, y=360),
    Action(kind=ActionKind.DOUBLE_CLICK, x=640, y=360),
    Action(kind=ActionKind.MOVE, x=640, y=360),
    Action(kind=ActionKind.MOUSE_DOWN, x=640, y=360),
    Action(kind=ActionKind.DRAG, x=640, y=360, path=((320, 180),)),
    Action(kind=ActionKind.SCROLL, x=640, y=360, dy=600),
    Action(kind=ActionKind.SCROLL, x=640, y=360, dy=360),
    Action(kind=ActionKind.TYPE, text="hi"),
    Action(kind=ActionKind.KEY, keys=("ctrl", "c")),
    Action(kind=ActionKind.KEY, keys=("escape",)),
    Action(kind=ActionKind.WAIT, seconds=5.0),
    Action(kind=ActionKind.SCREENSHOT),
    Action(kind=ActionKind.CURSOR_POSITION),
    Action(kind=ActionKind.ZOOM, x=1, y=2, path=((30, 40),)),
    Action(kind=ActionKind.TERMINATE),
]


def written(name: str) -> list[str]:
    """Return a reply for every action of which the dialect has a call."""
    family = find_family(name)
    replies: list[str] = []
    for action in EVERY:
        try:
            replies.append(family.write([action], family.space(SCREEN)))
        except InexpressibleActionError:
            continue
    return [reply for reply in replies if "{" in reply or "(" in reply]  # DONE is a word alone


def with_field(reply: str, key: str, value: object) -> str:
    """Return the reply whose last action has one more field."""
    head, mark, tail = reply.rpartition("<tool_call>\n")
    if "{" not in reply:
        comma = "" if reply.endswith("()") else ", "
        return f"{reply.removesuffix(')')}{comma}{key}={value!r})"
    call = json.loads(tail.removesuffix("\n</tool_call>"))
    action = cast(dict[str, Any], call.get("arguments", call))
    action = cast(dict[str, Any], action["actions"][-1] if "actions" in action else action)
    action[key] = value
    return f"{head}{mark}{json.dumps(call)}{mark and '</tool_call>'}"


@pytest.mark.parametrize("name", FAMILIES)
def test_unknown_field_of_every_action_is_a_problem(name: str) -> None:
    family = find_family(name)
    space = family.space(SCREEN)

    assert len(written(name)) >= 5
    for reply in written(name):
        parsed = family.parse(with_field(reply, "colour", "red"), space)
        assert len(parsed.actions) < len(family.parse(reply, space).actions), reply
        assert re.search("colour|takes keys without names", parsed.problems[0]), reply


@pytest.mark.parametrize(
    ("name", "reply", "sentence"),
    [
        ("canonical", '{"action": "click", "x": 1, "y": 2, "dy": 5}', "unknown field 'dy'"),
        ("canonical", '{"action": "double_click", "x": 1, "y": 2, "button": "left"}', "'button'"),
        ("canonical", '{"action": "wait", "seconds": 1, "text": "a"}', "unknown field 'text'"),
        ("openai", '{"type": "click", "x": 1, "y": 2, "scroll_y": 5}', "unknown field 'scroll_y'"),
        ("openai", '{"type": "scroll", "x": 1, "y": 2, "dy": 5}', "scroll needs 'scroll_y'"),
        ("openai", '{"type": "scroll", "x": 1, "y": 2}', "scroll needs 'scroll_y'"),
        ("openai", '{"type": "scroll", "x": 1, "y": 2, "scroll_y": 1, "scrollY": 1}', "'scrollY'"),
        ("openai", '{"type": "double_click", "x": 1, "y": 2, "button": "right"}', "'button'"),
        ("openai", '{"type": "wait", "ms": 500}', "wait has an unknown field 'ms'"),
        ("openai", '{"type": "keypress", "key": "a"}', "keypress needs 'keys'"),
        ("openai", '{"actions": []}', "one or more actions"),
        ("canonical", '{"actions": []}', "one or more actions"),
        ("anthropic-20251124", '{"action": "screenshot", "coordinate": [1, 2]}', "'coordinate'"),
        ("anthropic-20251124", '{"action": "zoom", "coordinate": [1, 2]}', "zoom needs 'region'"),
        ("anthropic-20251124", '{"action": "left_click_drag", "coordinate": [1, 2]}', "start_coor"),
        ("anthropic-20251124", '{"action": "scroll", "scroll_direction": "up"}', "scroll_amount"),
        ("anthropic-20251124", '{"action": "mouse_move"}', "mouse_move needs 'coordinate'"),
        ("qwen3-vl", '{"action": "scroll", "coordinate": [1, 2]}', "scroll needs 'pixels'"),
        ("qwen3-vl", '{"action": "left_click", "x": 1, "y": 2}', "unknown field 'x'"),
        ("qwen3-vl", '{"action": "wait"}', "wait needs 'time'"),
        ("qwen3-vl", '{"action": "terminate"}', "terminate needs 'status'"),
        ("ui-tars-1.5", "click(start_box='(1,2)', direction='down')", "unknown field 'direction'"),
        ("ui-tars-1.5", "scroll(start_box='(1,2)')", "scroll needs 'direction'"),
        ("ui-tars-1.5", "click(start_box='(1,2)', point='(3,4)')", "unknown field 'point'"),
        ("glm-4.5v", "left_drag(start_box='[1,2]')", "left_drag needs 'end_box'"),
        ("glm-4.5v", "scroll(start_box='[1,2]', step=3)", "scroll needs 'direction'"),
        ("glm-4.5v", "key(key='a')", "argument 'key' is unknown"),
        ("autoglm-phone", 'do(action="Tap")', "tap needs 'element'"),
        ("autoglm-phone", 'do(action="Tap", element=[1,2], text="a")', "unknown field 'text'"),
        ("autoglm-phone", 'do(action="Swipe", start=[1,2])', "swipe needs 'end'"),
        ("autoglm-phone", 'do(action="Wait")', "wait needs 'duration'"),
        ("autoglm-phone", "do(element=[1,2])", "do needs 'action'|not Python"),
        ("gemini-2.5", '{"name": "click_at", "args": {"x": 1}}', "click_at needs 'y'"),
        ("gemini-2.5", '{"name": "type_text_at", "args": {"x": 1, "y": 2}}', "needs 'text'"),
        ("gemini-2.5", '{"name": "scroll_document", "args": {}}', "needs 'direction'"),
        ("gemini-3.5", '{"name": "click", "args": {"x": 1, "y": 2, "button": "left"}}', "'button'"),
        ("gemini-3.5", '{"name": "scroll", "args": {"x": 1, "y": 2, "dy": 3}}', "'direction'"),
        ("browsergym", "scroll(5)", "scroll needs 'delta_y'"),
        ("browsergym", "report_infeasible()", "needs 'reason'"),
        ("osworld", "pyautogui.moveRel()", "moveRel needs 'x'"),
        ("osworld", "pyautogui.moveTo(5)", "moveTo needs 'y'"),
        ("osworld", "pyautogui.scroll()", "scroll needs 'clicks'"),
        ("osworld", "pyautogui.dragTo(1, 2, mouseDownUp=False)", "unknown field 'mouseDownUp'"),
    ],
)
def test_field_that_an_action_lacks_or_does_not_know_is_named(
    name: str, reply: str, sentence: str
) -> None:
    family = find_family(name)
    parsed = family.parse(reply, family.space(SCREEN))

    assert parsed.actions == ()
    assert re.search(sentence, parsed.problems[0])


@pytest.mark.parametrize("name", ["anthropic-20250124", "anthropic-20251124"])
def test_cursor_position_is_answered_with_coordinates(name: str) -> None:
    env = ComputerUseEnv(action=name)
    env.reset(seed=1)
    env.step('{"action": "mouse_move", "coordinate": [123, 45]}')

    step = env.step('{"action": "cursor_position"}')

    assert step.observation["text"] == "X=123,Y=45"
    assert step.info["parse_error"] is None


def test_cursor_position_tells_where_the_cursor_was_when_it_was_asked_for() -> None:
    env = ComputerUseEnv()
    env.reset(seed=1)

    step = env.step(
        '[{"action": "move", "x": 7, "y": 8}, {"action": "cursor_position"},'
        ' {"action": "move", "x": 9, "y": 9}]'
    )

    assert step.observation["text"] == "X=7,Y=8"
