"""Threads of Anthropic's messages, in which a client sends only what is new."""

from typing import Any

import pytest
from fakes.agent_clients import AnthropicClient
from fakes.gateway_run import Run, serving


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def results(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": one["id"], "content": "3"}
            for one in answer["content"]
            if one["type"] == "tool_use"
        ],
    }


async def asked(run: Run, thread: dict[str, Any], *items: dict[str, Any], **fields: Any) -> Any:
    is_new = thread["type"] == "create"
    client = run.client(AnthropicClient, tools=is_new, system="Add." if is_new else "")
    client.items = list(items)
    status, answer = await client.post({**client.body(), "thread": thread, **fields})
    assert status == 200, answer
    return answer


def after(answer: dict[str, Any]) -> dict[str, Any]:
    return {"type": "continue", "previous_message_id": answer["id"]}


async def test_thread_continues_the_message_that_it_names_with_its_tools() -> None:
    async with serving() as run:
        first = await asked(run, {"type": "create"}, user("one"))
        second = await asked(run, after(first), results(first))
        third = await asked(run, after(second), user("two"))
        await asked(run, after(third), results(third))
    trajectory = run.trajectory()
    assert [one["type"] for one in third["content"]] == ["thinking", "text", "tool_use"]
    assert run.session.counts == {"new": 1, "continued": 3}
    assert [entry["role"] for entry in trajectory.messages[:3]] == ["system", "user", "assistant"]


async def test_two_messages_after_one_share_it() -> None:
    async with serving() as run:
        first = await asked(run, {"type": "create"}, user("one"))
        for text in ("left", "right"):
            await asked(run, after(first), results(first), user(text))
    assert [branch.reason for branch in run.trajectory().branches] == ["branch"]


async def test_unknown_message_is_reported_as_the_sdk_reads_it() -> None:
    async with serving() as run:
        client = run.client(AnthropicClient)
        client.user("one", None)
        thread = {"type": "continue", "previous_message_id": "msg_7"}
        status, answer = await client.post({**client.body(), "thread": thread})
    assert status == 404
    assert answer["error"]["type"] == "not_found_error"
    assert answer["error"]["details"] == {"error_code": "thread_not_found"}


async def test_thread_needs_a_new_message() -> None:
    """A reply is continued only where the client sends its start."""
    async with serving(lambda _: "yes") as run:
        first = await asked(run, {"type": "create"}, user("one"))
        client = run.client(AnthropicClient, extra={"thread": after(first)})
        status, _ = await client.post(client.body())
    assert status == 400


@pytest.mark.parametrize(
    ("thread", "fields", "why"),
    [
        ({"type": "fork"}, {}, "must be 'create' or 'continue'"),
        ({"type": "continue", "previous_message_id": "msg_0"}, {"system": "Add."}, "keeps its"),
    ],
)
async def test_thread_that_the_service_refuses_is_refused(
    thread: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    async with serving() as run:
        client = run.client(AnthropicClient, extra={"thread": {"type": "create"}})
        await client.ask("one")
        status, answer = await client.post({**client.body(), "thread": thread, **fields})
    assert status == 400
    assert why in answer["error"]["message"]
