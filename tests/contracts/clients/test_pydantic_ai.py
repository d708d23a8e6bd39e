"""pydantic-ai: its loop in all three dialects, with an image from a tool."""

from typing import Any

import pytest
from anthropic import AsyncAnthropic
from fakes.client_notes import Note, trained
from fakes.client_scripts import anthropic_api, calling, gateway, openai_api
from fakes.trajectories import picture
from openai import AsyncOpenAI
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

ADD = calling("add", '{"b":  2.0, "a": 1}')


@pytest.mark.parametrize("kind", ["chat completions", "Responses", "messages"])
async def test_pydantic_ai_keeps_one_sequence(kind: str, note: Note) -> None:
    async with (
        gateway(ADD) as run,
        AsyncOpenAI(**openai_api(run)) as openai,
        AsyncAnthropic(**anthropic_api(run)) as anthropic,
    ):
        own = OpenAIProvider(openai_client=openai)
        model: Any = {
            "chat completions": lambda: OpenAIChatModel("m", provider=own),
            "Responses": lambda: OpenAIResponsesModel("m", provider=own),
            "messages": lambda: AnthropicModel(
                "m", provider=AnthropicProvider(anthropic_client=anthropic)
            ),
        }[kind]()
        agent: Any = Agent(model, instructions="Be exact.")

        @agent.tool_plain
        def add(a: float, b: float) -> list[Any]:
            """Add two numbers, and show the sum."""
            data = picture(3).png_bytes()
            return [f"{a + b}", BinaryContent(data=data, media_type="image/png")]

        first = await agent.run("add")
        await agent.run("again", message_history=first.all_messages())
    trajectory = trained(run, turns=4, sequences=1)

    assert {image.sha256 for image in trajectory.images()} == {picture(3).sha256}
    note(trajectory, dialect=kind, does="tool loop with an image")
