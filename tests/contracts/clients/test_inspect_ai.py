"""inspect-ai: its ReAct agent, in the three dialects of its model providers."""

import os
from typing import Any

import pytest
from fakes.client_notes import Note
from fakes.client_scripts import ANSWER, anthropic_api, call_of, gateway, openai_api, saying
from inspect_ai import Task, eval_async
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.tool import Tool, tool

os.environ["INSPECT_DISPLAY"] = "none"
SUBMIT = call_of("submit", '{"answer":  "3"}')


@tool
def add() -> Tool:
    async def execute(a: float, b: float) -> str:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return str(a + b)

    return execute


@pytest.mark.parametrize("kind", ["chat completions", "Responses", "messages"])
async def test_inspect_ai_keeps_one_sequence(kind: str, note: Note, tmp_path: Any) -> None:
    probes = [ANSWER] if kind == "Responses" else []  # it tries whether the server has Responses
    async with gateway(saying(*probes, call_of("add"), call_of("add"), SUBMIT)) as run:
        about: dict[str, Any] = {
            "chat completions": {"model": "openai/m", "responses_api": False, **openai_api(run)},
            "Responses": {"model": "openai/m", "responses_api": True, **openai_api(run)},
            "messages": {"model": "anthropic/m", **anthropic_api(run)},
        }[kind]
        task = Task(dataset=[Sample(input="What is 1 + 2?")], solver=react(tools=[add()]))
        (log,) = await eval_async(
            task, model=get_model(about.pop("model"), memoize=False, **about),
            log_dir=str(tmp_path),
        )  # fmt: skip
        assert log.status == "success", log.error
    trajectory = run.trajectory()

    assert run.session.refusal is None
    assert len(trajectory.turns) == 3 + len(probes)
    assert len(trajectory.sequences()) == 1 + len(probes)
    untrained = sum(trajectory.metadata["agent"]["untrained"].values())
    assert bool(untrained) == bool(probes)
    note(trajectory, dialect=kind, does="`react`")
