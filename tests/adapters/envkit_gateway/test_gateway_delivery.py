"""How a reply reaches its client: streams that break, ends of episodes, ids, engines that lie."""

import asyncio
import json
from dataclasses import replace
from itertools import count
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientConnectionResetError, web
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client, Said
from fakes.gateway_run import Run, serving
from fakes.odd_engine import OddEngine
from fakes.trajectories import picture

from envkit.rollout.encoding import EpisodeEncoder
from envkit.rollout.engine import GenerateRequest, Generation
from envkit.trajectory import StopReason

EVENTS = {"ChatClient": 4, "ResponsesClient": 18, "AnthropicClient": 11}
"""Writes of a streamed reply with thinking, text and a call."""


def cut_at(monkeypatch: pytest.MonkeyPatch, event: int) -> None:
    """Break every stream before it writes this event."""
    numbers, write = count(), web.StreamResponse.write

    async def written(self: web.StreamResponse, data: Any) -> None:
        if next(numbers) >= event:
            raise ClientConnectionResetError("Cannot write to closing transport")
        await write(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", written)


async def broken(run: Run, kind: type[Client], monkeypatch: pytest.MonkeyPatch, event: int) -> Any:
    """Return a client whose stream broke before an event."""
    client: Any = run.client(kind, stream=True, tools=True)
    client.user("one", None)
    with monkeypatch.context() as patch:
        cut_at(patch, event)
        status, events = await client.post(client.body())
    assert (status, len(events)) == (200, min(event, EVENTS[kind.__name__] - (kind is ChatClient)))
    return client


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("event", [0, 1, 2, -2, -1])
async def test_stream_cut_at_any_event_is_given_again_and_sampled_once(
    kind: type[Client], event: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as run:
        client = await broken(run, kind, monkeypatch, event % EVENTS[kind.__name__])
        client.stream = False  # Claude Code's way of asking again
        said = await client.ask()
        for call in said.calls:
            client.result(call, "3")
        assert (await client.ask()).text == "  It is done. \n"
    trajectory = run.trajectory()

    assert len(run.engine.seen) == len(trajectory.turns) == 2
    assert [turn.purpose for turn in trajectory.turns] == [None, None]
    assert len(trajectory.sequences()) == 1


@pytest.mark.parametrize("kind", [ChatClient, AnthropicClient])
@pytest.mark.parametrize("usage", [False, True])
async def test_client_that_leaves_when_it_knows_the_end_has_the_reply(
    kind: type[Client], usage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = web.StreamResponse.write

    async def written_slowly(self: web.StreamResponse, data: Any) -> None:
        await write(self, data)
        await asyncio.sleep(0.02)  # the client leaves before the next event

    monkeypatch.setattr(web.StreamResponse, "write", written_slowly)
    async with serving(lambda _: "yes") as run:
        for number in range(5):
            client: Any = run.client(kind, stream=True)
            client.user(f"question {number}", None)
            extra = {"stream_options": {"include_usage": usage}} if kind is ChatClient else {}
            await _read_to_the_end_of_the_reply(run, client, {**client.body(), **extra})
        await asyncio.sleep(0.2)
    trajectory = run.trajectory()
    assert [turn.purpose for turn in trajectory.turns] == [None] * 5
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def _read_to_the_end_of_the_reply(run: Run, client: Client, body: dict[str, Any]) -> None:
    """Close the connection, without a word, after the event that says why the reply ended."""
    host = run.gateway.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    data = json.dumps(body).encode()
    head = (
        f"POST {client.path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {client.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    seen = b""
    while b'"finish_reason": "stop"' not in seen and b'"stop_reason": "end_turn"' not in seen:
        seen += (part := await reader.read(1))
        assert part, seen
    writer.transport.abort()


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("mark", [{}, {"x-stainless-retry-count": "1"}])
async def test_reply_whose_stream_broke_after_its_end_is_trained_and_given_again(
    kind: type[Client], mark: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as run:
        client = await broken(run, kind, monkeypatch, EVENTS[kind.__name__] - 1)
        assert len(run.trajectory().turns) == 1
        client.headers |= mark
        await client.post(client.body())
    trajectory = run.trajectory()
    assert [turn.purpose for turn in trajectory.turns] == [None]
    assert len(run.engine.seen) == 1


@pytest.mark.parametrize("kind", CLIENTS)
async def test_reply_that_a_client_goes_on_from_counts_though_its_stream_broke(
    kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codex keeps items of a stream without an end, runs their calls and sends them back."""
    async with serving() as run:
        client = await broken(run, kind, monkeypatch, EVENTS[kind.__name__] - 1)
        call = {"id": "c00000000", "name": "add", "arguments": '{"b": 2.0, "a": 1, "c": "é"}'}
        client.remember(Said("I will add.", [call], "I think  hard"))
        client.result(call, "3")
        await client.ask()
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert [turn.purpose for turn in trajectory.turns] == [None, None]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_ids_of_a_reply_follow_from_its_place_alone(kind: type[Client]) -> None:
    answers: list[list[Any]] = []
    for _ in range(2):
        async with serving() as run:
            client: Any = run.client(kind, tools=True)
            found: list[Any] = []
            for _ in range(2):
                client.user("one", None)
                _, answer = await client.post(client.body())
                found.append({k: v for k, v in answer.items() if not k.startswith("created")})
                said = client.read(answer)
                client.remember(said)
                client.result(said.calls[0], "3")
                await client.ask()
            answers.append(found)
    assert answers[0] == answers[1]


class Miscounting(OddEngine):
    """Reports one token more than it was given."""

    async def generate(self, request: GenerateRequest) -> Generation:
        found = await super().generate(request)
        return replace(found, prompt_tokens=(found.prompt_tokens or 0) + 1)


async def test_engine_that_counts_another_prompt_faults_the_episode() -> None:
    from fakes.codecs import vision_codec

    codec = vision_codec()
    async with serving(engine=Miscounting(codec, lambda _: "yes")) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, answer = await client.post(client.body())
    assert status == 500
    assert answer["error"]["type"] == "server_error"
    assert run.session.fault is not None
    assert run.session.fault.where.value == "ledger"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", CLIENTS)
async def test_request_in_flight_at_the_end_of_its_episode_is_not_retried(
    kind: type[Client], stream: bool
) -> None:
    async with serving() as run:
        run.engine.gate = asyncio.Event()
        client: Any = run.client(kind, stream=stream)
        client.user("one", None)
        asking = asyncio.create_task(client.post(client.body()))
        while not run.engine.requests:
            await asyncio.sleep(0.01)
        await run.session.close()
        status, answer = await asyncio.wait_for(asking, 120)
    assert status == (200 if stream else 403)  # a stream has its status already
    assert "is over" in json.dumps(answer)
    assert run.session.fault is None


async def test_request_that_is_encoded_at_the_end_of_its_episode_gets_403(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = asyncio.Event()

    async def slowly(self: EpisodeEncoder, _after: str) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(EpisodeEncoder, "prompt", slowly)
    async with serving() as run:
        client = run.client(ChatClient)
        client.user("one", None)
        asking = asyncio.create_task(client.post(client.body()))
        await begun.wait()
        await run.session.close()
        status, _ = await asyncio.wait_for(asking, 120)
    assert status == 403


IMAGE = {"type": "image_url", "image_url": {"url": picture(1).data_uri()}}
SILENT: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "user", "content": "b"}]}),
    ("/v1/chat/completions", {"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "x", "audio": {"id": "audio_1"}},
        {"role": "user", "content": "b"}]}),
    ("/v1/chat/completions", {"messages": [
        {"role": "system", "content": [IMAGE]}, {"role": "user", "content": "a"}]}),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
                      "system": [{"type": "image", "source": {
                          "type": "base64", "media_type": "image/png",
                          "data": picture(1).data_uri().partition(",")[2]}}]}),
    ("/v1/responses", {"input": "a", "top_logprobs": 2}),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA=="}]}]}),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain",
                                        "data": "x"}}]}]}),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": [
            {"type": "search_result", "source": "s", "title": "t", "content": []}]}]}]}),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
                      "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
                      "mcp_servers": [{"type": "url", "url": "https://example.org"}]}),
]  # fmt: skip
"""Parts that the published references name and no chat template renders."""


@pytest.mark.parametrize(("path", "body"), SILENT, ids=lambda one: str(one)[:40])
async def test_nothing_is_dropped_in_silence(path: str, body: dict[str, Any]) -> None:
    async with serving() as run, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {run.session.key}"}
        sent = {"model": "m", **body}
        async with http.post(run.gateway.url + path, json=sent, headers=headers) as answer:
            assert answer.status == 400, await answer.text()
    assert not run.engine.seen


@pytest.mark.parametrize("depth", [50, 200, 400, 480, 600, 5000])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens"])
async def test_deep_schema_is_answered_or_refused_and_no_fault(path: str, depth: int) -> None:
    schema = '{"properties": {"a": ' * depth + '{"type": "object"}' + "}}" * depth
    tool = f'{{"name": "t", "input_schema": {schema}}}'
    if "chat" in path:
        tool = f'{{"type": "function", "function": {{"name": "t", "parameters": {schema}}}}}'
    data = f'{{"messages": [{{"role": "user", "content": "a"}}], "tools": [{tool}]}}'
    async with serving(lambda _: "yes") as run, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {run.session.key}"}
        async with http.post(run.gateway.url + path, data=data, headers=headers) as answer:
            assert answer.status == 200 if depth <= 50 else answer.status in (200, 400)
        assert run.session.fault is None


async def test_hosted_tools_that_the_model_never_sees_are_recorded() -> None:
    """Codex sends one with every request, so it cannot be refused."""
    from fakes.agent_clients import ResponsesClient

    async with serving(lambda _: "yes") as run:
        client = run.client(ResponsesClient, extra={"tools": [{"type": "web_search"}]})
        await client.ask("one")
    trajectory = run.trajectory()
    assert trajectory.turns[0].info["unenforced"] == ["tools.web_search"]
    assert trajectory.stop_reason is StopReason.TERMINATED


async def test_logprobs_of_responses_come_from_the_record() -> None:
    """`include` is how this dialect asks for them."""
    from fakes.agent_clients import ResponsesClient

    async with serving(lambda _: "ab") as run:
        extra = {"include": ["message.output_text.logprobs"]}
        client = run.client(ResponsesClient, extra=extra)
        client.user("one", None)
        _, answer = await client.post(client.body())
    (content,) = answer["output"][0]["content"]
    recorded = [one for segment in run.trajectory().segments for one in segment.logprobs if one]
    assert [one["logprob"] for one in content["logprobs"]] == recorded
    assert all(one["top_logprobs"] == [] for one in content["logprobs"])
