"""Requests that end with the start of the reply."""

from typing import Any

import pytest
from fakes.agent_clients import CLIENTS, AnthropicClient, ChatClient, Client
from fakes.gateway_run import serving

from envkit.trajectory import SegmentKind

CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}


def opened(run: Any, kind: type[Client], start: str) -> Client:
    client = run.client(kind, extra=CONTINUE if kind is ChatClient else {})
    client.user("one", None)
    client.items.append({"role": "assistant", "content": start})
    return client


@pytest.mark.parametrize("kind", [ChatClient, AnthropicClient])
async def test_model_continues_the_start_of_a_reply(kind: type[Client]) -> None:
    contexts: list[str] = []

    def write(context: str) -> str:
        contexts.append(context)
        return " is four."

    async with serving(write) as run:
        client = opened(run, kind, "The answer")
        status, answer = await client.post(client.body())
        assert status == 200, answer
        said = client.read(answer)
    trajectory = run.trajectory()
    assert said.text == " is four."
    assert contexts[0].endswith("assistant\nThe answer")
    assert trajectory.segments[0].kind is SegmentKind.PROMPT
    assert trajectory.trained_token_count == len(run.engine.seen[0][1])


@pytest.mark.parametrize("kind", [ChatClient, AnthropicClient])
async def test_whole_reply_in_a_history_continues_its_sequence(kind: type[Client]) -> None:
    async with serving(lambda _: " is four.") as run:
        client = opened(run, kind, "The answer")
        await client.post(client.body())
        client.items[-1]["content"] = "The answer is four."
        client.extra = {}
        await client.ask("two")
        await client.ask("three")
    trajectory = run.trajectory()
    assert run.session.counts == {"new": 1, "continued": 2}
    assert len(trajectory.sequences()) == 1


async def test_start_of_a_reply_alone_is_another_conversation() -> None:
    async with serving(lambda _: " is four.") as run:
        client = opened(run, AnthropicClient, "The answer")
        await client.post(client.body())
        await client.ask("two")
    run.trajectory()
    assert run.session.counts == {"new": 2}


async def test_start_after_a_reply_begins_a_sequence_that_quotes_it() -> None:
    async with serving(lambda _: " yes") as run:
        client = run.client(AnthropicClient)
        await client.ask("one")
        client.user("two", None)
        client.items.append({"role": "assistant", "content": "Well,"})
        status, _ = await client.post(client.body())
    trajectory = run.trajectory()
    assert status == 200
    assert [branch.reason for branch in trajectory.branches] == ["template"]


async def test_thread_continues_after_a_reply_with_its_start() -> None:
    async with serving(lambda _: " is four.") as run:
        client = opened(run, AnthropicClient, "The answer")
        client.extra = {"thread": {"type": "create"}}
        _, first = await client.post(client.body())
        client.items.clear()
        client.extra = {"thread": {"type": "continue", "previous_message_id": first["id"]}}
        await client.ask("two")
    run.trajectory()
    assert run.session.counts == {"new": 1, "continued": 1}


@pytest.mark.parametrize("kind", [one for one in CLIENTS if one is not AnthropicClient])
async def test_reply_at_the_end_is_answered_with_another(kind: type[Client]) -> None:
    """As OpenAI's service and vLLM do."""
    contexts: list[str] = []

    def write(context: str) -> str:
        contexts.append(context)
        return "yes"

    async with serving(write) as run:
        client = run.client(kind)
        await client.ask("one")
        status, _ = await client.post(client.body())
    run.trajectory()
    assert status == 200
    assert contexts[1].endswith("yes<|im_end|>\n<|im_start|>assistant\n")
    assert run.session.counts == {"new": 2}


BLOCK = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
BAD: list[tuple[type[Client], dict[str, Any], dict[str, Any]]] = [
    (AnthropicClient, {"role": "assistant", "content": "The answer "}, {}),
    (AnthropicClient, {"role": "assistant", "content": ""}, {}),
    (AnthropicClient, {"role": "assistant", "content": [BLOCK]}, {}),
    (ChatClient, {"role": "user", "content": "a"}, CONTINUE),
    (ChatClient, {"role": "assistant", "content": None}, CONTINUE),
    (ChatClient, {"role": "assistant", "content": "a"}, {"continue_final_message": True}),
]


@pytest.mark.parametrize(("kind", "last", "extra"), BAD, ids=str)
async def test_start_that_the_service_refuses_is_refused(
    kind: type[Client], last: dict[str, Any], extra: dict[str, Any]
) -> None:
    async with serving() as run:
        client = run.client(kind, extra=extra)
        client.user("one", None)
        client.items.append(last)
        status, _ = await client.post(client.body())
    assert status == 400
    assert not run.engine.seen
