"""Which sequences a session's requests become: branches, sub-agents, side requests, retries."""

import asyncio

import pytest
from fakes.agent_clients import ChatClient
from fakes.gateway_run import serving
from fakes.trajectories import picture

from envkit.metrics import aggregate
from envkit.viewer.episodes import episode
from envkit.viewer.turn_text import rewritten, summary
from envkit_gateway import Train


async def test_edited_reply_starts_a_sequence_and_trains_nothing_twice() -> None:
    async with serving() as run:
        client = run.client(ChatClient)
        await client.ask("one")
        await client.ask("two")
        client.items[1]["content"] = "It was never done."
        await client.ask("three")
    trajectory = run.trajectory()

    assert [one.reason for one in trajectory.sequences()] == [None, "rewritten_history"]
    assert trajectory.trained_token_count == trajectory.sampled_token_count


async def test_two_continuations_of_a_reply_share_it() -> None:
    async with serving() as run:
        client = run.client(ChatClient)
        await client.ask("one")
        start = list(client.items)
        await client.ask("left")
        client.items = [*start]
        await client.ask("right")
    trajectory = run.trajectory()

    (first, second) = trajectory.sequences()
    assert (second.parent, second.at, second.reason) == (0, 2, "branch")
    assert first.segments[:2] == tuple(first.segments[:2])
    assert trajectory.trained_token_count == trajectory.sampled_token_count
    assert [message["role"] for message in trajectory.seen_at(2)] == [
        "user", "assistant", "user", "assistant",
    ]  # fmt: skip


async def test_parallel_requests_are_branches() -> None:
    async with serving() as run:
        first = run.client(ChatClient)
        await first.ask("one")
        others = [run.client(ChatClient, items=list(first.items)) for _ in range(5)]
        await asyncio.gather(*(one.ask(f"q{n}") for n, one in enumerate(others)))
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 5
    assert len(trajectory.turns) == 6


async def test_side_requests_have_mask_zero_unless_asked_for() -> None:
    async with serving() as run:
        title = run.client(ChatClient, system="Write a title.")
        await title.ask("one")
        client = run.client(ChatClient, tools=True)
        await client.ask("one")
    trajectory, whole = run.trajectory(), run.trajectory(train=Train.ALL)

    assert trajectory.turns[0].purpose == "side"
    assert trajectory.turns[1].reward == 1.0
    assert whole.trained_token_count == whole.sampled_token_count
    (row,) = trajectory.steps(merge=True)
    assert row.is_last
    assert row.reward == 1.0


async def test_both_continuations_of_a_side_request_have_mask_zero() -> None:
    async with serving(lambda _: "yes") as run:
        judge = run.client(ChatClient, system="Judge.")
        await judge.ask("one")
        start = list(judge.items)
        for question in ("left", "right"):
            judge.items = [*start]
            await judge.ask(question)
        await run.client(ChatClient, tools=True).ask("one")
    trajectory = run.trajectory()

    assert [turn.purpose for turn in trajectory.turns] == ["side", "side", "side", None]


async def test_subagents_are_labelled_and_the_last_call_gets_the_reward() -> None:
    async with serving(lambda _: "yes") as run:
        await run.client(ChatClient, system="Write a title.").ask("one")
        client = run.client(ChatClient, system="Lead.", tools=True)
        await client.ask("one")
        child = run.client(ChatClient, system="Search.", tools=True)
        await child.ask("find")
        twin = run.client(
            ChatClient, system="Lead.", tools=True, headers={"x-claude-code-agent-id": "a7"}
        )
        await twin.ask("find too")
    trajectory = run.trajectory()
    infos = [turn.info for turn in trajectory.turns]
    metrics = aggregate([trajectory])

    assert infos == [
        {"agent": "side"}, {}, {"agent": "sub-agent"}, {"agent": "sub-agent a7"},
    ]  # fmt: skip
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 0.0, 1.0]
    shown = {name: value for name, value in metrics.items() if name.startswith("agent/")}
    assert shown == {
        "agent/sequences/main": 1,
        "agent/sequences/side": 1,
        "agent/sequences/sub-agent": 2,
        "agent/untrained_tokens/side": len(run.engine.seen[0][1]),
    }
    assert metrics["rewrite/other_system_prompt"] == 2


async def test_viewer_shows_each_conversation_by_itself() -> None:
    async with serving(lambda _: "yes") as run:
        await run.client(ChatClient, system="Write a title.").ask("one")
        client = run.client(ChatClient, tools=True)
        await client.ask("look", picture(1))
        await run.client(ChatClient, system="Search.", tools=True).ask("find")
    data = episode(run.trajectory(), None, number=1).data
    title, main, child = data["sequences"]

    assert [one["reason"] for one in data["sequences"]] == ["", *2 * ["other system prompt"]]
    assert title["turns"][0]["untrained"] == "side"
    assert main["turns"][0]["shown"] == picture(1).sha256
    assert child["turns"][0]["shown"] is None
    assert child["turns"][0]["agent"] == "sub-agent"
    assert [entry["role"] for entry in child["turns"][0]["heard"]] == ["system", "agent"]
    assert all("dropped" not in entry for entry in child["prompt"]["history"])
    assert rewritten(child)[0].startswith("Another conversation · other system prompt")
    assert summary(title["turns"][0]) == "yes · not trained: side"


async def test_reason_says_why_a_request_continued_nothing() -> None:
    async with serving(lambda _: "yes") as run:
        client = run.client(ChatClient, system="a", tools=True)
        await client.ask("one")
        client.system = "b"
        await client.ask("two")
        client.tools = False
        await client.ask("three")
        await run.client(ChatClient, system="b").ask("four")
        client.items[1]["content"] = "no"
        await client.ask("five")
    reasons = [one.reason for one in run.trajectory().sequences()]

    assert reasons == [
        None, "other_system_prompt", "other_tools", "new_conversation", "rewritten_history",
    ]  # fmt: skip


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_conversation_goes_on_in_its_sequence_after_an_engine_fault(failing: int) -> None:
    async with serving(faults=(failing,)) as run:
        client = run.client(ChatClient)
        for number in range(3):
            client.user("look", picture(number))
            if number == failing:
                assert (await client.post(client.body()))[0] == 503
                client.extra["max_tokens"] = 4000  # a retry may be worded otherwise
            await client.ask()
        assert run.session.fault is None
    trajectory = run.trajectory()

    assert len(trajectory.sequences()) == 1
    assert len(trajectory.turns) == len(trajectory.images()) == 3


async def test_branch_that_failed_is_not_recorded() -> None:
    async with serving(faults=(2,)) as run:
        client = run.client(ChatClient)
        await client.ask("one")
        start = list(client.items)
        await client.ask("left")
        for status in (503, 200):
            client.items = [*start]
            client.user("right", None)
            assert (await client.post(client.body()))[0] == status
    assert [one.reason for one in run.trajectory().sequences()] == [None, "branch"]
