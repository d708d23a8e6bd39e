"""crewai: its loop with tools, and the last step that it forces at `max_iter`."""

import os
import warnings
from typing import Any

import pytest
from fakes.client_notes import Note, trained
from fakes.client_scripts import ANSWER, call_of, gateway, openai_api, saying

for name in ("CREWAI_DISABLE_TELEMETRY", "OTEL_SDK_DISABLED", "CREWAI_DISABLE_TRACKING"):
    os.environ[name] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"

with warnings.catch_warnings(action="ignore"):  # its lazy modules warn on import
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool


@tool("add")
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize(
    ("does", "calls", "most"), [("tool loop", 2, 20), ("last step of `max_iter`", 2, 2)]
)
async def test_crewai_is_trained(
    does: str, calls: int, most: int, note: Note, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path))
    numbers = [call_of("add", f'{{"b":  {n}.0, "a": 1}}') for n in range(calls)]
    async with gateway(saying(*numbers)) as run:
        model = LLM(model="openai/m", **openai_api(run))
        agent = Agent(
            role="calculator", goal="Be exact.", backstory="None.", llm=model, tools=[add],
            max_iter=most, verbose=False,
        )  # fmt: skip
        task = Task(description="What is 1 + 2?", expected_output="A number.", agent=agent)
        found: Any = await Crew(agents=[agent], tasks=[task], verbose=False).kickoff_async()

    assert found.raw.strip() == ANSWER.strip()
    note(trained(run, turns=calls + 1), dialect="chat completions", does=does)
