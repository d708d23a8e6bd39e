"""smolagents: its own version of each reply goes into the next prompt, so nothing can continue."""

import asyncio
import json
from typing import Any

import pytest
from fakes.client_notes import Note
from fakes.client_scripts import call_of, gateway, openai_api, saying
from fakes.gateway_run import Run
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

DONE = call_of("final_answer", json.dumps({"answer": "3"}))
PLAN = "1. Add the two numbers.\n2. Answer with the sum.\n<end_plan>"
CODE = "Thought: I will add them.\n<code>\nprint(add(1, 2))\n</code>"
CODE_DONE = "Thought: that is all.\n<code>\nfinal_answer(3)\n</code>"


@tool
def add(a: float, b: float) -> float:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def play(run: Run, kind: Any, **options: Any) -> str:
    address = openai_api(run)
    model = OpenAIServerModel("m", api_base=address["base_url"], api_key=address["api_key"])
    agent = kind(tools=[add], model=model, verbosity_level=0, **options)
    try:
        return str(agent.run("What is 1 + 2?"))
    finally:
        model.client.close()


@pytest.mark.parametrize(
    ("does", "kind", "replies", "options", "answer"),
    [
        ("`ToolCallingAgent`", ToolCallingAgent, [call_of("add"), call_of("add"), DONE], {}, "3"),
        ("`CodeAgent`", CodeAgent, [CODE, CODE, CODE_DONE], {}, "3"),
        ("last step of `max_steps`", ToolCallingAgent, [call_of("add"), call_of("add")],
         {"max_steps": 2}, "It is done."),
        ("`planning_interval`", ToolCallingAgent, [PLAN, call_of("add"), PLAN, DONE],
         {"planning_interval": 1}, "3"),
    ],
)  # fmt: skip
async def test_smolagents_is_trained_in_a_sequence_per_step(
    does: str, kind: Any, replies: list[str], options: Any, answer: str, note: Note
) -> None:
    async with gateway(saying(*replies)) as run:
        found = await asyncio.to_thread(play, run, kind, **options)
    trajectory = run.trajectory()

    assert found.strip() == answer
    assert run.session.refusal is None
    assert len(trajectory.sequences()) == len(trajectory.turns) >= 3
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    note(trajectory, dialect="chat completions", does=does)
