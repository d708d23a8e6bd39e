"""Real, unmodified clients: each reply that they were given stays exactly as it was sampled."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from anthropic import AsyncAnthropic, beta_async_tool
from fakes.client_scripts import ANSWER, calling, gateway
from fakes.gateway_run import Run
from fakes.trajectories import picture
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, BadRequestError, InternalServerError
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponses
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import OpenAIServerModel, ToolCallingAgent
from smolagents import tool as smol_tool

ADD = calling("add", '{"b":  2.0, "a": 1}')


@asynccontextmanager
async def serve(script: Any = ADD, **options: Any) -> AsyncGenerator[Run]:
    """Serve one session, and close the clients that were made for it."""
    async with gateway(script, **options) as run:
        try:
            yield run
        finally:
            while _clients:
                await _clients.pop().close()


_clients: list[AsyncOpenAI | AsyncAnthropic] = []


def openai_of(run: Run, **options: Any) -> AsyncOpenAI:
    url, key = f"{run.gateway.url}/v1", run.session.key
    _clients.append(client := AsyncOpenAI(base_url=url, api_key=key, **options))
    return client


def anthropic_of(run: Run) -> AsyncAnthropic:
    url, key = run.gateway.url, run.session.key
    _clients.append(client := AsyncAnthropic(base_url=url, api_key=key))
    return client


TOOLS: Any = [
    {"type": "function",
     "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat_keeps_one_sequence(stream: bool) -> None:
    async with serve() as run:
        client = openai_of(run)
        messages: list[Any] = [{"role": "user", "content": "one"}]
        for _ in range(2):
            if stream:
                async with client.chat.completions.stream(
                    model="m", messages=messages, tools=TOOLS
                ) as events:
                    async for _event in events:
                        pass
                    message = (await events.get_final_completion()).choices[0].message
            else:
                answer = await client.chat.completions.create(
                    model="m", messages=messages, tools=TOOLS
                )
                message = answer.choices[0].message
            messages.append(message)
            for call in message.tool_calls or []:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert len(trajectory.turns) == 2


async def test_openai_reads_errors_and_retries_engine_faults() -> None:
    async with serve(faults=(0,)) as run:
        client = openai_of(run)
        with pytest.raises(BadRequestError, match="n must be between"):
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "one"}], n=0
            )
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "one"}]
        )
        assert answer.choices[0].message.content == ANSWER
        assert run.session.fault is None  # the SDK's retry made up for it
    run.trajectory()


async def test_openai_sees_a_fault_that_lasts() -> None:
    async with serve(faults=range(9)) as run:
        client = openai_of(run, max_retries=1)
        with pytest.raises(InternalServerError):
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "one"}]
            )
        assert run.session.fault is not None


async def test_openai_responses_with_an_image() -> None:
    async with serve() as run:
        client = openai_of(run)
        items: list[Any] = [
            {"role": "user",
             "content": [{"type": "input_image", "image_url": picture(1).data_uri()},
                         {"type": "input_text", "text": "what is it?"}]}
        ]  # fmt: skip
        first = await client.responses.create(model="m", input=items)
        items += [*first.output, {"role": "user", "content": "and now?"}]
        async with client.responses.stream(model="m", input=items) as events:
            async for _ in events:
                pass
            assert (await events.get_final_response()).output_text == ANSWER
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert [image.sha256 for image in trajectory.images()] == [picture(1).sha256]


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_keeps_one_sequence(stream: bool) -> None:
    tools: Any = [{"name": "add", "description": "Add.", "input_schema": {"type": "object"}}]
    async with serve() as run:
        client = anthropic_of(run)
        messages: list[Any] = [{"role": "user", "content": "one"}]
        for _ in range(2):
            asked: Any = {"model": "m", "max_tokens": 500, "messages": messages, "tools": tools}
            if stream:
                async with client.messages.stream(**asked) as events:
                    answer: Any = await events.get_final_message()
            else:
                answer = await client.messages.create(**asked)
            messages.append({"role": "assistant", "content": answer.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": [_shown()]}
                for block in answer.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results or "more"})
        counted = await client.messages.count_tokens(model="m", messages=messages, tools=tools)
        assert counted.input_tokens > 0
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert [image.sha256 for image in trajectory.images()] == [picture(2).sha256]


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_tool_runner_keeps_one_sequence(stream: bool) -> None:
    """Its default is a thread, in which a request has only what is new."""

    @beta_async_tool
    async def add(a: float, b: float) -> str:
        """Add two numbers."""
        return str(a + b)

    async with serve() as run:
        messages: Any = [{"role": "user", "content": "one"}]
        runner = anthropic_of(run).beta.messages.tool_runner(
            model="m", max_tokens=500, messages=messages, tools=[add], system="Be exact.",
            stream=stream,
        )  # fmt: skip
        async for answer in runner:
            if stream:
                await answer.get_final_message()
    assert run.session.counts == {"new": 1, "continued": 1}
    assert len(run.trajectory().sequences()) == 1


def _shown() -> dict[str, Any]:
    data = picture(2).data_uri().partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_openai_agents_keeps_one_sequence(kind: Any, stream: bool) -> None:
    set_tracing_disabled(True)

    @function_tool
    def add(a: float, b: float) -> float:
        """Add two numbers."""
        return a + b

    async with serve() as run:
        model = kind(model="m", openai_client=openai_of(run))
        agent = Agent(name="calculator", instructions="Be exact.", model=model, tools=[add])
        result: Any = await _run(agent, "What is 1 + 2?", stream)
        assert result.final_output.strip() == ANSWER.strip()
        result = await _run(agent, [*result.to_input_list(), _user("again")], stream)
    trajectory = run.trajectory()

    assert len(trajectory.turns) == 4
    assert len(trajectory.sequences()) == 1


def _user(text: str) -> Any:
    return {"role": "user", "content": text}


async def _run(agent: Any, given: Any, stream: bool) -> Any:
    if not stream:
        return await Runner.run(agent, given)
    streamed = Runner.run_streamed(agent, given)
    async for _ in streamed.stream_events():
        pass
    return streamed


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
async def test_langgraph_keeps_one_sequence(kind: str) -> None:
    @tool
    def add(a: float, b: float) -> float:
        """Add two numbers."""
        return a + b

    async with serve() as run:
        key, url = run.session.key, run.gateway.url
        model: Any = (
            ChatAnthropic(model="m", base_url=url, api_key=key)  # type: ignore[call-arg,arg-type]
            if kind == "messages"
            else ChatOpenAI(
                model="m", base_url=f"{url}/v1", api_key=key,  # type: ignore[arg-type]
                use_responses_api=kind == "responses",
            )
        )  # fmt: skip
        _clients.append(model._async_client if kind == "messages" else model.root_async_client)
        graph: Any = create_agent(model, [add])
        content: Any = [
            {"type": "text", "text": "add"},
            {"type": "image", "base64": picture(1).data_uri().partition(",")[2],
             "mime_type": "image/png"},
        ]  # fmt: skip
        state = await graph.ainvoke({"messages": [HumanMessage(content=content)]})
        state = await graph.ainvoke({"messages": [*state["messages"], HumanMessage("again")]})
    trajectory = run.trajectory()

    assert len(trajectory.turns) == 4
    assert len(trajectory.sequences()) == 1
    assert [image.sha256 for image in trajectory.images()] == [picture(1).sha256]


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
async def test_pydantic_ai_keeps_one_sequence(kind: str) -> None:
    async with serve() as run:
        openai = OpenAIProvider(openai_client=openai_of(run))
        model: Any = {
            "chat": lambda: OpenAIChatModel("m", provider=openai),
            "responses": lambda: PydanticResponses("m", provider=openai),
            "messages": lambda: AnthropicModel(
                "m", provider=AnthropicProvider(anthropic_client=anthropic_of(run))
            ),
        }[kind]()
        agent: Any = PydanticAgent(model, instructions="Be exact.")

        @agent.tool_plain
        def add(a: float, b: float) -> list[Any]:
            """Add two numbers, and show the sum."""
            data = picture(3).png_bytes()
            return [f"{a + b}", BinaryContent(data=data, media_type="image/png")]

        first = await agent.run("add")
        await agent.run("again", message_history=first.all_messages())
    trajectory = run.trajectory()

    assert len(trajectory.turns) == 4
    assert len(trajectory.sequences()) == 1
    assert {image.sha256 for image in trajectory.images()} == {picture(3).sha256}


async def test_smolagents_is_exact_in_a_sequence_per_step() -> None:
    """It writes its own version of a reply into the next prompt, so nothing can continue."""
    import asyncio

    @smol_tool
    def add(a: float, b: float) -> float:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    def script(context: str) -> str:
        if "Observation" not in context.rsplit("<|im_start|>assistant", 1)[0][-2000:]:
            return ADD(context)
        call = json.dumps({"name": "final_answer", "arguments": {"answer": "3"}})
        return f"<tool_call>\n{call}\n</tool_call>"

    async with serve(script) as run:
        model = OpenAIServerModel("m", api_base=f"{run.gateway.url}/v1", api_key=run.session.key)
        agent = ToolCallingAgent(tools=[add], model=model, max_steps=4, verbosity_level=0)
        found = await asyncio.to_thread(agent.run, "What is 1 + 2?")
        model.client.close()
    trajectory = run.trajectory()

    assert str(found) == "3"
    assert len(trajectory.sequences()) == len(trajectory.turns)
    assert trajectory.trained_token_count == trajectory.sampled_token_count
