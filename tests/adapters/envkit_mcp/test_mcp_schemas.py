"""A server's tools become tools of envkit, or one clear error; results become text and images."""

import base64
import io
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image as PilImage

from envkit.errors import EnvFault
from envkit.images import Image
from envkit_mcp.checks import all_pass, count, read_checks
from envkit_mcp.declaration import McpServer
from envkit_mcp.results import ToolCallError, read_result
from envkit_mcp.schemas import specs_of

SERVER = McpServer(name="x", command=("server",))


def tool(name: str, schema: object) -> Any:
    return SimpleNamespace(name=name, description=None, title="A title", input_schema=schema)


def result(*content: Any, is_error: bool = False, structured: object = None) -> Any:
    return SimpleNamespace(content=list(content), is_error=is_error, structured_content=structured)


def text(value: str) -> Any:
    return SimpleNamespace(type="text", text=value)


def picture(data: bytes | None = None) -> Any:
    if data is None:
        buffer = io.BytesIO()
        PilImage.new("RGB", (4, 4)).save(buffer, format="PNG")
        data = buffer.getvalue()
    return SimpleNamespace(
        type="image", data=base64.b64encode(data).decode(), mime_type="image/png"
    )


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_schema_with_references_of_its_own_validates_arguments() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "definitions": {"n": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/definitions/n"}, "again": {"$ref": "#"}},
    }
    (spec,) = specs_of(SERVER, [tool("add", schema)], lambda name: lambda: name, most=9)
    assert spec.validate({"a": 1, "again": {"a": 2}}) == []
    assert spec.validate({"a": "one"}) != []
    assert (spec.description, spec()) == ("A title", "add")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/no"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"type": "array"},
        {"type": "object", "required": "a"},
        nested(500),
    ],
)
def test_schema_that_cannot_validate_is_a_fault_that_names_the_tool(schema: object) -> None:
    with pytest.raises(EnvFault, match="'odd'"):
        specs_of(SERVER, [tool("odd", schema)], lambda name: lambda: name, most=9)


def test_result_keeps_the_order_of_text_and_images() -> None:
    parts = read_result(result(text("a"), picture(), text("b")))
    assert [type(part) for part in parts] == [str, Image, str]
    assert read_result(result(structured={"a": 1})) == ['{"a": 1}']


def test_result_with_too_much_is_shortened_with_a_note() -> None:
    parts = read_result(result(*[picture()] * 10))
    assert (len(parts), parts[-1]) == (9, "[2 more images were left out]")
    assert read_result(result(*[text("a")] * 1003))[-1] == "[3 more parts were left out]"


def test_what_cannot_be_shown_is_a_note() -> None:
    link = SimpleNamespace(type="resource_link", uri="demo://x", title=None, name="X")
    sound = SimpleNamespace(type="audio", mime_type="audio/wav")
    blob = SimpleNamespace(text=None, blob="AAAA", mime_type=None, uri="demo://y")
    resource = SimpleNamespace(type="resource", resource=blob)
    new = SimpleNamespace(type="hologram")
    assert read_result(result(link, sound, resource, new, picture(b"broken"))) == [
        "[resource demo://x: X]",
        "[audio of type audio/wav, not shown]",
        "[resource demo://y of type unknown, not shown]",
        "[content of type hologram, not shown]",
        "[image of type image/png, which cannot be read]",
    ]


def test_failed_result_raises_its_text() -> None:
    with pytest.raises(ToolCallError, match="no such file"):
        read_result(result(text("no such file"), is_error=True))
    with pytest.raises(ToolCallError, match="without a text"):
        read_result(result(is_error=True))


def test_checks_are_read_and_counted() -> None:
    call = {"server": "x", "tool": "list", "arguments": {"a": 1}}
    checks = read_checks({"checks": [{"answer": "a"}, {"call": call, "equals": "b"}]}, ["x"])
    assert [check.tool for check in checks] == [None, "list"]
    assert read_checks({}, ["x"]) == ()
    for passed, reward in (([True, True], 1.0), ([True, False], 0.0), ([], 0.0)):
        context: Any = SimpleNamespace(info=count(passed))
        assert all_pass(context) == reward


def test_patterns_are_shown_and_only_the_server_runs_them() -> None:
    schema = {
        "type": "object",
        "properties": {
            "x": {"type": "string", "pattern": "^(a+)+$"},
            "pattern": {"type": "integer"},
            "patternProperties": {"type": "integer"},
            "y": {"const": {"pattern": "p"}},
            "z": {
                "type": "object",
                "patternProperties": {"^n": {"type": "integer"}},
                "additionalProperties": False,
            },
        },
    }
    (spec,) = specs_of(SERVER, [tool("find", schema)], lambda _: print, most=1)
    assert spec.parameters == schema
    assert spec.validate({"x": "a" * 40 + "!", "y": {"pattern": "p"}, "z": {"q": 1}}) == []
    assert len(spec.validate({"pattern": "a", "patternProperties": "b", "y": {}})) == 3


def test_schema_that_refers_to_itself_for_ever_leaves_the_check_to_the_server() -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}},
    }
    (spec,) = specs_of(SERVER, [tool("find", schema)], lambda _: print, most=1)
    assert spec.validate({"x": 1}) == []
