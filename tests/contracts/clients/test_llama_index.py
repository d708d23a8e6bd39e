"""llama-index: its agents with function calls and with ReAct texts."""

from typing import Any

from fakes.client_notes import Note, trained
from fakes.client_scripts import add, call_of, gateway, openai_api, saying
from fakes.gateway_run import Run
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.llms.openai_like import OpenAILike

ACT = 'Thought: I will add the two numbers.\nAction: add\nAction Input: {"a":  1, "b": 2.0}'
TELL = "Thought: I can answer without using any more tools.\nAnswer: 3"


async def play(run: Run, kind: Any, **options: Any) -> str:
    address = openai_api(run)
    model = OpenAILike(
        model="m", api_base=address["base_url"], api_key=address["api_key"], is_chat_model=True,
        is_function_calling_model=True, context_window=32_000,
    )  # fmt: skip
    agent = kind(tools=[add], llm=model, system_prompt="Be exact.")
    return str(await agent.run("What is 1 + 2?", **options))


async def test_llama_index_functions_keep_one_sequence(note: Note) -> None:
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        await play(run, FunctionAgent)

    note(trained(run, turns=3, sequences=1), dialect="chat completions", does="`FunctionAgent`")


async def test_llama_index_trains_its_last_step(note: Note) -> None:
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        await play(run, FunctionAgent, max_iterations=2, early_stopping_method="generate")

    note(trained(run, turns=3), dialect="chat completions", does="last step of `max_iterations`")


async def test_llama_index_react_is_trained(note: Note) -> None:
    async with gateway(saying(ACT, ACT, TELL)) as run:
        assert await play(run, ReActAgent) == "3"

    note(trained(run, turns=3), dialect="chat completions", does="`ReActAgent`")
