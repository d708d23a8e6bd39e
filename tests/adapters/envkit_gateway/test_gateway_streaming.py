"""Replies that clients see while the engine samples."""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientConnectionResetError, web
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client, Said
from fakes.codecs import vision_codec
from fakes.embedded import make_engine
from fakes.gateway_run import CALL, Run, call_once, serving
from fakes.models import tiny_model_dir
from fakes.odd_engine import StreamingOddEngine, Write
from fakes.templates import cache_folder, load_tokenizer, stop_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import EngineFault
from envkit.rollout import Sampling
from envkit.rollout.engine import GenerateRequest, Generation
from envkit.rollout.token_stream import Report
from envkit.tokens import ChatCodec, load_codec

EMBEDDED = "qwen2_5_vl"
TEXT = "One, two, three, four, five, six, seven, eight."
STOP = {"ChatClient": "stop", "AnthropicClient": "stop_sequences"}


def said_of(event: Mapping[str, Any]) -> Said:
    """Return what one event of any dialect adds to the thinking and the text."""
    if event.get("choices"):
        delta = event["choices"][0]["delta"]
        return Said(delta.get("content") or "", thinking=delta.get("reasoning_content") or "")
    match event.get("type"):
        case "response.output_text.delta":
            return Said(event["delta"])
        case "response.reasoning_summary_text.delta":
            return Said("", thinking=event["delta"])
        case "content_block_delta":
            delta = event["delta"]
            return Said(delta.get("text", ""), thinking=delta.get("thinking", ""))
        case _:
            return Said("")


@asynccontextmanager
async def reading(client: Client) -> AsyncGenerator[Any]:
    """Send a client's body; yield the events of the answer as they come."""
    headers = {"authorization": f"Bearer {client.key}", **client.headers}

    async def events(answer: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, Any]]:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    async with (
        aiohttp.ClientSession() as http,
        http.post(client.url + client.path, json=client.body(), headers=headers) as answer,
    ):
        yield events(answer)


async def shown_before(client: Client, event: asyncio.Event, text: str) -> Said:
    """Return what a client read, which waits with the last tokens until it has seen a text."""
    said = Said("")
    async with reading(client) as events:
        async for one in events:
            more = said_of(one)
            said.text, said.thinking = said.text + more.text, said.thinking + more.thinking
            if said.text.startswith(text) or said.thinking.startswith(text):
                event.set()
    return said


async def leave_after_text(client: Client) -> None:
    """Ask, and close the connection at the first text."""
    client.user("one", None)
    async with reading(client) as events:
        async for one in events:
            if said_of(one).text:
                return


@cache
def thinking_codec() -> ChatCodec:
    """Return the codec of a published template whose prompt opens a thought."""
    tokenizer = copy.copy(load_tokenizer("qwen3"))
    path = cache_folder() / "templates" / "qwen3_5_think.jinja"
    tokenizer.chat_template = path.read_text(encoding="utf-8")
    return ChatCodec(tokenizer, stop_ids=stop_ids("qwen3"))


def live(write: Write = lambda _: TEXT, **options: Any) -> StreamingOddEngine:
    return StreamingOddEngine(vision_codec(), write, **options)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("tools", [False, True])
async def test_client_reads_text_before_the_engine_has_sampled_the_rest(
    kind: type[Client], tools: bool
) -> None:
    engine, seen = live(), asyncio.Event()
    engine.pass_at = {20: seen}
    async with serving(engine=engine) as run:
        client = run.client(kind, stream=True, tools=tools)
        client.user("one", None)
        said = await shown_before(client, seen, "One, two")
    assert said.text == TEXT
    run.trajectory()


@pytest.mark.parametrize("kind", CLIENTS)
async def test_client_reads_thinking_before_the_text(kind: type[Client]) -> None:
    engine, seen = live(lambda _: f"<think>\n{TEXT}\n</think>\n\nYes."), asyncio.Event()
    engine.pass_at = {30: seen}
    async with serving(engine=engine) as run:
        client = run.client(kind, stream=True)
        client.user("one", None)
        said = await shown_before(client, seen, "One")
    assert (said.thinking, said.text) == (TEXT, "Yes.")
    run.trajectory()


PARTS = st.sampled_from(
    [
        *("<think>", "</think>", "<thi", "<", "{", "STOP", "ST", "é😀", "\n\n", "\n", " "),
        *(
            "<tool_call>",
            "<function=",
            "a b",
            "Hello",
            "world.",
            '{"name"',
            CALL,
            "```json\n{}\n```",
        ),
    ]
)


@given(
    replies=st.lists(st.lists(PARTS, min_size=1, max_size=7).map("".join), min_size=3, max_size=8),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    tools=st.booleans(),
    is_stopped=st.booleans(),
    limit=st.sampled_from((4096, 9)),
)
@settings(max_examples=12, deadline=None)
def test_streamed_reply_equals_the_same_reply_at_once(
    replies: list[str], sizes: list[int], tools: bool, is_stopped: bool, limit: int
) -> None:
    def write(context: str) -> str:
        return replies[int(context.rsplit("number ", 1)[1].split("<")[0])]

    async def play() -> None:
        sampling = Sampling(max_new_tokens=limit)
        async with serving(engine=live(write, sizes=sizes), sampling=sampling) as run:
            for kind in CLIENTS:
                await _compare(run, kind, len(replies), tools=tools, is_stopped=is_stopped)
        run.trajectory()

    asyncio.run(play())


async def _compare(
    run: Run, kind: type[Client], count: int, *, tools: bool, is_stopped: bool
) -> None:
    stop = {STOP[kind.__name__]: ["STOP"]} if is_stopped and kind.__name__ in STOP else {}
    for number in range(count):
        found: list[Any] = []
        for start, stream in (("whole", False), ("streamed", True)):
            client = run.client(kind, stream=stream, tools=tools, extra=dict(stop))
            client.user(f"{start} {kind.__name__} number {number}", None)
            status, answer = await client.post(client.body())
            assert status == 200, answer
            said = client.read(answer)
            for call in said.calls:
                call["id"] = ""
            said.usage = {k: v for k, v in said.usage.items() if "output" in k or "compl" in k}
            found.append(said)
            if stream:
                parts = [said_of(one) for one in answer]
                assert "".join(one.text for one in parts) == said.text
                assert "".join(one.thinking for one in parts) == said.thinking
        assert found[0] == found[1]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_failure_after_the_first_text_ends_the_stream_and_is_not_retried(
    kind: type[Client],
) -> None:
    engine = live(breaks={0: 30})
    async with serving(engine=engine, retries=2) as run:
        client = run.client(kind, stream=True)
        client.user("one", None)
        status, events = await client.post(client.body())
        assert status == 200
        assert "error" in events[-1] or events[-1]["type"] == "error"
        assert "".join(said_of(one).text for one in events).startswith("One, two")
        assert len(engine.requests) == 1
        assert (await client.ask()).text == TEXT
    trajectory = run.trajectory()
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize("kind", CLIENTS)
async def test_text_of_an_attempt_that_failed_is_never_shown(kind: type[Client]) -> None:
    """The engine fails before the client's delivery runs, and the next attempt has other text."""
    replies = iter(("Another answer.", TEXT))
    engine = Hasty(vision_codec(), lambda _: next(replies), breaks={0: 12})
    engine.go = asyncio.Event()
    async with serving(engine=engine, retries=2) as run:
        client = run.client(kind, stream=True)
        client.user("one", None)
        async with reading(client) as events:
            engine.go.set()
            texts = [said_of(one).text async for one in events]
        assert "".join(texts) == TEXT
        assert len(engine.requests) == 2


@pytest.mark.parametrize("kind", CLIENTS)
async def test_prompt_may_open_the_thought(kind: type[Client]) -> None:
    codec = thinking_codec()
    engine = StreamingOddEngine(codec, lambda _: f"Hm.\n</think>\n\n{TEXT}")
    async with serving(engine=engine, codec=codec) as run:
        client = run.client(kind, stream=True)
        client.user("one", None)
        _, events = await client.post(client.body())
        said = client.read(events)
    assert (said.thinking, said.text) == ("Hm.", TEXT)
    assert sum(bool(said_of(one).text) for one in events) > 3
    run.trajectory()


async def test_reply_whose_start_opened_a_thought_comes_whole() -> None:
    async with serving(engine=live(lambda _: " hard.</think>\n\nYes.")) as run:
        client = run.client(AnthropicClient, stream=True)
        client.user("one", None)
        client.items.append({"role": "assistant", "content": "<think>I think"})
        _, events = await client.post(client.body())
        said = client.read(events)
    assert (said.thinking, said.text) == ("hard.", "Yes.")
    run.trajectory()


@pytest.mark.parametrize("kind", CLIENTS)
async def test_failure_before_the_first_text_is_retried(kind: type[Client]) -> None:
    engine = live(lambda _: f"<think>\n\n</think>\n\n{TEXT}", breaks={0: 12})
    async with serving(engine=engine, retries=2) as run:
        client = run.client(kind, stream=True)
        assert (await client.ask("one")).text == f"\n\n{TEXT}"
        assert len(engine.requests) == 2
    assert len(run.trajectory().turns) == 1


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_in_the_middle_gets_the_whole_reply_again(
    kind: type[Client], stream: bool
) -> None:
    engine, go = live(), asyncio.Event()
    engine.pass_at = {20: go}
    async with serving(engine=engine) as run:
        client = run.client(kind, stream=True)
        await leave_after_text(client)
        client.stream = stream
        asking = asyncio.create_task(client.ask())
        await asyncio.sleep(0.05)
        go.set()
        assert (await asking).text == TEXT
    assert len(engine.requests) == 1
    trajectory = run.trajectory()
    assert [turn.purpose for turn in trajectory.turns] == [None]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_stream_cut_at_any_event_is_given_again_and_sampled_once(
    kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = web.StreamResponse.write
    left = 1000

    async def written(self: web.StreamResponse, data: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ClientConnectionResetError("Cannot write to closing transport")
        await write(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", written)
    async with serving(engine=live(call_once)) as run:
        await run.client(kind, stream=True, tools=True).ask("whole")
        count = 1000 - left
        assert count > 12
        for event in range(count):
            client = run.client(kind, stream=True, tools=True)
            client.user(f"question {event}", None)
            left = event
            await client.post(client.body())
            left, client.stream = 1000, False
            said = await client.ask()
            assert (said.text, said.thinking) == ("I will add.", "I think  hard")
            assert len(said.calls) == 1
    trajectory = run.trajectory()
    assert len(run.engine.seen) == len(trajectory.turns) == 1 + count
    assert not any(turn.purpose for turn in trajectory.turns)


async def test_reply_of_a_client_that_left_in_the_middle_is_lost() -> None:
    engine, go = live(), asyncio.Event()
    engine.pass_at = {20: go}
    async with serving(engine=engine) as run:
        client = run.client(ChatClient, stream=True)
        await leave_after_text(client)
        while run.session.turns[0].waiting:
            await asyncio.sleep(0)
        go.set()
        task = run.session.turns[0].task
        assert task is not None
        await task
    assert [turn.purpose for turn in run.trajectory().turns] == ["lost"]


async def test_each_choice_is_streamed_with_its_index() -> None:
    async with serving(engine=live()) as run:
        client = run.client(ChatClient, stream=True, extra={"n": 3})
        client.user("one", None)
        _, events = await client.post(client.body())
    texts = ["", "", ""]
    for choice in (one["choices"][0] for one in events if one["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [TEXT] * 3
    assert sum(bool(said_of(one).text) for one in events) > 3
    run.trajectory()


async def test_log_probabilities_come_with_the_whole_reply() -> None:
    async with serving(engine=live()) as run:
        client = run.client(ChatClient, stream=True, extra={"logprobs": True})
        client.user("one", None)
        _, events = await client.post(client.body())
    (choice,) = (one["choices"][0] for one in events if one["choices"] and said_of(one).text)
    assert len(choice["logprobs"]["content"]) == len(run.engine.seen[0][1])


class Hasty(StreamingOddEngine):
    """Fails in the same step in which it reports, once it may go."""

    go: asyncio.Event

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        if len(self.requests) not in self.breaks:
            return await super().stream(request, report)
        whole = await self.generate(request)
        self.seen.pop()
        await self.go.wait()
        report(whole.token_ids)
        raise EngineFault("the engine broke while it sampled", retryable=True)


class Lying(StreamingOddEngine):
    """Reports other ids than it returns."""

    async def stream(self, request: GenerateRequest, report: Report) -> Generation:
        return await super().stream(request, lambda ids: report([*ids[:-1], ids[-1] + 1]))


@pytest.mark.parametrize("kind", CLIENTS)
async def test_engine_that_returns_other_ids_than_it_reported_is_refused(
    kind: type[Client],
) -> None:
    engine = Lying(vision_codec(), lambda _: TEXT)
    async with serving(engine=engine) as run:
        client = run.client(kind, stream=True)
        client.user("one", None)
        _, events = await client.post(client.body())
        assert "must return the ids that it reported" in str(events[-1])
        assert run.session.fault is not None


@pytest.mark.parametrize("kind", CLIENTS)
async def test_random_tokens_of_the_embedded_engine_join_to_its_reply(
    kind: type[Client],
) -> None:
    engine = make_engine(EMBEDDED)
    codec = load_codec(tiny_model_dir(EMBEDDED))
    sampling = Sampling(max_new_tokens=24, seed=1, banned_ids=codec.stop_ids)
    async with serving(engine=engine, codec=codec, sampling=sampling) as run:
        for number in range(2):
            client = run.client(kind, stream=True, tools=number == 1)
            client.user(f"question {number}", None)
            _, events = await client.post(client.body())
            reply = run.session.turns[-1].reply
            assert reply is not None
            texts = [text for event in events if (text := said_of(event).text)]
            assert "".join(texts) == reply.message.text == client.read(events).text
            assert len(texts) > 3
    await engine.aclose()
