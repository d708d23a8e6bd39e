"""anthropic: messages, whole and streamed, and its own loop with tools."""

from typing import Any

import pytest
from anthropic import APIStatusError, AsyncAnthropic, beta_async_tool
from fakes.client_notes import Note, trained
from fakes.client_scripts import anthropic_api, call_of, calling, codec, gateway, saying
from fakes.odd_engine import StreamingOddEngine, Write
from fakes.trajectories import picture

ADD = calling("add", '{"b":  2.0, "a": 1}')


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_keeps_one_sequence(stream: bool, note: Note) -> None:
    tools: Any = [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]
    async with gateway(ADD) as run, AsyncAnthropic(**anthropic_api(run)) as client:
        messages: list[Any] = [{"role": "user", "content": "one"}]
        for _ in range(2):
            asked: Any = {"model": "m", "max_tokens": 500, "messages": messages, "tools": tools}
            if stream:
                async with client.messages.stream(**asked) as events:
                    answer: Any = await events.get_final_message()
            else:
                answer = await client.messages.create(**asked)
            messages.append({"role": "assistant", "content": answer.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": [_shown()]}
                for block in answer.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results or "more"})
        counted = await client.messages.count_tokens(model="m", messages=messages, tools=tools)
        assert counted.input_tokens > 0
    trajectory = trained(run, sequences=1)

    assert [image.sha256 for image in trajectory.images()] == [picture(2).sha256]
    note(trajectory, dialect="messages", does="tool loop with an image")


@pytest.mark.parametrize("script", [ADD, calling("other", "{}")])
async def test_anthropic_reads_a_reply_while_it_is_sampled(script: Write) -> None:
    tools: Any = [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]
    asked: Any = {"model": "m", "max_tokens": 500, "tools": tools}
    asked["messages"] = [{"role": "user", "content": "one"}]
    async with (
        gateway(script) as run,
        AsyncAnthropic(**anthropic_api(run)) as client,
    ):
        async with client.messages.stream(**asked) as events:
            texts = [text async for text in events.text_stream]
            streamed = await events.get_final_message()
        whole = await client.messages.create(**asked)
    assert len(texts) > 2
    assert _without_ids(streamed) == _without_ids(whole)
    run.trajectory()


def _without_ids(message: Any) -> Any:
    """Return a message as JSON, without what names its turn."""
    found = message.to_dict()
    dropped = ("id", "signature")
    content = [{k: v for k, v in one.items() if k not in dropped} for one in found["content"]]
    del found["id"]
    return {**{k: v for k, v in found.items() if v is not None}, "content": content}


async def test_anthropic_raises_what_ends_a_stream() -> None:
    engine = StreamingOddEngine(codec(), ADD, breaks={0: 40})
    async with gateway(ADD, engine=engine) as run, AsyncAnthropic(**anthropic_api(run)) as client:
        asked: Any = {"model": "m", "max_tokens": 500}
        asked["messages"] = [{"role": "user", "content": "one"}]
        with pytest.raises(APIStatusError, match="the engine broke while it sampled"):
            async with client.messages.stream(**asked) as events:
                await events.get_final_message()
        assert len(engine.requests) == 1


def _shown() -> dict[str, Any]:
    data = picture(2).data_uri().partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_tool_runner_keeps_one_sequence(stream: bool, note: Note) -> None:
    @beta_async_tool
    async def add(a: float, b: float) -> str:
        """Add two numbers."""
        return str(a + b)

    script = saying(call_of("add"), call_of("add"))
    async with gateway(script) as run, AsyncAnthropic(**anthropic_api(run)) as client:
        runner: Any = client.beta.messages.tool_runner(
            model="m", max_tokens=500, messages=[{"role": "user", "content": "one"}],
            tools=[add], stream=stream,
        )  # fmt: skip
        async for one in runner:
            if stream:
                async for _ in one:
                    pass

    note(trained(run, turns=3, sequences=1), dialect="messages", does="`tool_runner`")
