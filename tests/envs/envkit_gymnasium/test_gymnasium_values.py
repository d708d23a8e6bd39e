"""Values of Gymnasium's spaces as JSON, and terminal drawings as text."""

import json
import math
import random
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.reply import Reply
from envkit_gymnasium import GymnasiumEnv
from envkit_gymnasium.ansi import Mark, read_ansi, show_ansi
from envkit_gymnasium.inner import rules_of
from envkit_gymnasium.replies import ActionReader
from envkit_gymnasium.sentences import describe_space, show_value
from envkit_gymnasium.values import NoValue, check_playable, json_schema, plain_json, read_value

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5, start=-2),
    "scalar": spaces.Box(-1.0, 2.0, (1,), np.float32),
    "bare scalar": spaces.Box(-1.0, 2.0, (), np.float64),
    "vector": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 9], np.float32)),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "matrix of bytes": spaces.Box(0, 255, (2, 3), np.uint8),
    "binary": spaces.MultiBinary(4),
    "binary table": spaces.MultiBinary((2, 3)),
    "multi discrete": spaces.MultiDiscrete([3, 4], start=[1, -1]),
    "text": spaces.Text(8, charset="abc "),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,)))),
    "object": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.MultiBinary(2)])}),
}
READERS = {
    (name, form): ActionReader(space, form=form, most=2)
    for name, space in SPACES.items()
    for form in ("tool", "tags")
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda part: (
        st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=3), part, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("form", ["tool", "tags"])
@pytest.mark.parametrize("name", SPACES)
def test_action_survives_writing_and_reading(name: str, form: str) -> None:
    space = SPACES[name]
    space.seed(7)
    reader = ActionReader(space, form=form)
    for _ in range(50):
        action: Any = space.sample()
        read = reader.read(Reply(text="I think so. " + reader.write(action)))
        assert read.error is None, read.error
        assert len(read.values) == 1
        for back in read.values:
            _assert_same(name, space, back, action)


def _assert_same(name: str, space: spaces.Space[Any], back: Any, action: Any) -> None:
    assert space.contains(back)
    if name == "tuple":
        assert np.array_equal(back[1], action[1])
    elif name != "object":
        assert np.array_equal(back, action)


@pytest.mark.parametrize("name", SPACES)
def test_schema_of_a_space_accepts_its_written_values(name: str) -> None:
    from jsonschema import Draft202012Validator

    space = SPACES[name]
    space.seed(3)
    Draft202012Validator.check_schema(json_schema(space))
    reader = ActionReader(space, form="tool")
    for _ in range(20):
        written = reader.write(space.sample()).removeprefix("<tool_call>")
        call = json.loads(written.removesuffix("</tool_call>"))
        assert reader.tools[0].validate(call["arguments"]) == []


@settings(deadline=None)
@given(value=JSON, name=st.sampled_from(sorted(SPACES)))
def test_any_json_is_an_element_or_gets_a_sentence(value: object, name: str) -> None:
    space, sentence = SPACES[name], ""
    try:
        element = read_value(space, value)
    except NoValue as reason:
        sentence, element = str(reason), None

    assert sentence or space.contains(element)
    assert not sentence or sentence.startswith(("it must", "its numbers"))
    assert len(sentence) < 400


@settings(deadline=None)
@given(reply=st.text(max_size=200), name=st.sampled_from(sorted(SPACES)))
def test_any_reply_is_read_or_refused_without_an_exception(reply: str, name: str) -> None:
    for form in ("tool", "tags"):
        tagged = f"<action>{reply}</action>"
        for text in (reply, tagged, f'<tool_call>{{"name": "act", "arguments": {reply}'):
            read = READERS[name, form].read(Reply(text=text))
            assert (read.error is None) == bool(read.values)


def test_wrong_values_are_refused_by_the_rule_that_they_break() -> None:
    wrong: list[tuple[str, object, str]] = [
        ("discrete", 3, "from -2 to 2"),
        ("discrete", 10**400, "a number"),
        ("scalar", 2.5, "bounds -1 to 2"),
        ("scalar", math.inf, "a number"),
        ("vector", [0], "a list of 2"),
        ("vector", [0, "x"], "a number"),
        ("matrix of bytes", [[0, 1, 2], [3, 4, 256]], "bounds 0 to 255"),
        ("matrix of bytes", [[0, 1, 2], [3, 4, -1]], "bounds 0 to 255"),
        ("matrix of bytes", [[0, 1, 2], [3, 4, 0.5]], "whole numbers"),
        ("matrix of bytes", [[0, 1, 2], [3, 4, 1e300]], "too large"),
        ("unbounded", [0, 1, 2, 3], "a list of 3"),
        ("binary", [0, 1, 2, 0], "it must be in"),
        ("multi discrete", [0, 0], "it must be in"),
        ("text", "xyz", "it must be in"),
        ("text", 3, "a string"),
        ("tuple", [1], "a list of 2"),
        ("object", {"a": 1}, "the keys"),
        ("object", 1, "an object"),
    ]
    for name, value, message in wrong:
        with pytest.raises(NoValue, match=message):
            read_value(SPACES[name], value)


def test_space_without_a_json_form_is_refused_also_inside_another() -> None:
    odd = spaces.Sequence(spaces.Discrete(2))
    for space in (odd, spaces.Tuple([odd]), spaces.Dict({"a": odd})):
        with pytest.raises(ConfigurationError, match="got Sequence"):
            check_playable(space)


def test_spaces_are_described_with_their_bounds_and_names() -> None:
    described = {name: describe_space(space) for name, space in SPACES.items()}

    assert described["discrete"] == "an integer from -2 to 2"
    assert described["scalar"] == "a number from -1 to 2"
    assert described["vector"] == "a list of 2: a number from -1 to 1; a number from 0 to 9"
    assert described["unbounded"] == "a list of 3 numbers, each of any size"
    assert described["binary"] == "a list of shape (4,) of 0 and 1"
    assert described["multi discrete"] == (
        "a list of 2: an integer from 1 to 3; an integer from -1 to 2"
    )
    assert described["text"] == "a text of 1 to 8 characters"
    assert "'a': an integer from 0 to 2" in described["object"]
    assert describe_space(spaces.Discrete(2), ["no", "yes"]) == "one of no (0), yes (1)"


def test_values_are_shown_with_names_and_few_digits() -> None:
    vector = np.array([1 / 3, -0.0], np.float32)
    assert show_value(SPACES["vector"], vector, names=["x", "y"])[0] == "x: 0.3333\ny: 0"
    assert show_value(SPACES["vector"], vector, digits=2)[0] == "[0.33, 0]"
    assert show_value(SPACES["tuple"], (1, vector))[0] == "[1, [0.3333, 0]]"
    assert show_value(SPACES["binary table"], np.eye(2, 3, dtype=np.int8))[0] == (
        "[[1, 0, 0],\n [0, 1, 0]]"
    )


def test_plain_json_refuses_what_has_no_json_form() -> None:
    assert plain_json({"a": np.float32(0.5), 1: (np.arange(2), None)}) == {
        "a": 0.5,
        "1": [[0, 1], None],
    }
    for value in (math.nan, [np.inf], object(), {"a": {1, 2}}):
        with pytest.raises(TypeError):
            plain_json(value)


def test_ansi_styles_become_marks() -> None:
    drawn = "\n\x1b[34;1mB\x1b[0m:\x1b[41m x\x1b[49m\n\x1b[38;5;9my\x1b[39m\x1b[7mz\x1b[27m\x1b[2J"
    text, marks = read_ansi(drawn)

    assert text == "B: x\nyz"
    assert marks == [
        Mark(1, 1, "B", "bold blue"),
        Mark(1, 3, " x", "on red"),
        Mark(2, 1, "y", "coloured"),
        Mark(2, 2, "z", "inverse"),
    ]
    assert show_ansi("\nplain\n\n") == "plain"


def _captioned() -> st.SearchStrategy[str]:
    lines = st.sampled_from(
        ["", "  ", "(Up)", "  (Down)", "(up)", "\x1b[41m(Up)\x1b[0m", "S\x1b[41mF"]
    )
    return st.lists(lines, max_size=5).map("\n".join)


def test_drawing_has_the_same_rows_before_and_after_the_first_move() -> None:
    env = GymnasiumEnv(env="FrozenLake-v1", env_kwargs={"is_slippery": False})
    texts = [env.reset(seed=1)[0]["text"]]
    for action in ("down", "down", "right", "down"):
        call = {"name": "act", "arguments": {"action": action}}
        step = env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        texts.append(step.observation["text"])

    places = [re.findall(r"- row (\d), column (\d)", text) for text in texts]
    assert places == [[("1", "1")], [("2", "1")], [("3", "1")], [("3", "2")], [("4", "2")]]
    assert all(text.startswith("SFFF\nFHFH\nFFFH\nHFFG\n") for text in texts)


@settings(deadline=None)
@given(st.text(alphabet="ab \n\x1b[]m0;14879:\x07", max_size=60) | _captioned())
def test_ansi_of_any_text_keeps_every_mark_where_it_says(drawn: str) -> None:
    text, marks = read_ansi(drawn)
    lines = text.split("\n")

    assert "\x1b" not in text
    for mark in marks:
        line = lines[mark.row - 1].ljust(200)
        assert line[mark.column - 1 : mark.column - 1 + len(mark.text)] == mark.text


def test_ansi_with_many_marks_is_cut() -> None:
    rng = random.Random(0)
    drawn = "".join(f"\x1b[{rng.choice((31, 32))}m.\x1b[0m " for _ in range(500))
    assert show_ansi(drawn).endswith("- and 300 more")


def test_rules_leave_out_programming_and_keep_the_game() -> None:
    for name in ("FrozenLake-v1", "Acrobot-v1", "Taxi-v4"):
        env = gymnasium.make(name)
        rules = rules_of(env, {}, has_names=True)
        env.close()
        assert "Starting State" in rules
        assert not [word for word in ("gym.make", "Version History", "<a ", "](") if word in rules]
    assert rules_of(gymnasium.Env(), {"a": 1}, has_names=False) == ""
