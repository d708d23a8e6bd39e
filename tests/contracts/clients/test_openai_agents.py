"""openai-agents: its loop, and hand-offs from one agent to another."""

from typing import Any

import agents
import pytest
from fakes.client_notes import Note, trained
from fakes.client_scripts import ANSWER, call_of, calling, gateway, openai_api, saying
from openai import AsyncOpenAI

ADD = calling("add", '{"b":  2.0, "a": 1}')
KINDS = {
    "chat completions": agents.OpenAIChatCompletionsModel,
    "Responses": agents.OpenAIResponsesModel,
}
agents.set_tracing_disabled(True)


@agents.function_tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_openai_agents_keeps_one_sequence(kind: str, stream: bool, note: Note) -> None:
    async with gateway(ADD) as run, AsyncOpenAI(**openai_api(run)) as client:
        model: Any = KINDS[kind](model="m", openai_client=client)
        agent = agents.Agent(name="calculator", instructions="Be exact.", model=model, tools=[add])
        result: Any = await _run(agent, "What is 1 + 2?", stream)
        assert result.final_output.strip() == ANSWER.strip()
        result = await _run(agent, [*result.to_input_list(), _user("again")], stream)

    note(trained(run, turns=4, sequences=1), dialect=kind, does="tool loop")


@pytest.mark.parametrize("kind", KINDS)
async def test_openai_agents_trains_both_sides_of_a_hand_off(kind: str, note: Note) -> None:
    script = saying(call_of("add"), call_of("transfer_to_writer", "{}"), call_of("add"))
    async with gateway(script) as run, AsyncOpenAI(**openai_api(run)) as client:
        model: Any = KINDS[kind](model="m", openai_client=client)
        writer = agents.Agent(name="writer", instructions="Write.", model=model, tools=[add])
        router = agents.Agent(
            name="router", instructions="Route.", model=model, tools=[add], handoffs=[writer]
        )
        result: Any = await agents.Runner.run(router, "What is 1 + 2?")
        assert result.last_agent is writer

    note(trained(run, turns=4, sequences=2), dialect=kind, does="hand-off")


async def test_openai_agents_continues_by_response_id(note: Note) -> None:
    async with (
        gateway(saying(call_of("add"), call_of("add"))) as run,
        AsyncOpenAI(**openai_api(run)) as client,
    ):
        model = agents.OpenAIResponsesModel(model="m", openai_client=client)
        agent = agents.Agent(name="calculator", instructions="Be exact.", model=model, tools=[add])
        await agents.Runner.run(agent, "What is 1 + 2?", auto_previous_response_id=True)

    note(
        trained(run, turns=3, sequences=1),
        dialect="Responses",
        does="tool loop by `previous_response_id`",
    )


def _user(text: str) -> Any:
    return {"role": "user", "content": text}


async def _run(agent: Any, given: Any, stream: bool) -> Any:
    if not stream:
        return await agents.Runner.run(agent, given)
    streamed = agents.Runner.run_streamed(agent, given)
    async for _ in streamed.stream_events():
        pass
    return streamed
