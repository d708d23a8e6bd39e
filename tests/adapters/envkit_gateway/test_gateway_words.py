"""What clients change in their words: what means the same goes on, what does not starts anew."""

import asyncio
from typing import Any

import aiohttp
import pytest
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client
from fakes.gateway_run import CALL, serving

from envkit.rollout.encoding import EpisodeEncoder


@pytest.mark.parametrize("kind", CLIENTS)
async def test_conversation_goes_on_where_calls_are_forbidden(kind: type[Client]) -> None:
    none: Any = {"type": "none"} if kind is AnthropicClient else "none"
    async with serving(lambda _: f"Well. {CALL}") as run:
        client: Client = run.client(kind, tools=True)
        (call,) = (await client.ask("one")).calls
        client.result(call, "3")
        client.extra["tool_choice"] = none
        said = await client.ask()
    trajectory = run.trajectory()

    assert (said.calls, "<tool_call>" in said.text) == ([], True)
    assert len(trajectory.sequences()) == 1
    assert trajectory.turns[-1].purpose is None


@pytest.mark.parametrize(
    ("reply", "edited"),
    [
        ("<think>It is red.", "<think>It is blue."),
        ("It is red.</think>\n\nYes.", "<think>It is blue.</think>\n\nYes."),
    ],
    ids=["cut", "inline"],
)
async def test_edited_thinking_in_the_text_is_another_conversation(reply: str, edited: str) -> None:
    async with serving(lambda _: reply) as run:
        client = run.client(ChatClient)
        await client.ask("one")
        client.items[1] = {"role": "assistant", "content": edited}
        await client.ask("two")
    assert [one.reason for one in run.trajectory().sequences()] == [None, "rewritten_history"]


async def test_client_that_left_while_its_request_was_encoded_may_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, gate, encode = asyncio.Event(), asyncio.Event(), EpisodeEncoder.prompt

    async def slowly(self: EpisodeEncoder, _after: str) -> Any:
        begun.set()
        await gate.wait()
        return await encode(self)

    monkeypatch.setattr(EpisodeEncoder, "prompt", slowly)
    async with serving() as run:
        client = run.client(ChatClient)
        client.user("one", None)
        cut = asyncio.create_task(client.post(client.body()))
        await begun.wait()
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        await asyncio.sleep(0.05)
        gate.set()
        assert (await client.post(client.body()))[0] == 200
    trajectory = run.trajectory()

    assert len(run.engine.seen) == len(trajectory.turns) == 1
    assert trajectory.turns[0].purpose is None


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "bearer KEY"},
        {"x-api-key": "KEY"},
        {"api-key": "KEY"},
        {"x-api-key": "left-over", "authorization": "Bearer KEY"},
    ],
    ids=["lower case", "anthropic", "azure", "two keys"],
)
async def test_key_is_read_from_any_clients_header(headers: dict[str, str]) -> None:
    async with serving() as run, aiohttp.ClientSession() as http:
        sent = {name: value.replace("KEY", run.session.key) for name, value in headers.items()}
        body = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
        url = f"{run.gateway.url}/v1/chat/completions"
        async with http.post(url, json=body, headers=sent) as answer:
            assert answer.status == 200


async def test_token_count_that_fails_is_an_error_of_the_dialect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: EpisodeEncoder, _after: str) -> Any:
        raise RuntimeError("a defect")

    async with serving() as run, aiohttp.ClientSession() as http:
        monkeypatch.setattr(EpisodeEncoder, "prompt", broken)
        body = {"messages": [{"role": "user", "content": "one"}], "model": "m"}
        url = f"{run.gateway.url}/v1/messages/count_tokens"
        async with http.post(url, json=body, headers={"x-api-key": run.session.key}) as answer:
            assert answer.status == 500
            assert (await answer.json())["type"] == "error"
        assert run.session.fault is None  # counting is not part of the record
