"""JSON of tools: integers written as 3.0, and schemas without their grammar."""

import json
from typing import Any, Literal, Optional

import pytest
from fakes.needs import packages
from fakes.processes import run_python

import envkit
from envkit.registration import make
from envkit.toolcalls import ToolCall, parse_tool_calls
from envkit.tools import ToolSpec
from envkit.toolset import ToolRunner, ToolSet

_WRITTEN = {
    "hermes": '<tool_call>{{"name": "take", "arguments": {{"value": {0}}}}}</tool_call>',
    "qwen_xml": "<function=take><parameter=value>{0}</parameter></function>",
    "qwen blocks": (
        "<tool_call><function=take><parameter=value>\n{0}\n</parameter></function></tool_call>"
    ),
    "glm": "<tool_call>take<arg_key>value</arg_key><arg_value>{0}</arg_value></tool_call>",
    "llama": '{{"name": "take", "parameters": {{"value": {0}}}}}',
    "llama tag": '<|python_tag|>{{"name": "take", "parameters": {{"value": {0}}}}}',
    "mistral": '[TOOL_CALLS] [{{"name": "take", "arguments": {{"value": {0}}}}}]',
    "mistral args": '[TOOL_CALLS]take[ARGS]{{"value": {0}}}',
}
_HINTS: list[tuple[Any, str, Any]] = [
    (int, "3.0", 3),
    (int, "-0.0", 0),
    (int, "3e2", 300),
    (int, "1e22", 10**22),
    (int, "9007199254740993.0", 2**53 + 1),
    (list[int], "[-12345678901234567891.00]", [-12345678901234567891]),
    (int | None, "3.0", 3),
    (Optional[int], "3.0", 3),  # noqa: UP045  # the older form
    (int | bool, "3.0", 3),
    (Literal[1, 2, 3], "3.0", 3),
    (list[int], "[1.0, 2, 3.0]", [1, 2, 3]),
    (list[int | None], "[1.0, null]", [1, None]),
    (dict[str, int], '{"a": 1.0}', {"a": 1}),
    (dict[str, list[int]], '{"a": [1.0]}', {"a": [1]}),
    (tuple[int, float], "[1.0, 2.0]", [1, 2.0]),
    (list[int] | int, "[4.0]", [4]),
    (list[int] | int, "4.0", 4),
    (dict[str, int] | list[list[int]], "[[4.0]]", [[4]]),
    (list[dict[str, int | list[int]]], '[{"a": 1.0, "b": [2.0]}]', [{"a": 1, "b": [2]}]),
    (float, "3.0", 3.0),
    (int | float, "3.0", 3.0),
    (list[int | float], "[3.0, 4]", [3.0, 4]),
    (list[int] | list[float], "[3.0]", [3.0]),
    (Any, "3.0", 3.0),
    (list, "[3.0]", [3.0]),
]


def _spec(hint: Any, taken: list[Any]) -> ToolSpec:
    def take(value: Any) -> str:
        """
        Take a value.

        Args:
            value: What to take.
        """
        taken.append(value)
        return "taken"

    take.__annotations__["value"] = hint
    return ToolSpec.from_function(take)


@pytest.mark.parametrize("form", _WRITTEN)
async def test_tool_takes_the_integers_that_its_hint_says(form: str) -> None:
    for hint, written, meant in _HINTS:
        taken: list[Any] = []
        spec = _spec(hint, taken)

        found = parse_tool_calls(_WRITTEN[form].format(written), tools=(spec,))
        results = await ToolRunner(ToolSet(specs=(spec,))).run(found.calls)

        assert [result.status for result in results] == ["ok"], (hint, written, results)
        if hint is Any and form in ("qwen_xml", "qwen blocks", "glm"):
            continue  # text without a type stays text
        assert repr(taken) == repr([meant]), (hint, written)
        assert json.dumps(found.calls[0].arguments) == json.dumps({"value": meant})


@pytest.mark.parametrize("form", _WRITTEN)
@pytest.mark.parametrize(
    ("hint", "written"),
    [
        (int, "3.5"),
        (list[int], "[1.0, 2.5]"),
        (int | None, "0.1"),
        (dict[str, int], '{"a": 1.5}'),
    ],
)
async def test_number_with_a_fraction_is_a_parse_error(form: str, hint: Any, written: str) -> None:
    taken: list[Any] = []
    env = envkit.ToolEnv([_spec(hint, taken)], [{"prompt": "go"}], lambda context: 0.0)
    await env.areset(seed=0)

    step = await env.astep(_WRITTEN[form].format(written))

    assert not taken
    assert "is not" in step.info["parse_error"]
    await env.aclose()


async def test_call_that_was_read_without_its_tool_is_played_with_integers() -> None:
    taken: list[Any] = []
    spec = _spec(list[int], taken)
    call = ToolCall(name="take", arguments={"value": [2.0]}, id="a")

    await ToolRunner(ToolSet(specs=(spec,))).run([call])
    spec(value=[5.0])

    assert repr(taken) == "[[2], [5]]"
    assert call.arguments == {"value": [2.0]}


@pytest.mark.parametrize(
    ("schema", "given", "meant"),
    [
        ({"$ref": "#/$defs/count"}, 2.0, 2),
        ({"$ref": "#/$defs/tree"}, {"n": 1.0, "of": [{"n": 2.0}]}, {"n": 1, "of": [{"n": 2}]}),
        ({"anyOf": [{"$ref": "#/$defs/count"}, {"type": "null"}]}, 2.0, 2),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 2.0, 2),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, 2.0, 2),
        ({"enum": [1, 2]}, 2.0, 2),
        ({"enum": [1, 2.0]}, 2.0, 2.0),
        ({"const": 7}, 7.0, 7),
        ({"type": ["integer", "null"]}, 2.0, 2),
        ({"type": ["number", "null"]}, 2.0, 2.0),
        (
            {"type": "object", "patternProperties": {"^n": {"type": "integer"}}},
            {"n1": 2.0, "x": 2.0},
            {"n1": 2, "x": 2.0},
        ),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, [1.0, 1.0], [1, 1.0]),
        ({"type": "integer", "nullable": True}, 2.0, 2),
        ({}, 2.0, 2.0),
        (True, 2.0, 2.0),
        ({"$ref": "#/$defs/loop"}, 2.0, 2.0),
        ({"$ref": "#/nowhere"}, 2.0, 2.0),
        ({"type": 7}, 2.0, 2.0),
        ({"patternProperties": {"(": {}}}, {"a": 2.0}, {"a": 2.0}),
    ],
)
def test_written_schema_says_where_integers_are(schema: Any, given: Any, meant: Any) -> None:
    tree = {
        "properties": {
            "n": {"type": "integer"},
            "of": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/tree"}]}},
        }
    }
    parameters = {
        "type": "object",
        "properties": {"value": schema},
        "$defs": {"count": {"type": "integer"}, "tree": tree, "loop": {"$ref": "#/$defs/loop"}},
    }
    spec = ToolSpec(name="take", description="", parameters=parameters)

    assert repr(spec.with_integers({"value": given})) == repr({"value": meant})


def test_environment_reads_whole_numbers() -> None:
    env = make("search-v0", protocol="tools")
    env.reset(seed=0)
    call = '<tool_call>{"name": "search", "arguments": {"query": "Orla", "topk": %s}}</tool_call>'
    assert env.step(call % "2.0").info["parse_error"] is None
    assert env.step(call % "2.5").info["parse_error"]
    env.close()
    grid = make("gymnasium-v0", action_names=[])
    grid.reset(seed=0)
    call = '<tool_call>{"name": "act", "arguments": {"action": %s}}</tool_call>'
    assert grid.step(call % "2.0").info["parse_error"] is None
    assert grid.step(call % "2.5").info["parse_error"]
    tags = make("gymnasium-v0", action_names=[], action_form="tags")
    tags.reset(seed=0)
    assert tags.step("<action>2.0</action>").info["parse_error"] is None
    assert tags.step("<action>2.5</action>").info["parse_error"]


IRIS = ["http://example.org/\u00fc", "http://[", "a b", "\u00fc", "//", ""]
OURS = "from envkit.json_schema import jsonschema; library = jsonschema()"
PLAIN = "import jsonschema as library"
VERDICTS = f"""
import json
checker = library.FormatChecker()
def valid(kind, text):
    validator = library.Draft202012Validator({{"format": kind}}, format_checker=checker)
    return [error.message for error in validator.iter_errors(text)]
print(json.dumps([valid(kind, text) for kind in sorted(checker.checkers) for text in {IRIS!r}]))
"""
TOOL = """
import sys
from envkit.tools import ToolSpec
spec = ToolSpec(name="go", description="Go.", parameters={"properties": {"to": {"enum": ["a"]}}})
print(spec.validate({"to": "b"}))
print("lark" in sys.modules, "rfc3987_syntax" in sys.modules)
"""


@pytest.mark.slow  # the plain import takes five seconds
def test_formats_get_the_verdicts_of_a_plain_import() -> None:
    packages("rfc3987_syntax").require()
    ours, plain = (json.loads(run_python("-c", code + VERDICTS)) for code in (OURS, PLAIN))
    assert ours == plain
    assert any(ours)


def test_tool_calls_are_validated_without_the_grammar() -> None:
    said, imported = run_python("-c", TOOL).splitlines()
    assert "'b' is not one of ['a']" in said
    assert imported == "False False"
