"""openai-agents: its loop, and hand-offs from one agent to another."""

from typing import Any

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from fakes.client_notes import Note
from fakes.client_scripts import ANSWER, call_of, calling, gateway, openai_api, saying
from openai import AsyncOpenAI

ADD = calling("add", '{"b":  2.0, "a": 1}')
KINDS = {
    "chat completions": OpenAIChatCompletionsModel,
    "Responses": OpenAIResponsesModel,
}
set_tracing_disabled(True)


@function_tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_openai_agents_keeps_one_sequence(kind: str, stream: bool, note: Note) -> None:
    async with gateway(ADD) as run, AsyncOpenAI(**openai_api(run)) as client:
        model: Any = KINDS[kind](model="m", openai_client=client)
        agent = Agent(name="calculator", instructions="Be exact.", model=model, tools=[add])
        result: Any = await _run(agent, "What is 1 + 2?", stream)
        assert result.final_output.strip() == ANSWER.strip()
        result = await _run(agent, [*result.to_input_list(), _user("again")], stream)
    trajectory = run.trajectory()

    assert len(trajectory.turns) == 4
    assert len(trajectory.sequences()) == 1
    note(trajectory, dialect=kind, does="tool loop")


@pytest.mark.parametrize("kind", KINDS)
async def test_openai_agents_trains_both_sides_of_a_hand_off(kind: str, note: Note) -> None:
    script = saying(call_of("add"), call_of("transfer_to_writer", "{}"), call_of("add"))
    async with gateway(script) as run, AsyncOpenAI(**openai_api(run)) as client:
        model: Any = KINDS[kind](model="m", openai_client=client)
        writer = Agent(name="writer", instructions="Write.", model=model, tools=[add])
        router = Agent(
            name="router", instructions="Route.", model=model, tools=[add], handoffs=[writer]
        )
        result: Any = await Runner.run(router, "What is 1 + 2?")
        assert result.last_agent is writer
    trajectory = run.trajectory()

    assert run.session.refusal is None
    assert (len(trajectory.turns), len(trajectory.sequences())) == (4, 2)
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    note(trajectory, dialect=kind, does="hand-off")


async def test_openai_agents_continues_by_response_id(note: Note) -> None:
    async with (
        gateway(saying(call_of("add"), call_of("add"))) as run,
        AsyncOpenAI(**openai_api(run)) as client,
    ):
        model = OpenAIResponsesModel(model="m", openai_client=client)
        agent = Agent(name="calculator", instructions="Be exact.", model=model, tools=[add])
        await Runner.run(agent, "What is 1 + 2?", auto_previous_response_id=True)
    trajectory = run.trajectory()

    assert (len(trajectory.turns), len(trajectory.sequences())) == (3, 1)
    note(trajectory, dialect="Responses", does="tool loop by `previous_response_id`")


def _user(text: str) -> Any:
    return {"role": "user", "content": text}


async def _run(agent: Any, given: Any, stream: bool) -> Any:
    if not stream:
        return await Runner.run(agent, given)
    streamed = Runner.run_streamed(agent, given)
    async for _ in streamed.stream_events():
        pass
    return streamed
