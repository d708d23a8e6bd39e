"""ag2: its loop with tools, and an agent that is another one's tool."""

from ag2 import Agent
from ag2.config import OpenAIConfig
from fakes.client_notes import Note
from fakes.client_scripts import ANSWER, call_of, gateway, openai_api, saying


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


async def test_ag2_keeps_one_sequence(note: Note) -> None:
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        config = OpenAIConfig(model="m", **openai_api(run))
        agent = Agent("calculator", prompt="Be exact.", config=config, tools=[add])
        reply = await agent.ask("What is 1 + 2?")
        assert reply.body == ANSWER
        await reply.ask("And now?")
    trajectory = run.trajectory()

    assert (len(trajectory.turns), len(trajectory.sequences())) == (4, 1)
    note(trajectory, dialect="chat completions", does="tool loop")


async def test_ag2_trains_an_agent_used_as_a_tool(note: Note) -> None:
    asked = call_of("task_writer", '{"objective":  "What is 1 + 2?"}')
    async with gateway(saying(asked, call_of("add"))) as run:
        config = OpenAIConfig(model="m", **openai_api(run))
        writer = Agent("writer", prompt="Write.", config=config, tools=[add])
        boss = Agent(
            "boss",
            prompt="Ask.",
            config=config,
            tools=[writer.as_tool(description="Writes an answer.")],
        )
        await boss.ask("What is 1 + 2?")
    trajectory = run.trajectory()

    assert (len(trajectory.turns), len(trajectory.sequences())) == (4, 2)
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    note(trajectory, dialect="chat completions", does="agent as a tool")
