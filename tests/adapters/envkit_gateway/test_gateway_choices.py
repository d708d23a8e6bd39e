"""Several replies to one request of chat completions."""

from itertools import count
from typing import Any

import pytest
from fakes.agent_clients import ChatClient
from fakes.gateway_run import serving
from fakes.odd_engine import Write

from envkit.rollout.limits import Limits
from envkit.trajectory import StopReason


def numbered() -> Write:
    """Return a script whose replies all differ."""
    numbers = count()

    def write(_context: str) -> str:
        return f"reply {next(numbers)}"

    return write


async def choices(client: ChatClient, n: int = 3) -> list[str]:
    status, answer = await client.post({**client.body(), "n": n})
    assert status == 200, answer
    if isinstance(answer, dict):
        assert [one["index"] for one in answer["choices"]] == [*range(n)]
        return [one["message"]["content"] for one in answer["choices"]]
    texts, finished = [""] * n, [""] * n
    for chunk in answer:
        for one in chunk["choices"]:
            texts[one["index"]] += one["delta"].get("content") or ""
            finished[one["index"]] = one["finish_reason"]
    assert finished == ["stop"] * n
    return texts


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_is_a_reply_of_its_own(stream: bool) -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient, stream=stream)
        client.user("one", None)
        found = await choices(client)
    trajectory = run.trajectory()
    assert sorted(found) == ["reply 0", "reply 1", "reply 2"]
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    assert len(trajectory.turns) == 3


async def test_conversation_continues_the_choice_that_it_quotes() -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient)
        await client.ask("one")
        client.user("two", None)
        found = await choices(client)
        client.items.append({"role": "assistant", "content": found[1]})
        await client.ask("three")
    trajectory = run.trajectory()
    assert run.session.counts == {"new": 1, "continued": 4}
    assert [branch.reason for branch in trajectory.branches] == ["branch"] * 2
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def test_usage_of_choices_counts_their_prompt_once() -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient, extra={"n": 2})
        client.user("one", None)
        _, answer = await client.post(client.body())
        used = answer["usage"]
    assert used["prompt_tokens"] == run.engine.requests[0].train_length
    assert used["completion_tokens"] == sum(len(ids) for _, ids in run.engine.seen)


async def test_retry_gets_the_choices_of_a_client_that_left() -> None:
    async with serving(numbered()) as run:
        client = await run.disconnected(choices=3)
        assert len(set(await choices(client))) == 3
    trajectory = run.trajectory()
    assert len(run.engine.seen) == 3
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def test_choice_that_failed_is_sampled_again_with_the_others_kept() -> None:
    async with serving(numbered(), faults=(1,)) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, _ = await client.post({**client.body(), "n": 3})
        assert status == 503
        assert len(set(await choices(client))) == 3
        assert run.session.fault is None
    run.trajectory()
    assert len(run.engine.seen) == 3


async def test_choices_over_a_limit_are_refused_before_any_is_sampled() -> None:
    async with serving(numbered(), limits=Limits(max_turns=2)) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, _ = await client.post({**client.body(), "n": 3})
    assert status == 403
    assert run.session.stop_reason is StopReason.MAX_TURNS
    assert not run.engine.seen


@pytest.mark.parametrize("n", [0, -1, 129, "two"])
async def test_number_of_choices_out_of_range_is_refused(n: Any) -> None:
    async with serving(numbered()) as run:
        client = run.client(ChatClient)
        client.user("one", None)
        status, _ = await client.post({**client.body(), "n": n})
    assert status == 400


async def test_refused_choice_stops_the_others() -> None:
    """A budget of tokens that has room for one reply and not for the next."""
    async with serving(lambda _: "x" * 30, limits=Limits(max_context_tokens=60)) as run:
        client = run.client(ChatClient)
        client.user("word " * 100, None)
        status, _ = await client.post({**client.body(), "n": 3})
        assert status == 400
        assert not run.session.turns
        assert not run.session.sequences
        client.items.clear()
        await client.ask("one")
    run.trajectory()
