"""Agents in front of a chat endpoint: what it is sent, and a record without a ledger."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fakes.agent_clients import AnthropicClient, ChatClient, Client, ResponsesClient
from fakes.chat_server import MODEL, ChatServer, call, last_text, pictures_of
from fakes.command import run_envkit
from fakes.envs import register_toys
from fakes.judge_server import KEY

import envkit
from envkit.rollout import EpisodeSpec, Player, RolloutConfig
from envkit.trajectory import StopReason, Trajectory, check_trajectory, load
from envkit_chat import ChatEngine
from envkit_gateway import AgentTask

DIALECTS: tuple[type[Client], ...] = (ChatClient, ResponsesClient, AnthropicClient)
LONG = "This model's maximum context length is 8 tokens. However, you requested 9 tokens."


def played(agent: Callable[[AgentTask], Any], server: ChatServer) -> Trajectory:
    async def play() -> Trajectory:
        engine = ChatEngine(server.url, model=MODEL, api_key=KEY)
        player = Player(engine, None, RolloutConfig.from_mapping({"agent": {"function": agent}}))
        try:
            (found,) = await player.play(lambda: envkit.make("canary-v0"), EpisodeSpec(seed=3))
        finally:
            await player.aclose()
            await engine.aclose()
        return found

    found = asyncio.run(play())
    assert check_trajectory(found) == ()
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
def test_endpoint_gets_the_agents_own_conversation(dialect: type[Client], *, stream: bool) -> None:
    async def agent(task: AgentTask) -> float:
        client = dialect(task.url, task.api_key, tools=True, stream=stream, system="Add.")
        first = await client.ask("Two sums.", task.images[0])
        assert [one["name"] for one in first.calls] == ["add", "add"]
        for asked, result in zip(first.calls, ("3", "7"), strict=True):
            client.result(asked, result)
        assert (await client.ask()).text == "3 and 7"
        return 1.0

    calls = {"content": None, "tool_calls": []}
    for number in (1, 3):
        calls["tool_calls"] += call("add", a=number, b=number + 1)["tool_calls"]
    with ChatServer(calls, "3 and 7") as server:
        found = played(agent, server)
    first, second = server.requests
    assert [one["function"]["name"] for one in first["tools"]] == ["add"]
    assert first["messages"][0] == {"role": "system", "content": "Add."}
    assert len(list(pictures_of(first))) == 1
    roles = [one["role"] for one in second["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    asked = second["messages"][2]["tool_calls"]
    assert [json.loads(one["function"]["arguments"])["a"] for one in asked] == [1, 3]
    results = [(one["tool_call_id"], one["content"]) for one in second["messages"][3:]]
    assert results == [(asked[0]["id"], "3"), (asked[1]["id"], "7")]

    assert (found.reward, found.stop_reason) == (1.0, StopReason.TERMINATED)
    assert not found.has_ledger
    assert [turn.response_text for turn in found.turns][1] == "3 and 7"
    assert all(turn.prompt_tokens > 0 for turn in found.turns)
    roles = [one["role"] for one in found.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert found.image_count == 1


def test_agent_that_rewrites_its_history_is_recorded_once(tmp_path: Path) -> None:
    async def agent(task: AgentTask) -> float:
        for number in range(3):
            client = ChatClient(task.url, task.api_key, system="Count.")
            await client.ask(f"Step {number}.")
        return 0.5

    with ChatServer(last_text) as server:
        found = played(agent, server)
    assert [turn.response_text for turn in found.turns] == ["Step 0.", "Step 1.", "Step 2."]
    texts = [one["content"] for one in found.messages if one["role"] != "system"]
    assert texts == ["Step 0.", "Step 0.", "Step 1.", "Step 1.", "Step 2.", "Step 2."]
    assert found.metadata["agent"]["sequences"] == {"main": 3}
    assert [turn.reward for turn in found.turns] == [0.0, 0.0, 0.5]


def _refusal(message: str) -> Callable[[dict[str, Any]], web.Response]:
    """Return an answer with status 400."""
    body = {"error": {"message": message, "type": "invalid_request_error", "code": None}}
    return lambda _: web.json_response(body, status=400)


@pytest.mark.parametrize(
    ("message", "ended"),
    [(LONG, StopReason.ENV_TRUNCATED), ("Invalid 'messages'.", StopReason.LEDGER_FAULT)],
)
def test_endpoints_refusal_reaches_the_agent(message: str, ended: StopReason) -> None:
    answers: list[tuple[int, Any]] = []

    async def agent(task: AgentTask) -> None:
        client = ChatClient(task.url, task.api_key)
        await client.ask("Begin.")
        client.user("Continue.", None)
        answers.append(await client.post(client.body()))
        raise RuntimeError("the agent cannot continue")

    with ChatServer("Fine.", _refusal(message)) as server:
        found = played(agent, server)
    ((status, body),) = answers
    assert status == 400
    assert message[:20] in body["error"]["message"]
    assert (body["error"]["code"] == "context_length_exceeded") is (message == LONG)
    assert found.stop_reason is ended


def echo(body: dict[str, Any]) -> str:
    return last_text(body).rsplit(" ", 1)[-1].rstrip(".")


def test_evaluation_of_an_agent_needs_only_an_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    register_toys()
    with ChatServer(echo) as server:
        shown = run_envkit(
            "eval", "toy-echo-v0", "--chat", server.url, "--model", MODEL, "-n", 4,
            "--agent", "fakes.own_agents:answering", "--out", "out", "-q", "--json",
        )  # fmt: skip
    assert shown.code == 0, shown.err
    (line,) = [line for line in json.loads(shown.out)["lines"] if line["tag"] is None]
    assert (line["success"]["mean"], line["faulted"]) == (1.0, 0)
    assert [one.turns[0].response_tokens for one in load("out/toy-echo-v0")] == [1] * 4
