"""Declarations of MCP servers are checked before anything starts."""

from typing import Any

import pytest

from envkit.errors import ConfigurationError
from envkit_mcp.declaration import McpLimits, McpServer, read_servers

COMMAND = {"command": ["server"]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "at least one MCP server"),
        ((), "at least one MCP server"),
        ("server", "servers must be"),
        (["server"], "servers must hold McpServer, got str"),
        ({"x": "server"}, "must be a mapping"),
        ({"x": {}}, "either command or url, got neither"),
        ({"x": {**COMMAND, "url": "http://127.0.0.1:1/mcp"}}, "got both"),
        ({"x": {"command": "server --fast"}}, "must be a list of words"),
        ({"x": {"command": ["server", 3]}}, "must be a list of words"),
        ({"x": {"url": "127.0.0.1:8000"}}, "must be an address"),
        ({"x": {"url": "http://me:secret@127.0.0.1/mcp"}}, "no user and no password"),
        ({"x": {**COMMAND, "env": {"A": 1}}}, "must map names to texts"),
        ({"x": {**COMMAND, "tools": [1]}}, "must be a list of names"),
        ({"x": {**COMMAND, "prefix": "a b"}}, "prefix must have"),
        ({"x": {**COMMAND, "era": "2024"}}, "must be one of"),
        ({"x": {**COMMAND, "arguments": []}}, "no key 'arguments'"),
    ],
)
def test_declaration_that_cannot_work_is_rejected(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_servers(given)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_declarations_are_read_from_json_and_from_objects() -> None:
    (server,) = read_servers({"x": {**COMMAND, "tools": ["a"], "is_shared": True}})
    assert server == McpServer(name="x", command=("server",), tools=("a",), is_shared=True)
    assert read_servers([server]) == (server,)
    assert server.identity != McpServer(name="x", command=("other",)).identity


def test_limits_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="call_timeout_s"):
        McpLimits(call_timeout_s=0)
