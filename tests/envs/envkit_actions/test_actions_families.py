"""Replies as the models of each family write them."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from envkit.errors import UnknownNameError
from envkit.toolcalls import call_errors, parse_tool_calls
from envkit_actions import (
    FAMILIES,
    Action,
    ActionKind,
    Button,
    ParsedActions,
    Status,
    find_family,
)
from envkit_actions.dialect import Dialect

SCREEN = (1280, 720)


def _act(kind: str, **fields: Any) -> Action:
    return Action(kind=ActionKind(kind), **fields)


def _key(*keys: str) -> Action:
    return _act("key", keys=keys)


def _type(text: str) -> Action:
    return _act("type", text=text)


def _answer(text: str) -> Action:
    return _act("answer", text=text)


def _wait(seconds: float) -> Action:
    return _act("wait", seconds=seconds)


def _parse(name: str, reply: str, **space: Any) -> ParsedActions:
    family = find_family(name)
    return family.parse(reply, family.space(SCREEN, **space))


def _call(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


CENTRE = _act("click", x=640, y=360)
CLICK = _act("click", x=100, y=50)
DONE, FAILED = _act("terminate"), _act("terminate", status=Status.FAILURE)
DRAG = _act("drag", x=10, y=20, path=((30, 40),))
READS: list[tuple[str, str, list[Action]]] = [
    ("canonical", 'I click. {"action": "click", "x": 100, "y": 50} Good.', [CLICK]),
    ("canonical", "{'action': 'click', 'x': 100.9, 'y': '50',}", [CLICK]),
    ("canonical", '```json\n[{"action":"click","x":100,"y":50}]\n```', [CLICK]),
    (
        "canonical",
        '{"action":"click","x":100,"y":50}\n{"action":"type","text":"a\tb\\theta"}',
        [CLICK, _type("a\tb\theta")],
    ),
    ("canonical", '{"action": "drag", "x": 10, "y": 20, "to": [30, 40]}', [DRAG]),
    ("openai", _call("computer", actions=[{"type": "click", "x": 100, "y": 50}]), [CLICK]),
    (
        "openai",
        '{"type":"computer_call","call_id":"c","action":'
        '{"type":"click","button":"wheel","x":100,"y":50}}',
        [_act("click", x=100, y=50, button=Button.MIDDLE)],
    ),
    (
        "openai",
        '{"type":"computer_call","actions":[{"type":"keypress","keys":["CTRL","A"]},'
        '{"type":"scroll","x":100,"y":50,"scroll_x":0,"scroll_y":-240},'
        '{"type":"click","button":"back","x":1,"y":1},{"type":"wait"},'
        '{"type":"drag","path":[{"x":10,"y":20},{"x":30,"y":40}]}]}',
        [
            _key("ctrl", "a"),
            _act("scroll", x=100, y=50, dy=-240),
            _key("alt", "left"),
            _wait(1.0),
            DRAG,
        ],
    ),
    (
        "openai",
        '{"actions":[{"type":"scroll","x":100,"y":50,"scrollX":-5,"scrollY":240},'
        '{"type":"scroll","x":100,"y":50,"scrollY":240,"keys":null}]}',
        [_act("scroll", x=100, y=50, dx=-5, dy=240), _act("scroll", x=100, y=50, dy=240)],
    ),
    ("openai", "The total is 42.", [_answer("The total is 42.")]),
    ("openai", "<think>done</think> DONE", [DONE]),
    (
        "anthropic-20250124",
        '[{"type":"text","text":"I click."},{"type":"tool_use","id":"t","name":"computer",'
        '"input":{"action":"left_click","coordinate":[100,50],"text":"shift"}}]',
        [_act("click", x=100, y=50, keys=("shift",))],
    ),
    (
        "anthropic-20250124",
        _call(
            "computer",
            action="scroll",
            coordinate=[100, 50],
            scroll_direction="down",
            scroll_amount=3,
        ),
        [_act("scroll", x=100, y=50, dy=360)],
    ),
    (
        "anthropic-20250124",
        _call("computer", action="key", text="Down Down  ctrl+a Delete"),
        [_act("key", keys=(name,)) for name in ("down", "down")]
        + [_key("ctrl", "a"), _key("delete")],
    ),
    (
        "anthropic-20251124",
        _call("computer", action="key", text="ctrl + shift + t")
        + _call("computer", action="key", text=" "),
        [_key("ctrl", "shift", "t"), _key("space")],
    ),
    (
        "anthropic-20251124",
        _call("computer", action="key", text="ctrl++ + ctrl+ a"),
        [_act("key", keys=keys) for keys in (("ctrl", "+"), ("+",), ("ctrl", "a"))],
    ),
    (
        "anthropic-20250124",
        _call("computer", action="key", text="ctrl+Page_Down"),
        [_key("ctrl", "pagedown")],
    ),
    (
        "anthropic-20250124",
        _call("computer", action="left_click_drag", start_coordinate=[10, 20], coordinate=[30, 40]),
        [DRAG],
    ),
    (
        "anthropic-20251124",
        _call("computer", action="zoom", region=[10, 20, 1280, 720]),
        [_act("zoom", x=10, y=20, path=((1279, 719),))],
    ),
    ("anthropic-20251124", "FAIL", [FAILED]),
    ("anthropic-20251124", '{"action": "cursor_position"}', [_act("cursor_position")]),
    ("anthropic-20250124", '{"action": "cursor_position"}', [_act("cursor_position")]),
    *(
        (
            "anthropic-20251124",
            _call("computer", action="zoom", region=region),
            [_act("zoom", x=10, y=20, path=((30, 40),))],
        )
        for region in ("[10, 20, 30, 40]", "(10, 20, 30, 40)", "10,20,30,40", [[10, 20], [30, 40]])
    ),
    (
        "anthropic-20250124",
        _call("computer", action="left_click", coordinate=[100, 50], key="shift"),
        [_act("click", x=100, y=50, keys=("shift",))],
    ),
    (
        "qwen3-vl",
        "<tool_call>\n<function=computer_use>\n<parameter=action>\nleft_click\n</parameter>\n"
        "<parameter=coordinate>\n[500, 500]\n</parameter>\n</function>\n</tool_call>",
        [CENTRE],
    ),
    (
        "qwen3-vl",
        _call("computer_use", action="left_click_drag", coordinate=[500, 500]),
        [_act("drag", path=((640, 360),))],
    ),
    ("qwen3-vl", _call("computer_use", action="scroll", pixels=-300), [_act("scroll", dy=300)]),
    ("qwen3-vl", _call("computer_use", action="hscroll", pixels=-300), [_act("scroll", dx=-300)]),
    ("qwen3-vl", _call("computer_use", action="terminate", status="failure"), [FAILED]),
    (
        "ui-tars-1.0",
        "Thought: x\nAction: click(start_box='<|box_start|>(500, 500)<|box_end|>')",
        [CENTRE],
    ),
    (
        "ui-tars-1.0",
        "Action: left_double(start_box='[400, 400, 600, 600]')",
        [_act("double_click", x=640, y=360)],
    ),
    (
        "ui-tars-1.5",
        "Action: drag(start_point='<point>10 20</point>', end_point='<point>30 40</point>')",
        [_act("drag", x=9, y=19, path=((29, 39),))],
    ),
    (
        "ui-tars-1.5",
        "Action: hotkey(key='ctrl c')\n\ntype(content='it\\'s\\n')",
        [_key("ctrl", "c"), _type("it's\n")],
    ),
    ("ui-tars-1.5", "Action: type(content='it's\n')", [_type("it's\n")]),
    (
        "ui-tars-1.0",
        "Action: scroll(start_box='(500,500)', direction='down')",
        [_act("scroll", x=640, y=360, dy=600)],
    ),
    ("ui-tars-1.0", "Action: wait()", [_wait(5.0)]),
    ("ui-tars-1.0", "Action: finished(content='7')", [_answer("7")]),
    ("ui-tars-1.0", "Action: finished()", [DONE]),
    (
        "ui-tars-1.5-mobile",
        "Thought: I tap.\nAction: click(point='<point>644 364</point>')",
        [CENTRE],
    ),
    (
        "ui-tars-1.5-mobile",
        "Action: long_press(start_box='<|box_start|>(644,364)<|box_end|>', time='2')\n\n"
        "drag(start_point='<point>10 20</point>', end_point='<point>30 40</point>')",
        [
            _act("click", x=640, y=360, button=Button.RIGHT),
            _act("drag", x=9, y=19, path=((29, 39),)),
        ],
    ),
    (
        "ui-tars-1.5-mobile",
        "Action: scroll(point='<point>644 364</point>', direction='right')\n\npress_back()\n\n"
        "press_enter()\n\nwait()\n\nfinished(content='7')",
        [
            _act("scroll", x=640, y=360, dx=600),
            _key("escape"),
            _key("enter"),
            _wait(5.0),
            _answer("7"),
        ],
    ),
    (
        "glm-4.5v",
        "<think>A dialog.</think>I close it.\nAction: <|begin_of_box|>left_click("
        "start_box='[500, 500]', element_info='OK (the button)')<|end_of_box|>\nMemory:\n[]",
        [CENTRE],
    ),
    (
        "glm-4.5v",
        "I drag it.\nAction: left_drag(start_box='[500,500]', end_box='[250,250]')\nMemory:\n"
        '[{"seen": "left_click(start_box=1)"}]',
        [_act("drag", x=640, y=360, path=((320, 180),))],
    ),
    ("glm-4.5v", "type(content='it's\n')", [_type("it's\n")]),
    (
        "glm-4.5v",
        "scroll(start_box='[500,500]', direction='up')\n\n"
        "scroll(start_box='[500,500]', direction='down', step=2, element_info='list')\n\n"
        "key(keys='ctrl+c')\n\nWAIT()\n\nFAIL()",
        [
            _act("scroll", x=640, y=360, dy=-600),
            _act("scroll", x=640, y=360, dy=240),
            _key("ctrl", "c"),
            _wait(5.0),
            FAILED,
        ],
    ),
    (
        "autoglm-phone",
        '<think>I see it.</think>\n<answer>do(action="Tap", element=[500,500])</answer>',
        [CENTRE],
    ),
    (
        "autoglm-phone",
        'I see it.\ndo(action="Long Press", element=[500,500])\n'
        'do(action="Tap", element=[250,250], message="pays")\n'
        'do(action="Swipe", start=[500,750], end=[500,250])\ndo(action="Back")\n'
        'do(action="Wait", duration="2 seconds")\ndo(action="Type", text="")',
        [
            _act("click", x=640, y=360, button=Button.RIGHT),
            _act("click", x=320, y=180),
            _act("drag", x=640, y=540, path=((640, 180),)),
            _key("escape"),
            _wait(2.0),
            _key("ctrl", "a"),
            _key("delete"),
        ],
    ),
    (
        "autoglm-phone",
        'do(action="Type", text="she said "hi"")',
        [_key("ctrl", "a"), _type('she said "hi"')],
    ),
    ("autoglm-phone", 'finish(message="It is 7.")', [_answer("It is 7.")]),
    (
        "gemini-2.5",
        '[{"text": "I click."}, {"functionCall": {"id": "1", "name": "click_at", '
        '"args": {"x": 500, "y": 500, "safety_decision": {"decision": "regular"}}}}]',
        [CENTRE],
    ),
    (
        "gemini-2.5",
        '{"name": "type_text_at", "args": {"x": 500, "y": 500, "text": "hi"}}',
        [CENTRE, _key("ctrl", "a"), _type("hi"), _key("enter")],
    ),
    (
        "gemini-2.5",
        _call("scroll_document", direction="down")
        + _call("scroll_at", x=500, y=500, direction="left", magnitude=250)
        + _call("key_combination", keys="Control+A")
        + _call("drag_and_drop", x=500, y=500, destination_x=250, destination_y=250),
        [
            _act("scroll", x=640, y=360, dy=576),
            _act("scroll", x=640, y=360, dx=-320),
            _key("ctrl", "a"),
            _act("drag", x=640, y=360, path=((320, 180),)),
        ],
    ),
    (
        "gemini-2.5",  # as google-genai dumps a content
        '{"role": "model", "parts": [{"function_call": null, "text": "Back.", "thought": null}, '
        '{"function_call": {"id": null, "args": null, "name": "go_back"}, "text": null}]}',
        [_key("alt", "left")],
    ),
    (
        "openai",  # as openai dumps the actions
        '{"type": "computer_call", "id": "i", "call_id": "c", "status": "completed", "actions": '
        '[{"type": "move", "x": 100, "y": 50, "keys": ["CTRL"]}, '
        '{"type": "click", "button": "left", "x": 100, "y": 50, "keys": null}]}',
        [_act("move", x=100, y=50), CLICK],
    ),
    ("gemini-2.5", '{"name": "go_back"}', [_key("alt", "left")]),
    ("gemini-2.5", "The total is 42.", [_answer("The total is 42.")]),
    (
        "gemini-3.5",
        '{"type": "function_call", "id": "1", "name": "click", '
        '"arguments": {"x": 500, "y": 500, "intent": "Open it."}}',
        [CENTRE],
    ),
    (
        "gemini-3.5",
        _call("type", text="hi", press_enter=True)
        + _call("hotkey", keys=["control", "c"])
        + _call("press_key", key="Enter")
        + _call("scroll", x=500, y=500, direction="up", magnitude=500)
        + _call("wait", seconds=2)
        + _call("take_screenshot"),
        [
            _type("hi"),
            _key("enter"),
            _key("ctrl", "c"),
            _key("enter"),
            _act("scroll", x=640, y=360, dy=-360),
            _wait(2.0),
            _act("screenshot"),
        ],
    ),
    (
        "browsergym",
        "I click.\n```\nmouse_click(100.4, 50, 'right')\n```",
        [_act("click", x=100, y=50, button=Button.RIGHT)],
    ),
    ("browsergym", "<action>mouse_drag_and_drop(10, 20, to_x=30, to_y=40)</action>", [DRAG]),
    (
        "browsergym",
        "keyboard_press('Control+Shift+t')\nscroll(0, -200)\nnoop()",
        [_key("ctrl", "shift", "t"), _act("scroll", dy=-200), _wait(1.0)],
    ),
    ("browsergym", "send_msg_to_user('7 days')", [_answer("7 days")]),
    ("browsergym", 'report_infeasible("no such field")', [FAILED]),
    (
        "osworld",
        "Let me click.\n```python\nimport pyautogui\nimport time\n# the button\n"
        "pyautogui.click(x=100, y=50, duration=0.2); time.sleep(0.5)\n```",
        [CLICK, _wait(0.5)],
    ),
    (
        "osworld",
        "pyautogui.click(100, 50, 2)\npyautogui.rightClick((100, 50))\n"
        "pyautogui.click(button='middle', clicks=1)",
        [
            _act("double_click", x=100, y=50),
            _act("click", x=100, y=50, button=Button.RIGHT),
            _act("click", button=Button.MIDDLE),
        ],
    ),
    (
        "osworld",
        "pyautogui.moveTo(10, 20)\npyautogui.dragTo(30, 40, duration=1, button='left')",
        [_act("move", x=10, y=20), _act("drag", path=((30, 40),))],
    ),
    ("osworld", "pyautogui.press(['tab', 'A'], presses=2)", [_key("tab"), _key("shift", "a")] * 2),
    (
        "osworld",
        "pyautogui.keyDown('ctrl')\npyautogui.click(100, 50)\npyautogui.keyUp('ctrl')\n"
        "pyautogui.keyDown('shift')\npyautogui.press('end')\npyautogui.keyUp('shift')\n"
        "pyautogui.keyDown('a')\ntime.sleep(2)\npyautogui.keyUp('a')\n"
        "pyautogui.keyDown('esc')\npyautogui.keyUp('esc')",
        [
            _act("click", x=100, y=50, keys=("ctrl",)),
            _key("shift", "end"),
            _act("hold_key", keys=("a",), seconds=2),
            _key("escape"),
        ],
    ),
    (
        "osworld",
        'pyautogui.hotkey(["ctrl", "s"])\npyautogui.typewrite("C:\\dir\\n", interval=0.1)',
        [_key("ctrl", "s"), _type("C:\\dir\n")],
    ),
    ("osworld", "pyautogui.write(r'\\d')", [_type("\\d")]),
    ("osworld", "pyautogui.scroll(-3, 100, y=50)", [_act("scroll", x=100, y=50, dy=360)]),
    ("osworld", "pyautogui.hscroll(2)", [_act("scroll", dx=240)]),
    (
        "osworld",
        "pyautogui.moveRel(5, -10)\npyautogui.move(yOffset=3)\npyautogui.move((1, 2))\n"
        "pyautogui.dragRel(30, 0, duration=1)\npyautogui.drag(0, 9, button='right')",
        [
            _act("move", x=5, y=-10, is_relative=True),
            _act("move", x=0, y=3, is_relative=True),
            _act("move", x=1, y=2, is_relative=True),
            _act("drag", path=((30, 0),), is_relative=True),
            _act("drag", path=((0, 9),), button=Button.RIGHT, is_relative=True),
        ],
    ),
    (
        "canonical",
        '[{"action":"move","x":-4,"y":2000,"relative":true},'
        '{"action":"drag","to":[-7,9],"relative":true}]',
        [
            _act("move", x=-4, y=2000, is_relative=True),
            _act("drag", path=((-7, 9),), is_relative=True),
        ],
    ),
    ("osworld", "```\nWAIT\n```", [_wait(2.0)]),
    ("osworld", "It is all done.\nDONE", [DONE]),
    ("osworld", "pyautogui.click(100, 50)\nFAIL", [CLICK, FAILED]),
]


@pytest.mark.parametrize(("name", "reply", "actions"), READS)
def test_reply_reads_as_its_actions(name: str, reply: str, actions: list[Action]) -> None:
    parsed = _parse(name, reply)

    assert parsed.problems == ()
    assert parsed.warnings == ()
    assert list(parsed.actions) == actions


def test_actions_before_a_problem_are_kept_and_later_ones_dropped() -> None:
    reply = "pyautogui.click(100, 50)\npyautogui.fly()\npyautogui.click(1, 2)"

    parsed = _parse("osworld", reply)

    assert parsed.actions == (CLICK,)
    assert len(parsed.problems) == 1


def test_points_outside_are_clamped_counted_and_reported() -> None:
    reply = '[{"action": "click", "x": 5000, "y": -3}, {"action": "click", "x": 1280, "y": 0}]'

    parsed = _parse("canonical", reply)

    assert [(action.x, action.y) for action in parsed.actions] == [(1279, 0), (1279, 0)]
    assert parsed.out_of_range == 1
    assert parsed.warnings == (
        "the point (5000, -3) lies outside of 1280x720 and was moved to the nearest edge",
    )
    assert parsed.problems == ()


def test_thought_and_thinking_are_kept_apart_from_actions() -> None:
    reply = '<think>{"action": "wait"}</think>Next: {"action": "click", "x": 100, "y": 50}'

    parsed = _parse("canonical", reply)

    assert parsed.actions == (CLICK,)
    assert parsed.thought == '{"action": "wait"}\nNext:'


def test_scaled_screenshot_is_scaled_back() -> None:
    reply = '{"action": "click", "x": 50, "y": 25}'

    assert _parse("canonical", reply, sent=(640, 360)).actions == (CLICK,)


@pytest.mark.parametrize("name", FAMILIES)
def test_system_prompt_and_tools_state_the_size(name: str) -> None:
    family = find_family(name)
    space = family.space(SCREEN)
    told = family.system_prompt(space) + json.dumps(
        [tool.to_json() for tool in family.tools(space)]
    )

    assert str(space.extent.width) in told
    assert str(space.extent.height) in told


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if find_family(name).tools(find_family(name).space(SCREEN))]
)
def test_written_calls_satisfy_the_tool_schema(name: str) -> None:
    family = find_family(name)
    space = family.space(SCREEN)
    tools = family.tools(space)
    actions = [DRAG, CLICK, _type("x"), _key("ctrl", "a")]

    parsed = parse_tool_calls(family.write(actions, space), tools=tools)

    for tool in tools:
        Draft202012Validator.check_schema(dict(tool.parameters))
    assert parsed.calls
    assert [error for call in parsed.calls for error in call_errors(call, tools)] == []


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_family_tells_how_long_its_waits_last(name: str) -> None:
    dialect = Dialect(name, *SCREEN)
    waits = dialect.waits(_wait(12.6))

    assert sum(wait.seconds for wait in waits) >= 12.6
    assert dialect.read(dialect.write(waits)).actions == tuple(waits)


def test_unknown_family_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"action family 'qwen3vl'.*mean 'qwen3-vl'"):
        find_family("qwen3vl")
