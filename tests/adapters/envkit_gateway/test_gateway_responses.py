"""Responses that refer to earlier ones by id, as SDKs do by default."""

from typing import Any

import pytest
from fakes.agent_clients import ResponsesClient
from fakes.gateway_run import Run, serving

SYSTEM = {"instructions": "Add."}


async def asked(run: Run, items: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    client = run.client(ResponsesClient, tools=True)
    client.items = items
    status, answer = await client.post({**client.body(), **SYSTEM, **fields})
    assert status == 200, answer
    return answer


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def results(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "3"}
        for one in answer["output"]
        if one["type"] == "function_call"
    ]


def by_id(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": one["id"]} for one in answer["output"]]


async def test_response_continues_the_one_that_it_names() -> None:
    async with serving() as run:
        first = await asked(run, [user("one")])
        second = await asked(run, results(first), previous_response_id=first["id"])
        third = await asked(run, [user("two")], previous_response_id=second["id"])
        await asked(run, results(third), previous_response_id=third["id"])
    trajectory = run.trajectory()
    assert run.session.counts == {"new": 1, "continued": 3}
    assert len(trajectory.sequences()) == 1
    assert [entry["role"] for entry in trajectory.messages[:3]] == ["system", "user", "assistant"]


async def test_reference_stands_for_an_item_of_an_earlier_reply() -> None:
    async with serving() as run:
        first = await asked(run, [user("one")])
        assert {one["type"] for one in first["output"]} == {"reasoning", "message", "function_call"}
        history = [user("one"), *by_id(first), *results(first)]
        second = await asked(run, history)
        await asked(run, [*history, *by_id(second), user("two")])
    assert run.session.counts == {"new": 1, "continued": 2}
    assert len(run.trajectory().sequences()) == 1


async def test_instructions_are_those_of_the_request_itself() -> None:
    async with serving() as run:
        first = await asked(run, [user("one")])
        other = await asked(
            run, results(first), previous_response_id=first["id"], instructions="Subtract."
        )
        none = await asked(run, results(first), previous_response_id=first["id"], instructions=None)
        await asked(run, [user("two")], previous_response_id=other["id"], instructions="Subtract.")
        await asked(run, [user("two")], previous_response_id=none["id"], instructions=None)
    systems = [sequence.system for sequence in run.session.sequences]
    assert systems == ["Add.", "Subtract.", ""]
    assert run.session.counts == {"new": 3, "continued": 2}


async def test_response_needs_new_input() -> None:
    async with serving(lambda _: "yes") as run:
        first = await asked(run, [user("one")])
        client = run.client(ResponsesClient, extra={"previous_response_id": first["id"]})
        status, _ = await client.post(client.body())
    assert status == 400


async def test_two_responses_after_one_share_it() -> None:
    async with serving(lambda _: "yes") as run:
        first = await asked(run, [user("one")])
        for question in ("left", "right"):
            await asked(run, [user(question)], previous_response_id=first["id"])
    trajectory = run.trajectory()
    assert [branch.reason for branch in trajectory.branches] == ["branch"]
    assert trajectory.trained_token_count == trajectory.sampled_token_count


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"previous_response_id": "resp_9"}, "no response 'resp_9'"),
        ({"previous_response_id": 5}, "must be of type str"),
        ({"input": [{"type": "item_reference", "id": "msg_9"}, user("a")]}, "no item 'msg_9'"),
        ({"input": [{"type": "item_reference"}, user("a")]}, "no item None"),
    ],
)
async def test_unknown_id_is_refused(fields: dict[str, Any], why: str) -> None:
    async with serving() as run:
        await asked(run, [user("one")])
        client = run.client(ResponsesClient)
        client.items = [user("two")]
        status, answer = await client.post({**client.body(), **fields})
    assert status == 400
    assert why in answer["error"]["message"]


async def test_ids_of_another_session_are_unknown() -> None:
    async with serving() as one, serving() as other:
        first = await asked(one, [user("one")])
        client = other.client(ResponsesClient)
        client.items = [user("two")]
        status, _ = await client.post({**client.body(), "previous_response_id": first["id"]})
    assert status == 400
