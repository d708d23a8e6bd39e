"""openai: chat completions and Responses, whole and streamed."""

from typing import Any

import pytest
from fakes.client_notes import Note
from fakes.client_scripts import ANSWER, call_of, calling, gateway, openai_api, saying
from fakes.trajectories import picture
from openai import AsyncOpenAI, BadRequestError, InternalServerError

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
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert len(trajectory.turns) == 2
    note(trajectory, dialect="chat completions", does="tool loop")


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
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
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
    trajectory = run.trajectory()

    assert answer.output_text == ANSWER
    assert (len(trajectory.turns), len(trajectory.sequences())) == (3, 1)
    note(trajectory, dialect="Responses", does="tool loop by `previous_response_id`")
