"""dspy: every step is a new conversation, which quotes the earlier steps in dspy's own words."""

import asyncio
from typing import Any

import dspy
import pytest
from fakes.client_notes import Note, trained
from fakes.client_scripts import add, gateway, openai_api, saying

STEP = """[[ ## next_thought ## ]]
I should add the two numbers with the tool.

[[ ## next_tool_name ## ]]
{tool}

[[ ## next_tool_args ## ]]
{arguments}

[[ ## completed ## ]]"""
ADD = STEP.format(tool="add", arguments='{"a":  1, "b": 2.0}')
FINISH = STEP.format(tool="finish", arguments="{}")
LAST = """[[ ## reasoning ## ]]
The tool returned it.

[[ ## answer ## ]]
3

[[ ## completed ## ]]"""


@pytest.mark.parametrize(
    ("does", "steps", "most"),
    [("`ReAct`", [ADD, ADD, FINISH, LAST], 20), ("last step of `max_iters`", [ADD, ADD, LAST], 2)],
)
async def test_dspy_is_trained_in_a_sequence_per_step(
    does: str, steps: list[str], most: int, note: Note
) -> None:
    async with gateway(saying(*steps)) as run:

        def play() -> Any:
            address = openai_api(run)
            model = dspy.LM(
                "openai/m", api_base=address["base_url"], api_key=address["api_key"], cache=False
            )
            with dspy.context(lm=model):
                return dspy.ReAct("question -> answer", tools=[add], max_iters=most)(
                    question="What is 1 + 2?"
                )

        found = await asyncio.to_thread(play)

    assert found.answer == "3"
    note(
        trained(run, turns=len(steps), sequences=len(steps)), dialect="chat completions", does=does
    )
