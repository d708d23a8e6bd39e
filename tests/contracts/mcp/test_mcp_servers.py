"""Servers that nobody here wrote, as tools."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contracts.mcp.conftest import python_server

from envkit.images import Image
from envkit_mcp.results import ToolCallError

Npm = Callable[[str], list[str]]


async def test_time_answers_in_both_eras(started: Any) -> None:
    for era in ("auto", "legacy"):
        tools = await started({"time": {"command": python_server("mcp-server-time"), "era": era}})
        arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        (text,) = await tools.call("time", "convert_time", arguments)
        assert "21:00" in text
        with pytest.raises(ToolCallError):
            await tools.call("time", "convert_time", {**arguments, "time": "noon"})
        with pytest.raises(ToolCallError):
            await tools.call("time", "no_such_tool", {})


async def test_fetch_refuses_this_machine_with_a_tool_error(started: Any) -> None:
    tools = await started({"fetch": {"command": python_server("mcp-server-fetch")}})
    with pytest.raises(ToolCallError):
        await tools.call("fetch", "fetch", {"url": "http://127.0.0.1:1/"})


async def test_git_commits_in_the_episodes_own_repository(tmp_path: Path, started: Any) -> None:
    from envkit_mcp import McpTools
    from envkit_mcp.declaration import read_servers

    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    given = {"git": {"command": [*python_server("mcp-server-git"), "--repository", "{folder}"]}}
    tools = McpTools(read_servers(given))
    try:
        await tools.start({"a.txt": "hello"}, template=tmp_path)
        assert tools.folder is not None
        place = {"repo_path": str(tools.folder.files)}
        (status,) = await tools.call("git", "git_status", place)
        assert "a.txt" in str(status)
        await tools.call("git", "git_add", {**place, "files": ["a.txt"]})
        (staged,) = await tools.call("git", "git_diff_staged", place)
        assert "+hello" in str(staged)
    finally:
        await tools.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git"]


async def test_filesystem_sees_the_episodes_folder_alone(started: Any, npm: Npm) -> None:
    command = [*npm("mcp-server-filesystem"), "{folder}"]
    tools = await started({"files": {"command": command}}, {"a/b.txt": "hello"})
    assert await tools.call("files", "read_text_file", {"path": "a/b.txt"}) == ["hello"]
    with pytest.raises(ToolCallError, match=r"outside|denied"):
        await tools.call("files", "read_text_file", {"path": "/etc/passwd"})


async def test_everything_shows_text_images_and_resources(started: Any, npm: Npm) -> None:
    tools = await started({"all": {"command": npm("mcp-server-everything")}})
    assert await tools.call("all", "echo", {"message": "x"}) == ["Echo: x"]
    parts = await tools.call("all", "get-tiny-image", {})
    assert [type(part) for part in parts] == [str, Image, str]
    links = await tools.call("all", "get-resource-links", {})
    assert all(str(part).startswith("[resource ") for part in links[1:])
    with pytest.raises(ToolCallError):
        await tools.call("all", "get-sum", {"a": "one"})


async def test_memory_is_empty_in_each_episode(started: Any, npm: Npm) -> None:
    from envkit_mcp import McpTools

    given = {
        "memory": {
            "command": npm("mcp-server-memory"),
            "env": {"MEMORY_FILE_PATH": "{folder}/memory.json"},
        }
    }
    tools: McpTools = await started(given)
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    await tools.call("memory", "create_entities", {"entities": [entity]})
    assert "Ada" in str(await tools.call("memory", "read_graph", {}))
    await tools.start()
    assert "Ada" not in str(await tools.call("memory", "read_graph", {}))


ASKING = """
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

class Name(BaseModel):
    name: str

server = MCPServer("asking")

@server.tool()
async def greet(context: Context) -> str:
    answer = await context.elicit("Who are you?", Name)
    return f"{answer.action}"

server.run("stdio")
"""


@pytest.mark.parametrize("era", ["2026-07-28", "legacy"])
async def test_request_for_a_persons_answer_is_a_tool_error(started: Any, era: str) -> None:
    tools = await started({"asking": {"command": [sys.executable, "-c", ASKING], "era": era}})
    with pytest.raises(ToolCallError):
        await tools.call("asking", "greet", {})
    with pytest.raises(ToolCallError):  # the session still works
        await tools.call("asking", "greet", {})
