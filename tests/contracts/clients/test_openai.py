"""openai: chat completions and Responses, whole and streamed."""

from typing import Any

import pytest
from fakes.client_notes import Note, trained
from fakes.client_scripts import ANSWER, call_of, calling, codec, gateway, openai_api, saying
from fakes.odd_engine import StreamingOddEngine, Write
from fakes.trajectories import picture
from openai import APIError, AsyncOpenAI, BadRequestError, InternalServerError

ADD = calling("add", '{"b":  2.0, "a": 1}')
TOOLS: Any = [
    {"type": "function",
     "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
]  # fmt: skip
FLAT: Any = [{"type": "function", **TOOLS[0]["function"], "strict": False}]
USER: Any = {"role": "user", "content": "one"}
IMAGE: Any = {"type": "image_url", "image_url": {"url": "https://example.org/one.png"}}
ELSEWHERE: Any = {"role": "user", "content": [IMAGE]}


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat_keeps_one_sequence(stream: bool, note: Note) -> None:
    async with gateway(ADD) as run, AsyncOpenAI(**openai_api(run)) as client:
        messages: list[Any] = [USER]
        for _ in range(2):
            if stream:
                async with client.chat.completions.stream(
                    model="m", messages=messages, tools=TOOLS
                ) as events:
                    async for _event in events:
                        pass
                    message = (await events.get_final_completion()).choices[0].message
            else:
                answer = await client.chat.completions.create(
                    model="m", messages=messages, tools=TOOLS
                )
                message = answer.choices[0].message
            messages.append(message)
            for call in message.tool_calls or []:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})

    note(trained(run, turns=2, sequences=1), dialect="chat completions", does="tool loop")


@pytest.mark.parametrize("script", [ADD, calling("other", "{}")])
async def test_openai_chat_reads_a_reply_while_it_is_sampled(script: Write) -> None:
    async with gateway(script) as run, AsyncOpenAI(**openai_api(run)) as client:
        asked: Any = {"model": "m", "tools": TOOLS, "messages": [USER]}
        deltas = 0
        async with client.chat.completions.stream(**asked) as events:
            async for event in events:
                deltas += event.type == "content.delta"
            streamed = (await events.get_final_completion()).choices[0].message
        whole = (await client.chat.completions.create(**asked)).choices[0].message
    assert deltas > 2
    assert _without_ids(streamed.to_dict()) == _without_ids(whole.to_dict())
    run.trajectory()


@pytest.mark.parametrize("script", [ADD, calling("other", "{}")])
async def test_openai_responses_reads_a_reply_while_it_is_sampled(script: Write) -> None:
    async with gateway(script) as run, AsyncOpenAI(**openai_api(run)) as client:
        asked: Any = {"model": "m", "tools": FLAT, "input": "one"}
        seen: list[str] = []
        async with client.responses.stream(**asked) as events:
            async for event in events:
                seen.append(event.type)
            streamed = await events.get_final_response()
        whole = await client.responses.create(**asked)
    assert seen.count("response.output_text.delta") > 2
    assert _without_ids(streamed.to_dict()["output"]) == _without_ids(whole.to_dict()["output"])
    run.trajectory()


def _without_ids(found: Any) -> Any:
    """Return JSON without ids, and without what the SDK adds to streamed objects."""
    if isinstance(found, list):
        return [_without_ids(one) for one in found]
    if not isinstance(found, dict):
        return found
    dropped = ("id", "call_id", "index", "parsed", "parsed_arguments")
    return {
        key: _without_ids(value)
        for key, value in found.items()
        if key not in dropped and value is not None
    }


async def test_openai_learns_what_ends_a_stream() -> None:
    engine = StreamingOddEngine(codec(), ADD, breaks={0: 40, 1: 40})
    async with gateway(ADD, engine=engine) as run, AsyncOpenAI(**openai_api(run)) as client:
        asked: Any = {"model": "m", "stream": True}
        chunks = await client.chat.completions.create(messages=[USER], tools=TOOLS, **asked)
        with pytest.raises(APIError, match="the engine broke while it sampled"):
            async for _ in chunks:
                pass
        events = await client.responses.create(input="one", tools=FLAT, **asked)
        *_, last = [event async for event in events]
        assert (last.type, "the engine broke" in last.message) == ("error", True)
        assert len(engine.requests) == 2


async def test_openai_reads_errors_and_retries_engine_faults() -> None:
    async with gateway(ADD, faults=(0,)) as run, AsyncOpenAI(**openai_api(run)) as client:
        with pytest.raises(BadRequestError, match="data"):
            await client.chat.completions.create(model="m", messages=[ELSEWHERE])
        answer = await client.chat.completions.create(model="m", messages=[USER])
        assert answer.choices[0].message.content == ANSWER
        assert run.session.fault is None  # the SDK's retry made up for it
    run.trajectory()


async def test_openai_sees_a_fault_that_lasts() -> None:
    async with (
        gateway(ADD, faults=range(9)) as run,
        AsyncOpenAI(**openai_api(run), max_retries=1) as client,
    ):
        with pytest.raises(InternalServerError):
            await client.chat.completions.create(model="m", messages=[USER])
        assert run.session.fault is not None


async def test_openai_responses_with_an_image(note: Note) -> None:
    async with gateway(ADD) as run, AsyncOpenAI(**openai_api(run)) as client:
        items: list[Any] = [
            {"role": "user",
             "content": [{"type": "input_image", "image_url": picture(1).data_uri()},
                         {"type": "input_text", "text": "what is it?"}]}
        ]  # fmt: skip
        first = await client.responses.create(model="m", input=items)
        items += [*first.output, {"role": "user", "content": "and now?"}]
        async with client.responses.stream(model="m", input=items) as events:
            async for _ in events:
                pass
            assert (await events.get_final_response()).output_text == ANSWER
    trajectory = trained(run, sequences=1)

    assert [image.sha256 for image in trajectory.images()] == [picture(1).sha256]
    note(trajectory, dialect="Responses", does="conversation with an image")


async def test_openai_responses_continue_by_id(note: Note) -> None:
    async with (
        gateway(saying(call_of("add"), call_of("add"))) as run,
        AsyncOpenAI(**openai_api(run)) as client,
    ):
        answer = await client.responses.create(model="m", input="one", tools=FLAT)
        while calls := [item for item in answer.output if item.type == "function_call"]:
            results: Any = [
                {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
                for call in calls
            ]
            answer = await client.responses.create(
                model="m", input=results, tools=FLAT, previous_response_id=answer.id
            )

    assert answer.output_text == ANSWER
    note(
        trained(run, turns=3, sequences=1),
        dialect="Responses",
        does="tool loop by `previous_response_id`",
    )
