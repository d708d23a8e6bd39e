"""What servers and calls do wrong has one clear outcome each, and nothing stays behind."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from contracts.mcp.conftest import odd
from fakes.mcp_odd_server import TOOLS
from fakes.processes import wait_until_gone

from envkit.errors import EnvFault, FaultKind
from envkit.threads.workers import DeadlineError
from envkit_mcp import McpLimits, McpTools, process
from envkit_mcp.declaration import read_servers
from envkit_mcp.results import LethalCallError, ToolCallError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the folders of other processes out of sight."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def call(tools: McpTools, name: str, **arguments: Any) -> list[Any]:
    return await tools.call("odd", name, arguments)


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("envkit-mcp-*"))


def process_of(tools: McpTools) -> Any:
    return tools._open["odd"].process


@pytest.mark.parametrize(
    ("defect", "kind", "said"),
    [
        ("silent", FaultKind.TIMEOUT, "was not ready within 1.5 s"),
        ("dies", FaultKind.CRASHED, "the licence has run out"),
        ("dies late", FaultKind.CRASHED, "cannot be used: it ended"),
        ("many", FaultKind.PERMANENT, "at most 128 tools, got 5000: choose some with tools="),
        ("endless", FaultKind.PERMANENT, "at most 100 pages"),
        ("twins", FaultKind.PERMANENT, "two tools named 'note'"),
        ("broken", FaultKind.PERMANENT, "'broken'"),
        ("malformed", FaultKind.PERMANENT, "ListToolsResult"),
        ("reference", FaultKind.PERMANENT, "a $ref must point into the schema itself"),
        ("name", FaultKind.PERMANENT, "leave it out by listing the others in tools="),
    ],
)
async def test_start_of_a_defective_server_is_one_fault(
    started: Any, defect: str, kind: FaultKind, said: str
) -> None:
    before = folders()
    limit = 1.5 if defect == "silent" else 30.0
    with pytest.raises(EnvFault) as caught:
        await started({"odd": odd(defect)}, connect_timeout_s=limit)
    assert caught.value.kind is kind
    assert said in str(caught.value)
    assert folders() == before


async def test_missing_program_is_a_permanent_fault(started: Any) -> None:
    for program in ("/no-such-program", "no-such-program"):
        with pytest.raises(EnvFault, match=f"there is no program '{program}'") as caught:
            await started({"odd": {"command": [program]}})
        assert caught.value.kind is FaultKind.PERMANENT


@pytest.mark.parametrize("defect", ["broken", "reference", "name", "many"])
async def test_choice_of_tools_leaves_out_what_cannot_be_used(started: Any, defect: str) -> None:
    name = "tool7" if defect == "many" else "note"
    tools = await started({"odd": odd(defect, tools=[name])})
    assert await call(tools, name, text="x") == ["done"]


async def test_tools_of_all_pages_are_offered_and_listed_once(started: Any) -> None:
    tools = await started({"odd": odd("pages")})
    assert len(tools._open["odd"].tools) == len(TOOLS)
    assert await call(tools, "count") == ["1"]
    assert await call(tools, "count") == ["2"]


async def test_tools_of_one_name_on_two_servers_need_a_prefix(started: Any) -> None:
    with pytest.raises(EnvFault, match="both have a tool named 'note': set prefix="):
        await started({"odd": odd(), "other": odd()})
    tools = await started({"odd": odd(), "other": odd(prefix="other.")})
    assert await tools.call("other", "note", {"text": "x"}) == ["done"]


async def test_output_that_is_no_message_is_ignored(started: Any) -> None:
    tools = await started({"odd": odd("noisy")})
    assert await call(tools, "count") == ["1"]


async def test_error_of_a_tool_is_for_the_model(started: Any) -> None:
    tools = await started({"odd": odd()})
    with pytest.raises(ToolCallError, match="the disk is full"):
        await call(tools, "fail")
    assert await call(tools, "odd_image") == ["[image of type image/png, which cannot be read]"]


async def test_answer_that_is_not_unicode_is_read(started: Any) -> None:
    tools = await started({"odd": odd()})
    assert await call(tools, "latin") == ["caf\ufffd"]
    assert await call(tools, "surrogate") == ["a\ufffdb"]
    with pytest.raises(ToolCallError, match="not valid JSON-RPC"):
        await call(tools, "nested")
    assert await call(tools, "note", text="a\ud800b") == ["done"]
    assert tools.folder is not None
    assert tools.folder.read("notes.txt") == "a\ufffdb\n"


async def test_structured_content_that_disagrees_with_its_schema_is_no_error(started: Any) -> None:
    tools = await started({"odd": odd()})
    assert await call(tools, "structured") == ["3"]


async def test_flood_of_notifications_is_dropped(started: Any) -> None:
    tools = await started({"odd": odd()})
    assert await call(tools, "flood") == ["done"]


async def test_call_that_spoils_the_folder_is_the_policys_doing(started: Any) -> None:
    tools = await started({"odd": odd()})
    with pytest.raises(LethalCallError, match="does not start again with what is now in its"):
        await call(tools, "spoil")
    with pytest.raises(LethalCallError, match="does not start"):
        await call(tools, "count")
    await tools.start()
    assert await call(tools, "count") == ["1"]


async def test_request_for_a_model_is_declined(started: Any) -> None:
    tools = await started({"odd": odd()})
    assert await call(tools, "ask") == ["declined"]


async def test_megabytes_are_dropped_and_the_session_goes_on(started: Any) -> None:
    tools = await started({"odd": odd()}, answer_bytes=1 << 20)
    with pytest.raises(ToolCallError, match="more than 1048576 bytes"):
        await call(tools, "huge")
    assert await call(tools, "count") == ["2"]


async def test_late_answer_of_a_working_server_is_a_deadline(started: Any) -> None:
    tools = await started({"odd": odd()}, call_timeout_s=0.5)
    with pytest.raises(DeadlineError, match=r"0\.5 s"):
        await call(tools, "slow")
    assert await call(tools, "count") == ["2"]


@pytest.mark.parametrize("is_contained", [True, False])
async def test_call_that_ends_two_servers_is_the_policys_doing(
    started: Any, monkeypatch: pytest.MonkeyPatch, is_contained: bool
) -> None:
    if not is_contained:
        monkeypatch.setattr(process, "can_contain", lambda: False)
    tools = await started({"odd": odd(), "other": odd(prefix="other.")})
    await call(tools, "note", text="kept")
    with pytest.raises(LethalCallError, match="died during this call, and so did a fresh one"):
        await call(tools, "exit")
    assert await call(tools, "count") == ["1"]  # a new process, in the same folder
    assert tools.folder is not None
    assert tools.folder.read("notes.txt") == "kept\n"
    assert await tools.call("other", "count", {}) == ["1"]  # never killed


async def test_call_that_hangs_two_servers_is_the_policys_doing(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit_mcp.session._PROBE_S", 0.5)
    tools = await started({"odd": odd()}, call_timeout_s=1.0)
    with pytest.raises(LethalCallError, match="hung during this call"):
        await call(tools, "hang")
    assert await call(tools, "count") == ["1"]


async def test_server_that_a_fresh_one_survives_is_a_fault(started: Any) -> None:
    tools = await started({"odd": odd()})
    with pytest.raises(EnvFault) as caught:
        await call(tools, "exit_once")
    assert caught.value.kind is FaultKind.CRASHED


async def test_call_that_ends_its_server_later_is_the_policys_doing(started: Any) -> None:
    tools = await started({"odd": odd()})
    assert await call(tools, "exit_later") == ["done"]
    while tools._open["odd"].is_alive:
        await asyncio.sleep(0.01)
    with pytest.raises(LethalCallError, match=r"after the call of exit_later.*was not run"):
        await call(tools, "note", text="lost")
    assert await call(tools, "count") == ["1"]
    assert tools.folder is not None
    assert tools.folder.read("notes.txt") is None


@pytest.mark.parametrize("has_called", [True, False])
async def test_server_killed_between_calls_is_a_fault(started: Any, has_called: bool) -> None:
    tools = await started({"odd": odd()})
    if has_called:
        await call(tools, "note", text="x")
    os.killpg(process_of(tools).pid, signal.SIGKILL)
    while tools._open["odd"].is_alive:
        await asyncio.sleep(0.01)
    with pytest.raises(EnvFault, match="it ended between two calls") as caught:
        await call(tools, "count")
    assert caught.value.kind is FaultKind.CRASHED


async def test_server_killed_during_a_call_is_a_fault(started: Any) -> None:
    tools = await started({"odd": odd()}, call_timeout_s=2.0)
    waiting = asyncio.create_task(call(tools, "slow"))
    await asyncio.sleep(0.3)
    os.killpg(process_of(tools).pid, signal.SIGKILL)
    with pytest.raises(EnvFault) as caught:
        await waiting
    assert caught.value.kind is FaultKind.CRASHED


async def test_cancelled_call_leaves_the_session_usable(started: Any) -> None:
    tools = await started({"odd": odd()})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await call(tools, "slow")
    assert await call(tools, "count") == ["2"]


@pytest.mark.parametrize("is_contained", [True, False])
async def test_nothing_stays_of_a_server_whose_child_has_its_own_session(
    started: Any, monkeypatch: pytest.MonkeyPatch, is_contained: bool
) -> None:
    if is_contained and not process.can_contain():
        pytest.skip("bubblewrap does not work here")
    monkeypatch.setattr(process, "can_contain", lambda: is_contained)
    before = folders()
    tools = await started({"odd": odd()})
    await call(tools, "child")
    mark = f"ENVKIT_MCP_EPISODE={tools.folder.root} ".encode()
    found = [pid for pid in process._processes() if mark in process._environment(pid)]
    assert len(found) >= 2  # the server and its child
    await tools.stop()
    assert wait_until_gone(found) == []
    assert folders() == before


async def test_nothing_stays_of_a_start_that_was_cancelled(started: Any) -> None:
    before = folders()
    tools = McpTools(read_servers({"odd": odd("silent")}), McpLimits(connect_timeout_s=60))
    starting = asyncio.create_task(tools.start())
    found: list[int] = []
    mark = b""
    while not found:
        await asyncio.sleep(0.01)
        if tools.folder is not None:
            mark = f"ENVKIT_MCP_EPISODE={tools.folder.root}".encode()
            found = [pid for pid in process._processes() if mark in process._environment(pid)]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await tools.stop()
    assert [pid for pid in process._processes() if mark in process._environment(pid)] == []
    assert folders() == before


async def test_stop_that_is_cancelled_goes_on(started: Any) -> None:
    before = folders()
    tools = await started({"odd": odd()})
    pid = process_of(tools).pid
    stopping = asyncio.create_task(tools.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert wait_until_gone([pid]) == []
    await tools.stop()
    assert folders() == before


async def test_folders_nested_a_thousand_deep_are_removed(started: Any) -> None:
    before = folders()
    tools = await started({"odd": odd()})
    assert await call(tools, "deep") == ["done"]
    await tools.stop()
    assert folders() == before


async def test_process_is_killed_once(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = await started({"odd": odd()})
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    server = process_of(tools)
    await tools.stop()
    await server.kill()
    assert killed == [server.pid]  # later its number may be another process's


async def test_shared_server_serves_all_and_ends_with_its_last_user(started: Any) -> None:
    first = await started({"odd": odd(is_shared=True)})
    second = await started({"odd": odd(is_shared=True)})
    assert [await call(tools, "count") for tools in (first, second)] == [["1"], ["2"]]
    pid = process_of(first).pid
    await first.stop()
    assert await call(second, "count") == ["3"]
    await second.stop()
    assert wait_until_gone([pid]) == []
