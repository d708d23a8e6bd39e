"""litellm: its completion calls with tools, whole and streamed, in three dialects."""

from typing import Any

import litellm
import pytest
from fakes.client_notes import Note, trained
from fakes.client_scripts import anthropic_api, call_of, gateway, openai_api, saying

TOOLS: Any = [
    {"type": "function",
     "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
]  # fmt: skip
USER: Any = {"role": "user", "content": "What is 1 + 2?"}


def _named(address: dict[str, Any]) -> dict[str, Any]:
    return {"api_base": address["base_url"], "api_key": address["api_key"]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat completions", "messages"])
async def test_litellm_keeps_one_sequence(kind: str, stream: bool, note: Note) -> None:
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        asked: Any = {"tools": TOOLS, "stream": stream}
        if kind == "messages":
            asked |= {"model": "anthropic/m", **_named(anthropic_api(run))}
        else:
            asked |= {"model": "openai/m", **_named(openai_api(run))}
        messages: list[Any] = [USER]
        for _ in range(3):
            answer: Any = await litellm.acompletion(messages=messages, **asked)
            if stream:
                answer = litellm.stream_chunk_builder([one async for one in answer])
            message = answer.choices[0].message
            messages.append(message)
            for call in message.tool_calls or []:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})

    assert not messages[-1].tool_calls
    note(trained(run, turns=3, sequences=1), dialect=kind, does="tool loop")


async def test_litellm_responses_keep_one_sequence(note: Note) -> None:
    tools: Any = [{"type": "function", **TOOLS[0]["function"]}]
    async with gateway(saying(call_of("add"), call_of("add"))) as run:
        items: list[Any] = [USER]
        for _ in range(3):
            answer: Any = await litellm.aresponses(
                input=items, model="openai/m", tools=tools, **_named(openai_api(run))
            )
            items += answer.output
            items += [
                {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
                for call in answer.output
                if call.type == "function_call"
            ]

    note(trained(run, turns=3, sequences=1), dialect="Responses", does="tool loop")
