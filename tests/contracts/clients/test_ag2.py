"""ag2: its loop with tools, and an agent that is another one's tool."""

from ag2 import Agent
from ag2.config import OpenAIConfig
from fakes.client_notes import Note, trained
from fakes.client_scripts import ANSWER, add, call_of, gateway, openai_api, saying


async def test_ag2_keeps_one_sequence(note: Note) -> None:
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        config = OpenAIConfig(model="m", **openai_api(run))
        agent = Agent("calculator", prompt="Be exact.", config=config, tools=[add])
        reply = await agent.ask("What is 1 + 2?")
        assert reply.body == ANSWER
        await reply.ask("And now?")

    note(trained(run, turns=4, sequences=1), dialect="chat completions", does="tool loop")


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

    note(trained(run, turns=4, sequences=2), dialect="chat completions", does="agent as a tool")
