"""Which sequences requests become: trained conversations, branches, sub-agents, side requests."""

import asyncio
from typing import Any

import pytest
from fakes.agent_clients import ChatClient
from fakes.gateway_run import Run, serving
from fakes.trajectories import picture

from envkit.errors import ConfigurationError
from envkit.metrics import aggregate
from envkit.trajectory import Trajectory
from envkit.viewer.episodes import episode
from envkit.viewer.turn_text import rewritten, summary
from envkit_gateway import AgentSettings, Train


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


PLAN = "First look at the map, then add the two numbers."

ANSWER = "The sum of the two numbers on the map is three."


def write(context: str) -> str:
    if "Write a title" in context:
        return "Sums"
    return ANSWER if "answer" in context or "Plan" not in context else PLAN


async def once(run: Run, *messages: dict[str, Any], tools: bool = False) -> str:
    """Send a conversation as a client does that keeps it elsewhere; return the reply's text."""
    client = run.client(ChatClient, tools=tools)
    client.items = [dict(one) for one in messages]
    return (await client.ask()).text


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def purposes(trajectory: Trajectory) -> list[str | None]:
    return [turn.purpose for turn in trajectory.turns]


async def loop(run: Run) -> list[dict[str, Any]]:
    """Play one turn with tools; return its history."""
    start = said("user", "Look at the map and add.")
    text = await once(run, start, tools=True)
    return [start, said("assistant", text)]


@pytest.mark.parametrize("system", [[], [said("system", "You got stuck.")]])
async def test_last_answer_without_tools_belongs_to_the_conversation(system: Any) -> None:
    async with serving(write) as run:
        history = await loop(run)
        await once(run, *system, *history, said("user", "Give your final answer now."))
        await once(run, said("user", "Write a title for: Look at the map and add."))
    trajectory = run.trajectory()
    assert purposes(trajectory) == [None, None, "side"]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0, 0.0]
    assert trajectory.metadata["agent"]["sequences"] == {"main": 2, "side": 1}


async def test_summary_that_quotes_a_reply_in_a_text_belongs_to_the_conversation() -> None:
    async with serving(write) as run:
        history = await loop(run)
        quoted = "\n".join(f"{one['role']}: {one['content']}" for one in history)
        await once(run, said("user", f"Sum up this conversation to answer:\n{quoted}"))
    assert purposes(run.trajectory()) == [None, None]


async def test_plan_that_the_conversation_quotes_belongs_to_it() -> None:
    async with serving(write) as run:
        plan = await once(run, said("user", "Plan it."))
        task = said("user", f"Here is the plan:\n{plan}\nGo, and answer.")
        await once(run, task, tools=True)
    trajectory = run.trajectory()
    assert purposes(trajectory) == [None, None]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]


async def test_chain_of_requests_without_tools_belongs_to_the_conversation() -> None:
    async with serving(write) as run:
        history = await loop(run)
        summary = await once(run, *history, said("user", "Sum up to answer."))
        await once(run, said("user", f"Judge this answer: {summary}"))
    assert purposes(run.trajectory()) == [None, None, None]


CALL = '<tool_call>\n{"name": "add", "arguments": {"a":  1, "b": 2}}\n</tool_call>'


async def called(run: Run, *before: dict[str, Any]) -> dict[str, Any]:
    """Play a turn that calls the tool and says a few words; return the call."""
    client = run.client(ChatClient, tools=True)
    client.items = [*before, said("user", "Add.")]
    (call,) = (await client.ask()).calls
    return {"id": call["id"], "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]}}  # fmt: skip


async def test_call_without_the_words_beside_it_is_a_quote() -> None:
    replies = iter([f"I will.\n{CALL}", ANSWER])
    async with serving(lambda _: next(replies)) as run:
        call = await called(run)
        await once(
            run, said("system", "Last step."),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "3"},
            said("user", "Answer now."),
        )  # fmt: skip
    assert purposes(run.trajectory()) == [None, None]


async def test_id_of_a_call_in_a_text_is_a_quote() -> None:
    replies = iter([CALL, ANSWER])
    async with serving(lambda _: next(replies)) as run:
        call = await called(run)
        await once(run, said("user", f"You called {call!r}. Answer now."))
    assert purposes(run.trajectory()) == [None, None]


async def test_request_with_the_same_system_prompt_and_task_belongs_to_the_conversation() -> None:
    replies = iter([CALL, ANSWER, "Sums"])
    system = said("system", "Be exact.")
    async with serving(lambda _: next(replies)) as run:
        await called(run, system)
        await once(run, system, said("user", "Add."), said("user", "You took too many steps."))
        await once(run, system, said("user", "Write a title for: Add."))
    assert purposes(run.trajectory()) == [None, None, "side"]


async def test_short_words_that_two_conversations_share_do_not_join_them() -> None:
    async with serving(lambda _: "yes") as run:
        await once(run, said("user", "yes?"), tools=True)
        await once(run, said("user", "Is it true? Say yes or no."))
    assert purposes(run.trajectory()) == [None, "side"]


async def test_answer_of_a_sub_agent_without_tools_stays_the_sub_agents() -> None:
    replies = iter(["I delegate the search of the map.", PLAN, "The sub-agent has finished it."])
    async with serving(lambda _: next(replies)) as run:
        await once(run, said("user", "one"), tools=True)
        child = [said("system", "Search."), said("user", "find")]
        text = await once(run, *child, tools=True)
        await once(run, *child, said("assistant", text), said("user", "Report."))
    trajectory = run.trajectory()
    assert [turn.info.get("agent") for turn in trajectory.turns] == [None, *["sub-agent"] * 2]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 1.0]
    main_only = run.trajectory(train=Train.MAIN)
    assert purposes(main_only) == [None, "sub-agent", "sub-agent"]
    assert [turn.reward for turn in main_only.turns] == [1.0, 0.0, 0.0]
    assert main_only.metadata["agent"]["untrained"].keys() == {"sub-agent"}


async def test_setting_says_what_is_trained() -> None:
    async with serving(write) as run:
        await loop(run)
        await once(run, said("user", "Write a title."))
    found = {one: purposes(run.trajectory(train=one)) for one in Train}
    assert found == {
        Train.RULE: [None, "side"], Train.MAIN: [None, "side"], Train.ALL: [None, None],
    }  # fmt: skip
    assert AgentSettings.read({"command": "x", "train": "main"}).train is Train.MAIN
    with pytest.raises(ConfigurationError, match=r"train must be one of \['rule', 'main', 'all'\]"):
        AgentSettings.read({"command": "x", "train": "side"})
