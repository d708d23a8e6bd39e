"""The canonical JSON of actions, its schema, and the table of keys."""

from typing import Any

import pytest
from fakes.computer_actions import ACTIONS, KEY_CHARACTERS
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from envkit_actions import (
    ACTION_SCHEMA,
    BATCH_SCHEMA,
    Action,
    ActionKind,
    Button,
    MalformedActionError,
    Status,
    from_json,
    to_json,
)
from envkit_actions.keys import (
    TABLE,
    KeyColumn,
    canonical_key,
    chord,
    key_name,
    split_chord,
)

VALIDATOR: Any = Draft202012Validator(ACTION_SCHEMA)


def test_schemas_are_valid_schemas() -> None:
    Draft202012Validator.check_schema(ACTION_SCHEMA)
    Draft202012Validator.check_schema(BATCH_SCHEMA)


@given(ACTIONS)
def test_json_follows_the_schema_and_reads_back(action: Action) -> None:
    written = to_json(action)

    VALIDATOR.validate(written)
    assert from_json(written) == action


NUMBERS = st.integers(-5, 2000) | st.floats(-5, 2000)
POINTS = st.lists(NUMBERS, min_size=2, max_size=2)
OBJECTS = st.fixed_dictionaries(
    {"action": st.sampled_from([kind.value for kind in ActionKind])},
    optional={
        "x": NUMBERS,
        "y": NUMBERS,
        "to": POINTS,
        "path": st.lists(POINTS, max_size=3),
        "button": st.sampled_from(["left", "right", "middle", "wheel"]),
        "dx": NUMBERS,
        "dy": NUMBERS | st.just("far"),
        "text": st.text(max_size=4) | st.just(["no"]),
        "keys": st.lists(st.sampled_from(["ctrl", "c", "f12"]), max_size=3, unique=True),
        "seconds": NUMBERS,
        "status": st.sampled_from(["success", "failure", "maybe"]),
        "colour": st.just("red"),
    },
)


@given(OBJECTS)
def test_reader_takes_all_that_the_schema_allows(value: dict[str, Any]) -> None:
    if VALIDATOR.is_valid(value):
        assert from_json(value).kind == value["action"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "an action needs 'action'"),
        ([], "must be an object, got a list"),
        ({"action": "fly"}, "'action' must be one of click, .*, got 'fly'"),
        ({"action": "click", "x": 1}, "click needs 'y'"),
        ({"action": "click", "x": True, "y": 1}, "'x' must be a number, got True"),
        ({"action": "click", "colour": 1}, "unknown field 'colour'"),
        ({"action": "click", "x": 1, "y": 1, "button": "wheel"}, "'button' must be one of left"),
        ({"action": "move"}, "move needs 'x'"),
        ({"action": "drag", "x": 1, "y": 1}, "drag needs either 'to' or 'path'"),
        ({"action": "drag", "to": [1]}, r"'to' must be \[x, y\], got a list"),
        ({"action": "drag", "path": []}, "'path' must be a list of 1 to 100 points"),
        ({"action": "scroll"}, "scroll needs 'dy'"),
        ({"action": "scroll", "dy": 1e9}, "at most 100000"),
        ({"action": "type"}, "type needs 'text'"),
        ({"action": "type", "text": [1]}, "'text' must be a string, got a list"),
        ({"action": "key", "keys": []}, "1 to 6 keys, got 0"),
        ({"action": "key", "keys": ["ctlr"]}, "no key 'ctlr'.*did you mean 'ctrl'"),
        ({"action": "key", "keys": ["a", "A"]}, "repeated in 'a[+]a'"),
        ({"action": "key", "keys": [1]}, "must hold only strings"),
        ({"action": "wait", "seconds": -1}, "0 to 600, got -1"),
        ({"action": "terminate"}, "terminate needs 'status'"),
    ],
)
def test_malformed_json_is_refused_with_a_sentence(value: object, sentence: str) -> None:
    with pytest.raises(MalformedActionError, match=sentence):
        from_json(value)


def test_json_of_a_click_is_as_short_as_documented() -> None:
    action = Action(kind=ActionKind.CLICK, x=3, y=4, button=Button.RIGHT, keys=("ctrl",))

    assert to_json(action) == {
        "action": "click",
        "x": 3,
        "y": 4,
        "button": "right",
        "keys": ["ctrl"],
    }
    assert to_json(Action(kind=ActionKind.TERMINATE, status=Status.FAILURE)) == {
        "action": "terminate",
        "status": "failure",
    }


@pytest.mark.parametrize("column", list(KeyColumn))
def test_key_names_of_every_family_are_read(column: KeyColumn) -> None:
    for key in [*TABLE, *KEY_CHARACTERS]:
        assert canonical_key(key_name(key, column)) == key
        assert canonical_key(key_name(key, column).lower()) == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Return", "enter"),
        ("KP_Enter", "enter"),
        ("Prior", "pageup"),
        ("Page_Up", "pageup"),
        ("pgdn", "pagedown"),
        ("cmd", "meta"),
        ("super", "meta"),
        ("win", "meta"),
        ("Control_L", "ctrl"),
        ("ControlOrMeta", "ctrl"),
        ("option", "alt"),
        ("esc", "escape"),
        ("ArrowLeft", "left"),
        ("Digit7", "7"),
        ("KeyQ", "q"),
        (" ", "space"),
        ("plus", "+"),
        ("É", "é"),
    ],
)
def test_key_aliases_are_read(name: str, key: str) -> None:
    assert canonical_key(name) == key


@pytest.mark.parametrize("name", ["", "\n", "\u0130", "zzz" * 50, "\ud800"])
def test_invalid_key_is_refused(name: str) -> None:
    with pytest.raises(MalformedActionError, match="no key"):
        canonical_key(name)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ctrl+shift+T", ("ctrl", "shift", "t")),
        ("ctrl c", ("ctrl", "c")),
        ("ctrl++", ("ctrl", "+")),
        ("+", ("+",)),
        ("A", ("shift", "a")),
        (" ", ("space",)),
    ],
)
def test_chords_are_split(text: str, keys: tuple[str, ...]) -> None:
    assert chord(split_chord(text)) == keys
