"""Environments as MCP servers, played by clients that nobody here wrote, in both eras."""

import asyncio
import base64
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.installed import install_metadata
from fakes.processes import wait_until_gone
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from PIL import Image as PilImage

import envkit
from envkit_mcp import serving
from envkit_mcp.episodes import EpisodeLimits, Episodes
from envkit_mcp.http import httpx2

CIRCLE: dict[str, Any] = {}
CIRCLE["itself"] = CIRCLE
Npm = Callable[[str], list[str]]
KEY = "a-key-of-enough-characters"
COMMAND = """
import typer
from envkit_mcp.command import serve_mcp
app = typer.Typer()
app.command()(serve_mcp)
app()
"""
CANARY = ["canary-v0", "--env-kwargs", "turns=2"]


def command(*options: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, *CANARY, *options]


def answer(seed: int) -> tuple[str, Any]:
    """Return the first observation's text and the image of a seed, without a server."""
    env = envkit.make("canary-v0", turns=2)
    observation, _ = env.reset(seed=seed)
    env.close()
    return observation["text"], observation["images"][0]


@pytest.fixture(autouse=True)
def _plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make canary-v0 known, here and to the processes of the command."""
    folder = str(install_metadata(tmp_path))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))


def check_opening(content: list[Any], seed: int) -> None:
    """Check the text and the image of a reset, as JSON of the wire."""
    text, image = answer(seed)
    assert [part["type"] for part in content] == ["text", "image", "text"]
    assert content[0]["text"] == text
    found = PilImage.open(io.BytesIO(base64.b64decode(content[1]["data"])))
    assert found.size == image.size
    assert found.convert("RGB").tobytes() == image.pil().convert("RGB").tobytes()
    assert "answer" not in json.loads(content[2]["text"])


class Odd(envkit.Env):
    """Returns an info that a task names."""

    INFOS: ClassVar[dict[str, Any]] = {
        "nan": {"value": math.nan},
        "surrogate": {"value": "a\ud800"},
        "keys": {"value": {(1, 2): 3}},
        "circle": {"value": CIRCLE},
    }

    def on_reset(self, task: Any) -> envkit.Turn:
        return envkit.Turn("a\ud800", info=self.INFOS[task["kind"]])

    def on_turn(self, response_text: str) -> envkit.Turn:
        return envkit.Turn("", done=True)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_results_that_are_no_json_are_sent_or_end_their_episode(mode: str) -> None:
    playing = Episodes(Odd, EpisodeLimits())
    server: Any = MCPServer("odd")
    serving._add_tools(server, playing)
    found: dict[str, Any] = {}
    async with Client(server, mode=mode) as client:
        for kind in ("nan", "surrogate", "keys"):
            result = await client.call_tool("reset", {"task": {"kind": kind}})
            text, state = result.content[0].text, json.loads(result.content[1].text)
            assert (text, state) == ("a\ufffd", result.structured_content)
            found[kind] = state["info"]["value"]
        assert len(playing) == 3
        result = await client.call_tool("reset", {"task": {"kind": "circle"}})
        assert result.is_error
        assert "cannot be sent, and the episode is over" in result.content[0].text
        assert len(playing) == 3
    assert found == {"nan": None, "surrogate": "a\ufffd", "keys": {}}
    await playing.aclose()


def test_inspector_lists_and_calls_the_tools(npm: Npm) -> None:
    inspect = [*npm("mcp-inspector"), "--cli", *command(), "--method"]

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [*inspect, *arguments], capture_output=True, text=True, timeout=300, check=True
        )
        return json.loads(done.stdout)

    listed = run("tools/list")["tools"]
    assert [tool["name"] for tool in listed] == ["reset", "step", "close"]
    assert listed[1]["inputSchema"]["required"] == ["episode", "reply"]
    opening = run("tools/call", "--tool-name", "reset", "--tool-arg", "seed=7")
    check_opening(opening["content"], 7)
    wrong = ["--tool-arg", "episode=none", "--tool-arg", "reply=0"]
    refused = run("tools/call", "--tool-name", "step", *wrong)
    assert refused["isError"]
    assert "call reset" in refused["content"][0]["text"]


def test_typescript_client_plays_an_episode(npm: Npm) -> None:
    (program,) = npm("mcp-inspector")
    script = Path(__file__).with_name("play_episode.mjs")
    words = ["node", str(script), str(Path(program).parents[1]), *command()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["listed"] == ["reset", "step", "close"]
    check_opening(found["opening"]["content"], 7)
    first, last = (step["structuredContent"] for step in found["steps"])
    assert (first["terminated"], last["terminated"]) == (False, True)
    assert [type(step["reward"]) in (int, float) for step in (first, last)] == [True, True]


@asynccontextmanager
async def served(*options: str) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """Run the command by HTTP; gives its process and address."""
    process = await asyncio.create_subprocess_exec(
        *command("--port", "0", "--key", KEY, *options),
        stdout=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 300)).decode()
        yield process, line.rpartition(" ")[2].strip()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await process.wait()


@asynccontextmanager
async def client_of(address: str, mode: str) -> AsyncGenerator[Any]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(address, http_client=http), mode=mode) as client,
    ):
        yield client


async def test_both_eras_play_by_http_and_an_episode_outlives_its_connection() -> None:
    async with served("--max-episodes", "2") as (_, address):
        for mode in ("2026-07-28", "legacy"):
            async with client_of(address, mode) as client:
                opening = await client.call_tool("reset", {"seed": 3})
                handle = opening.structured_content["episode"]
                assert opening.content[0].text == answer(3)[0]
            async with client_of(address, mode) as client:
                played = await client.call_tool("step", {"episode": handle, "reply": "0"})
                assert not played.is_error
                assert not played.structured_content["terminated"]
                other = await client.call_tool("reset", {})
                full = await client.call_tool("reset", {})
                assert full.is_error
                assert "all 2 episodes" in full.content[0].text
                for one in (handle, other.structured_content["episode"]):
                    assert not (await client.call_tool("close", {"episode": one})).is_error
                over = await client.call_tool("step", {"episode": handle, "reply": "0"})
                assert "it was closed" in over.content[0].text


async def test_http_needs_the_key() -> None:
    async with served() as (_, address), httpx2.AsyncClient() as http:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": f"Bearer {KEY}", "Origin": "http://elsewhere.example"}, 403),
        ):
            answered = await http.post(address, json={}, headers=headers)
            assert answered.status_code == status
        odd = [(b"Authorization", b"Bearer \xff")]
        assert (await http.post(address, json={}, headers=odd)).status_code == 401


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_stdio_serves_both_eras_and_ends_with_its_input(mode: str) -> None:
    first, *rest = command()
    place = StdioServerParameters(command=first, args=rest, env=dict(os.environ))
    async with Client(place, mode=mode) as client:
        opening = await client.call_tool("reset", {"seed": 3})
        handle = opening.structured_content["episode"]
        await client.call_tool("step", {"episode": handle, "reply": "0"})
        step = await client.call_tool("step", {"episode": handle, "reply": "0"})
        assert step.structured_content["terminated"]
        over = await client.call_tool("step", {"episode": handle, "reply": "0"})
        assert "it ended with its last step" in over.content[0].text


def test_server_ends_with_its_input() -> None:
    with subprocess.Popen(command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=300) == 0
    assert wait_until_gone([process.pid]) == []
