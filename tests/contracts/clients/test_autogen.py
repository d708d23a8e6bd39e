"""autogen: its assistant, which tells what its tools returned in a request without tools.

Its client of Anthropic's messages cannot call the newest anthropic package.
"""

from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from fakes.client_notes import Note, trained
from fakes.client_scripts import call_of, gateway, openai_api, saying

ABOUT: ModelInfo = {
    "vision": True, "function_calling": True, "json_output": True, "family": "unknown",
    "structured_output": True,
}  # fmt: skip


async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize(
    ("does", "options", "replies"),
    [
        ("tool loop", {"max_tool_iterations": 5}, 3),
        ("`reflect_on_tool_use`", {"reflect_on_tool_use": True, "max_tool_iterations": 2}, 3),
    ],
)
async def test_autogen_is_trained(
    does: str, options: dict[str, Any], replies: int, note: Note
) -> None:
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        model = OpenAIChatCompletionClient(model="m", model_info=ABOUT, **openai_api(run))
        agent = AssistantAgent("calculator", model, tools=[add], **options)
        await agent.run(task="What is 1 + 2?")
        await model.close()

    note(trained(run, turns=replies), dialect="chat completions", does=does)
