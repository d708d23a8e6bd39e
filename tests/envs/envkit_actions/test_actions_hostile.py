"""Replies that no family can read: never an exception, and a bounded number of operations."""

import re
import sys
from typing import Any

import pytest
from fakes.budget import examples
from fakes.computer_actions import ACTIONS, SCREEN
from fakes.malformed_replies import PIECES
from fakes.matrix import share
from hypothesis import given, settings
from hypothesis import strategies as st

import envkit_actions
from envkit_actions.reply import MAX_BODY

MAX_CALLS = 20_000
"""Function calls, Python's and C's, that one reply may cost: under 5 ms of them."""
SIZE = MAX_BODY - 200
CALL = "<tool_call>"
LARGE = {
    "brackets": "[" * SIZE,
    "objects in lists": "[{" * (SIZE // 2),
    "nested objects": '{"a":' * (SIZE // 5),
    "a long list": '{"action":"click","x":[' + "1," * (SIZE // 2 - 20),
    "opened keys": '{"' * (SIZE // 2),
    "tool calls": CALL * (SIZE // 11),
    "a tool call of spaces": CALL + " " * (SIZE - 20),
    "a tool call of marks": CALL + "<" * (SIZE - 20),
    "parameters": CALL + "<function=a>" + "<parameter=b>1" * (SIZE // 15),
    "escaped quotes": CALL + '{"name":"computer","arguments":{"text":"' + '\\"' * (SIZE // 2 - 99),
    "escapes": '{"action":"type","text":"' + "\\n" * (SIZE // 2 - 99) + '"}',
    "a long number": '{"action":"click","x":' + "9" * (SIZE - 99) + ',"y":1}',
    "a long number in a call": "click(start_box=(" + "9" * (SIZE - 99) + ",1))",
    "a long number in pyautogui": "pyautogui.click(" + "9" * (SIZE - 99) + ")",
    "a long hexadecimal": "pyautogui.click(0x" + "f" * (SIZE - 99) + ", 1)",
    "parentheses": "(" * SIZE,
    "many calls": "wait();" * (SIZE // 8),
    "many clicks": "pyautogui.click(1,2);" * (SIZE // 22),
    "a sum": "1+" * (SIZE // 2) + "1",
    "a negation": "not " * (SIZE // 4) + "1",
    "minus signs": "-" * SIZE,
    "attributes": "a" + ".b" * (SIZE // 2),
    "double quotes": '"' * SIZE,
    "single quotes": "'" * SIZE,
    "backslashes": "\\" * SIZE,
    "backslashes and quotes": '\\"' * (SIZE // 2),
    "f-strings": 'f"{' * (SIZE // 3),
    "line breaks": "\n" * SIZE,
    "spaces": " " * SIZE,
    "braces and spaces": ("{" + " " * 50) * (SIZE // 51),
    "actions": "Action:\n" * (SIZE // 8),
    "thinking": "<think>" * (SIZE // 7),
    "loose quotes": "type(content='" + "'" * (SIZE - 99) + "')",
    "loose quotes on a phone": 'do(action="Type", text="' + '"' * (SIZE - 99) + '")',
    "opened boxes": "<|begin_of_box|>" * (SIZE // 16),
    "memories": "left_click(" + "\nMemory:" * (SIZE // 9),
    "function calls": '{"functionCall":' * (SIZE // 16),
    "loose ends": "type(content='" + "')\n" * (SIZE // 3 - 99) + "')",
    "loose escapes": "type(content=''" + "\\n" * 700 + " " * (SIZE - 2000) + "')",
    "fences": "```" * (SIZE // 3),
    "unknown keys": '{"action":"key","keys":[' + '"zzzzz",' * (SIZE // 9) + "]}",
    "batch of unknown keys": "[" + '{"action":"key","keys":["zz"]},' * 60 + "]",
    "keyword arguments": "pyautogui.click(" + "x=1," * 480 + ")",
    "joined strings": "pyautogui.write(" + '"a" ' * 1400 + ")",
    "prose": "hello world " * (SIZE // 12),
}
HUGE = {
    "letters": "x" * 10_000_000,
    "braces": "{" * 10_000_000,
    "thinking": "<think>" + "x" * 10_000_000,
    "closed thinking": "<think>" + "x" * 10_000_000 + "</think>nothing more to say {",
    "quotes": "Action: type(content='" + "'" * 10_000_000,
}


def _parse(name: str, reply: str) -> envkit_actions.ParsedActions:
    family = envkit_actions.find_family(name)
    return family.parse(reply, family.space(SCREEN))


def _calls(name: str, reply: str) -> int:
    """Return how many function calls a parse costs."""
    count = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    family = envkit_actions.find_family(name)
    space = family.space(SCREEN)
    sys.setprofile(profile)
    try:
        family.parse(reply, space)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("case", LARGE)
def test_large_reply_costs_a_bounded_number_of_calls(case: str) -> None:
    for name in envkit_actions.FAMILIES:
        _parse(name, "{}")  # imports and compiled patterns are not the reply's

        assert _calls(name, LARGE[case]) < MAX_CALLS, name


@pytest.mark.parametrize("case", share(HUGE, of=3))
def test_huge_reply_is_never_read_whole(case: str) -> None:
    for name in envkit_actions.FAMILIES:
        parsed = _parse(name, HUGE[case])

        assert parsed.problems or parsed.actions  # text alone is an end in three families
        assert _calls(name, HUGE[case]) < 200
        assert len(parsed.thought) <= 2 * MAX_BODY


@pytest.mark.parametrize("name", envkit_actions.FAMILIES)
def test_reply_beyond_the_limit_says_how_long_it_may_be(name: str) -> None:
    (problem,) = _parse(name, "x" * 100_000).problems

    assert problem == (
        f"the reply has 100000 characters; write at most {MAX_BODY}, thinking not counted"
    )


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *PIECES,
            "```python\n",
            "```",
            "<action>",
            "</action>",
            '{"name": "computer_use", "arguments": ',
            '{"name": "computer", "arguments": ',
            '{"type": "computer_call", "actions": [',
            '{"type": "click", "x": 1, "y": 2}',
            '{"action": "left_click", "coordinate": [1, 2]}',
            '{"action": "click", "x": 1, "y": 2}',
            '{"action": "key", "keys": ["ctrl"]}',
            '{"action": "zoom", "region": [1, 2, 3]}',
            '{"action": ',
            '"coordinate": ',
            '"actions": ',
            '"path": [[1, 2], ',
            "click(start_box='(1,2)')",
            "drag(start_box='<point>1 2</point>', end_box='[1,2,3,4]')",
            "type(content='",
            "hotkey(key='ctrl c')",
            "mouse_click(1, 2)",
            "<|begin_of_box|>",
            "<|end_of_box|>",
            "\nMemory: ",
            "left_drag(start_box='[1,2]', end_box='[3,4]')",
            'do(action="Tap", element=[1,2])',
            'do(action="Type", text="',
            "finish(message=",
            '{"functionCall": {"name": "click_at", "args": ',
            '{"name": "type", "args": {"text": "a"}}',
            '{"text": "so"}',
            "keyboard_down('Shift')",
            "keyboard_up('Shift')",
            "pyautogui.keyDown('a')",
            "pyautogui.press(['a'], presses=3)",
            "time.sleep(1)",
            "x=1",
            "*[1]",
            "**{}",
            "lambda: 0",
            "WAIT",
            "Infinity",
            "-1",
            "true",
        ]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=examples(200))
@given(FRAGMENTS | st.text(max_size=60))
def test_no_reply_raises(reply: str) -> None:
    for name in envkit_actions.FAMILIES:
        _check_is_sound(_parse(name, reply))


def _check_is_sound(parsed: envkit_actions.ParsedActions) -> None:
    assert parsed.actions or parsed.problems
    for sentence in (*parsed.problems, *parsed.warnings):
        assert sentence.isprintable() or "\n" in sentence
        assert len(sentence) < 1000
        sentence.encode()  # no lone surrogates
    for action in parsed.actions:
        for x, y in ((action.x or 0, action.y or 0), *action.path):
            assert 0 <= x < SCREEN[0]
            assert 0 <= y < SCREEN[1]
        action.text.encode()


@settings(max_examples=examples(100))
@given(ACTIONS, st.data())
def test_damaged_replies_never_raise(action: envkit_actions.Action, data: st.DataObject) -> None:
    for name in envkit_actions.FAMILIES:
        family = envkit_actions.find_family(name)
        try:
            reply = family.write([action], family.space(SCREEN))
        except envkit_actions.InexpressibleActionError:
            continue
        at = data.draw(st.integers(0, len(reply)))
        junk = data.draw(st.sampled_from(["", '"', "'", "}", "\\", "\ud800", "NaN", "(", "\n"]))
        _check_is_sound(_parse(name, reply[:at] + junk + reply[at + len(junk) :]))
        _check_is_sound(_parse(name, reply[:at]))


TOOL_FAMILIES = ("canonical", "openai", "anthropic-20251124", "qwen3-vl")


@pytest.mark.parametrize("name", TOOL_FAMILIES)
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("NaN", "cannot be read"),
        ("Infinity", "cannot be read"),
        ("1e999", "cannot be read"),
        ("[" * 100, "cannot be read"),
        ('1, "action": "wait", "type": "wait"', "cannot be read"),
        ('"\\ud800", "action": "\\udc00"', "cannot be read|must be one of"),
    ],
)
def test_invalid_json_is_named(name: str, value: str, sentence: str) -> None:
    for wrapped in ("{}", '<tool_call>{{"name": "computer", "arguments": {}}}</tool_call>'):
        reply = wrapped.format('{"action": "type", "type": "type", "text": ' + value + "}")
        parsed = _parse(name, reply)

        assert parsed.actions == ()
        assert re.search(sentence, parsed.problems[0])
