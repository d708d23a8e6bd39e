"""What a reply says wrong is a problem with its reason, in every dialect: a call or a field."""

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


def _call(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


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


PROBLEMS = [
    ("canonical", "I don't know what to do.", "the reply holds no action"),
    ("canonical", "", "the reply holds no action"),
    ("canonical", "<think>so", "thinking is not closed"),
    ("canonical", '{"action": "click", "x": 1, "y"', "JSON cannot be read: expected ':'"),
    ("canonical", '[{"action": "wait", "seconds": 1}, 5]', "must be a JSON object"),
    ("canonical", "{'a': 1, 'a': 2}", "duplicate key 'a'"),
    ("canonical", "{action: click}", "JSON cannot be read: expected a quoted key"),
    ("canonical", '{"action": "screenshot"}\n' * 51, "at most 50 actions"),
    ("openai", '{"type": "click", "x": 1}', "click needs 'y'"),
    ("openai", "{type: click}", "JSON cannot be read: expected a quoted key"),
    ("openai", "{ (click) }", "the reply holds no action"),
    ("openai", '{"actions": 5}', "'actions' must be a list"),
    ("openai", '{"type": "drag", "path": [[1, 2]]}', "at least one point more"),
    ("openai", _call("browser"), "there is no tool 'browser'; call 'computer'"),
    ("openai", "", "no action"),
    ("anthropic-20251124", '{"action": "zoom", "region": [1, 2, 3]}', "'region' must be"),
    ("anthropic-20251124", '{"action": "scroll", "scroll_direction": "in"}', "'scroll_direction'"),
    ("qwen3-vl", _call("computer_use", action="fly"), "'action' must be one of"),
    ("qwen3-vl", _call("computer_use", action="left_click", coordinate=[5]), "'coordinate'"),
    ("qwen3-vl", '<tool_call>{"name": "computer_use", "argum', "tool call 1 cannot be read"),
    ("qwen3-vl", _call("computer_use", action="key", keys=["entr"]), "did you mean 'enter'"),
    ("ui-tars-1.5", "Action: click(start_box='(5)')", "must be '\\(x,y\\)'"),
    ("ui-tars-1.5", "Action: click()", "click needs 'start_box'"),
    ("ui-tars-1.5", "Action: open(app='x')", "no action 'open'"),
    ("ui-tars-1.5", "Action: click(start_box='(1,2)'", "not Python calls"),
    ("ui-tars-1.5-mobile", "Action: open_app(app_name='Mail')", "no apps to open.*brings a window"),
    ("ui-tars-1.5-mobile", "Action: press_home()", "no home screen.*press_back"),
    ("anthropic-20250124", '{"action": "zoom", "region": [1, 2, 3, 4]}', "'action' must be one of"),
    ("qwen2.5-vl", _call("computer_use", action="answer", text="7"), "'action' must be one of"),
    ("glm-4.5v", "scroll(start_box='[1,2]', direction='left')", "one of down, up, got 'left'"),
    ("glm-4.5v", "left_single(start_box='[1,2]')", "no action"),
    ("autoglm-phone", 'do(action="Launch", app="Mail")', "no apps to open.*a tap brings"),
    ("autoglm-phone", 'do(action="Home")', "no home screen"),
    ("autoglm-phone", 'do(action="Take_over", message="log in")', "nobody is there"),
    ("autoglm-phone", 'do(action="Note", message="True")', "nothing is recorded"),
    ("autoglm-phone", 'do(action="Fly")', "'action' must be one of tap, double tap"),
    ("autoglm-phone", "tap([1,2])", "write do or finish|no 'tap'"),
    ("gemini-2.5", '{"name": "navigate", "args": {"url": "http://a"}}', "no address bar"),
    ("gemini-2.5", '{"name": "click", "args": {"x": 1, "y": 2}}', "no tool 'click'"),
    ("gemini-2.5", '{"x": 1, "y": 2}', "'name' of a function"),
    ("gemini-2.5", '{"name": {"a": 1}}', "'name' of a function"),
    ("gemini-3.5", '{"name": "key_down", "args": {"key": "shift"}}', "no key stays down.*hotkey"),
    ("gemini-3.5", '{"name": "click_at", "args": {"x": 1, "y": 2}}', "no tool 'click_at'"),
    ("ui-tars-1.5-mobile", "Action: hotkey(key='ctrl c')", "no action 'hotkey'; .*long_press"),
    ("browsergym", "click('a51')", "element's id.*mouse_click"),
    ("browsergym", "mouse_click(1, 2, 'left', 4)", "at most 3 arguments, got 4"),
    ("browsergym", "mouse_click(1, y=2, z=3)", "argument 'z' is unknown"),
    ("browsergym", "mouse_click(1, x=2)", "argument 'x' is given twice"),
    ("browsergym", "keyboard_down('a')", "never released"),
    ("browsergym", "goto('http://example.org')", "no function 'goto'"),
    ("osworld", "import os\nos.system('ls')", "only pyautogui and time.sleep"),
    ("osworld", "x = 5\npyautogui.click(x, x)", "statement of kind assign"),
    ("osworld", "pyautogui.click(x, 5)", "plain strings and numbers, got the name 'x'"),
    ("osworld", "pyautogui.click(2 + 3, 5)", "expression of kind binop"),
    ("osworld", "pyautogui.write(open('/etc/passwd').read())", "expression of kind call"),
    ("osworld", "pyautogui.write(f'{1}')", "f-strings"),
    ("osworld", "for i in range(3):\n    pyautogui.click(1, 2)", "statement of kind for"),
    ("osworld", "pyautogui.__class__.mro()", "only plain functions"),
    ("osworld", "pyautogui.moveRel(1, 2, x=5)", "argument 'x' is unknown"),
    ("osworld", "pyautogui.move('left')", "'x' must be a number"),
    ("anthropic-20250124", _call("computer", action="key", text="Down Dwn"), "no key 'Dwn'"),
    ("anthropic-20250124", _call("computer", action="key", text=""), "1 to 6 keys"),
    ("anthropic-20250124", _call("computer", action="key", text="a " * 51), "at most 50 actions"),
    ("osworld", "pyautogui.click(1, 2, clicks=9)", "'clicks' must be 1, 2 or 3"),
    ("osworld", "pyautogui.press('a', presses=1000)", "1 to 50 times"),
    ("osworld", "pyautogui.keyDown('ctrl')\npyautogui.write('a')", "still down"),
    ("osworld", "pyautogui.click(**{'x': 1})", "without \\*\\*"),
    ("osworld", "click the button", "not Python calls"),
]


@pytest.mark.parametrize(("name", "reply", "sentence"), PROBLEMS)
def test_unreadable_reply_says_why(name: str, reply: str, sentence: str) -> None:
    family = find_family(name)
    parsed = family.parse(reply, family.space(SCREEN))

    assert parsed.problems
    assert re.search(sentence, parsed.problems[0], re.DOTALL), parsed.problems


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
