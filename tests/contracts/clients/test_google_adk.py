"""google-adk: its loop through litellm, and a transfer to a sub-agent."""

from typing import Any

from fakes.client_notes import Note, trained
from fakes.client_scripts import ANSWER, add, call_of, gateway, openai_api, saying
from fakes.gateway_run import Run
from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner


async def play(run: Run, *, with_writer: bool) -> str:
    address = openai_api(run)
    model: Any = LiteLlm(model="openai/m", api_base=address["base_url"], api_key=address["api_key"])
    writer = LlmAgent(name="writer", model=model, instruction="Write.", tools=[add])
    agent = LlmAgent(
        name="boss", model=model, instruction="Be exact.", tools=[add],
        sub_agents=[writer] if with_writer else [],
    )  # fmt: skip
    runner = InMemoryRunner(agent=agent, app_name="sums")
    events = await runner.run_debug("What is 1 + 2?", quiet=True)
    return "".join(part.text or "" for part in events[-1].content.parts if not part.thought)


async def test_google_adk_keeps_one_sequence(note: Note) -> None:
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        assert (await play(run, with_writer=False)).strip() == ANSWER.strip()

    note(trained(run, turns=3, sequences=1), dialect="chat completions", does="tool loop")


async def test_google_adk_trains_both_sides_of_a_transfer(note: Note) -> None:
    moved = call_of("transfer_to_agent", '{"agent_name":  "writer"}')
    async with gateway(saying(call_of("add"), moved, call_of("add"))) as run:
        await play(run, with_writer=True)

    note(
        trained(run, turns=4, sequences=2),
        dialect="chat completions",
        does="transfer to a sub-agent",
    )
