"""langgraph with langchain's models: its agent, and summaries of long histories."""

from typing import Any

import pytest
from fakes.client_notes import Note, trained
from fakes.client_scripts import anthropic_api, call_of, calling, gateway, openai_api, saying
from fakes.gateway_run import Run
from fakes.trajectories import picture
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

ADD = calling("add", '{"b":  2.0, "a": 1}')
KINDS = ("chat completions", "Responses", "messages")


@tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def model_of(run: Run, kind: str) -> Any:
    if kind == "messages":
        return ChatAnthropic(model="m", **anthropic_api(run))  # type: ignore[call-arg]
    return ChatOpenAI(model="m", use_responses_api=kind == "Responses", **openai_api(run))


async def closed(model: Any) -> None:
    client = model._async_client if isinstance(model, ChatAnthropic) else model.root_async_client
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_langgraph_keeps_one_sequence(kind: str, note: Note) -> None:
    async with gateway(ADD) as run:
        model = model_of(run, kind)
        graph: Any = create_agent(model, [add])
        content: Any = [
            {"type": "text", "text": "add"},
            {"type": "image", "base64": picture(1).data_uri().partition(",")[2],
             "mime_type": "image/png"},
        ]  # fmt: skip
        state = await graph.ainvoke({"messages": [HumanMessage(content=content)]})
        state = await graph.ainvoke({"messages": [*state["messages"], HumanMessage("again")]})
        await closed(model)
    trajectory = trained(run, turns=4, sequences=1)

    assert [image.sha256 for image in trajectory.images()] == [picture(1).sha256]
    note(trajectory, dialect=kind, does="tool loop with an image")


@pytest.mark.parametrize("kind", KINDS)
async def test_langgraph_trains_its_summaries(kind: str, note: Note) -> None:
    said = "The numbers so far are one and two, and their sum was asked for."
    script = saying(call_of("add"), call_of("add"), call_of("add"), said)
    async with gateway(script) as run:
        model = model_of(run, kind)
        shorter = SummarizationMiddleware(model, trigger=("messages", 7), keep=("messages", 2))
        graph: Any = create_agent(model, [add], middleware=[shorter])
        state = await graph.ainvoke({"messages": [HumanMessage("add")]})
        await closed(model)
    trajectory = run.trajectory()

    assert said in str(state["messages"])
    assert run.session.refusal is None
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    note(trajectory, dialect=kind, does="`SummarizationMiddleware`")
