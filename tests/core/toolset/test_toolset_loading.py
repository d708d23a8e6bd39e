"""Tool sets from Python files and configurations."""

import builtins
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.budget import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envkit import ToolEnv
from envkit.errors import ConfigurationError, MissingDependencyError, UnknownNameError
from envkit.toolset import load_tools

SOURCE = '''
from dataclasses import dataclass

import envkit
from envkit.toolset import ToolSet


@dataclass
class Point:
    x: "int"


@envkit.tool
def shout(text: str) -> str:
    """Write in capitals.

    Args:
        text: What.
    """
    return text.upper()


@envkit.tool(name="count")
async def length(text: str) -> int:
    """Count characters.

    Args:
        text: Of what.
    """
    return len(text)


@envkit.tool
def _hidden() -> None:
    """Stay away."""


def plain(text: str) -> str:
    """Repeat.

    Args:
        text: What.
    """
    return text


PAIR = [shout, plain]
SLOW = ToolSet(specs=(length,), timeout_s=99.0, timeouts={"count": 3.0})
NUMBER = 5


def make() -> ToolSet:
    return ToolSet.of([shout])


def broken() -> ToolSet:
    raise RuntimeError("no key")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(SOURCE)
    return tmp_path


def names(place: str | Path) -> list[str]:
    return [spec.name for spec in load_tools(place).specs]


def write(folder: Path, config: object, name: str = "set.json") -> Path:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_a_python_file_gives_its_public_tools_in_order(folder: Path) -> None:
    assert names(folder / "tools.py") == ["shout", "count"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("shout", ["shout"]),
        ("plain", ["plain"]),
        ("PAIR", ["shout", "plain"]),
        ("SLOW", ["count"]),
        ("make", ["shout"]),
        ("_hidden", ["_hidden"]),
    ],
)
def test_a_name_in_a_python_file_is_loaded(folder: Path, name: str, found: list[str]) -> None:
    assert names(f"{folder}/tools.py:{name}") == found


def test_two_files_of_the_same_name_are_two_modules(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "tools.py").write_text(SOURCE.replace("upper()", "lower()"))

    first, second = load_tools(folder / "tools.py"), load_tools(other / "tools.py")

    assert (first.specs[0](text="Ab"), second.specs[0](text="Ab")) == ("AB", "ab")


def test_a_configuration_names_tools_and_limits(folder: Path) -> None:
    yaml = """
    tools:
      - tools.py:shout
      - use: tools.py:plain
        name: repeat
        description: Say it again.
        timeout_s: 5
      - tools.py:SLOW
    timeout_s: null
    max_calls: 4
    is_sequential: true
    """
    tools = load_tools(write(folder, yaml, "set.yaml"))

    assert [spec.name for spec in tools.specs] == ["shout", "repeat", "count"]
    assert tools.specs[1].description == "Say it again."
    assert tools.timeouts == {"repeat": 5.0, "count": 3.0}
    assert (tools.timeout_s, tools.max_calls, tools.is_sequential) == (None, 4, True)


def test_a_configuration_in_json_is_the_same(folder: Path) -> None:
    entries = [{"use": "tools.py:SLOW", "name": "measure"}]

    tools = load_tools(write(folder, {"tools": entries, "max_characters": 50}))

    assert [spec.name for spec in tools.specs] == ["measure"]
    assert tools.timeouts == {"measure": 3.0}
    assert tools.max_characters == 50


def test_a_loaded_set_plays(folder: Path) -> None:
    env = ToolEnv(load_tools(folder / "tools.py"), [{"prompt": "?"}], lambda _: 1.0)
    env.reset(seed=0)
    reply = '<tool_call>{"name": "shout", "arguments": {"text": "hi"}}</tool_call>'
    assert env.step(reply).observation["text"] == "HI"
    env.close()


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("missing.py", "there is no Python file"),
        ("missing.json", "cannot read the tool set"),
        ("tools.txt", "a tool set is FILE.py"),
        ("tools.py:shot", "Did you mean 'shout'"),
        ("tools.py:NUMBER", "must be a tool, a list of tools or a ToolSet, got int"),
        ("tools.py:broken", "RuntimeError: no key"),
        ("empty.py", "defines no tools"),
        ("crash.py", "cannot import the tools in .*ZeroDivisionError"),
    ],
)
def test_a_wrong_place_says_why(folder: Path, place: str, sentence: str) -> None:
    (folder / "empty.py").write_text("")
    (folder / "crash.py").write_text("1 / 0")
    loaded = set(sys.modules)

    with pytest.raises(ConfigurationError, match=sentence):
        load_tools(f"{folder}/{place}")

    assert not [name for name in sys.modules.keys() - loaded if "crash" in name]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("{", "as JSON"),
        ("[]", "must be a mapping, got list"),
        ({}, "needs 'tools'"),
        ({"tools": "tools.py"}, "'tools' must be list"),
        ({"tools": [5]}, "tool 1 of 'set.json' must be a mapping, got int"),
        ({"tools": [{"name": "x"}]}, "'use' must be FILE.py"),
        ({"tools": ["set.json"]}, "'use' must be FILE.py"),
        ({"tools": ["tools.py"], "max_call": 3}, "Did you mean 'max_calls'"),
        ({"tools": ["tools.py"], "max_calls": True}, "'max_calls' must be int, got True"),
        ({"tools": ["tools.py"], "max_calls": 0}, "at least 1"),
        ({"tools": ["tools.py", "tools.py:shout"]}, "two tools are named 'shout'"),
        ({"tools": [{"use": "tools.py", "name": "x"}]}, "applies to one tool"),
        ({"tools": [{"use": "tools.py:shout", "name": "a b"}]}, "a tool name must have"),
    ],
)
def test_a_wrong_configuration_says_why(folder: Path, config: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        load_tools(write(folder, config))


def test_broken_yaml_says_why(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="as YAML"):
        load_tools(write(folder, "tools: [", "set.yml"))


def test_yaml_without_its_package_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[yaml\]"):
        load_tools(write(folder, "tools: []", "set.yaml"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["use", "name", "timeout_s", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
CONFIGS = JSON | st.fixed_dictionaries(
    {"tools": JSON | st.lists(st.just("tools.py:shout") | JSON, max_size=3)},
    optional={"timeout_s": JSON, "max_calls": JSON, "is_sequential": JSON, "max_characters": JSON},
)


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(CONFIGS)
def test_any_configuration_is_a_set_or_a_sentence(folder: Path, config: object) -> None:
    path = write(folder, json.dumps(config))
    with contextlib.suppress(ConfigurationError):
        assert load_tools(path).specs


def test_unknown_names_are_lookup_errors_too(folder: Path) -> None:
    with pytest.raises(UnknownNameError):
        load_tools(f"{folder}/tools.py:nothing")
    assert issubclass(UnknownNameError, builtins.LookupError)
