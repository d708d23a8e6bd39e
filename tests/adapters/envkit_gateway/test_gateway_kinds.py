"""Which requests belong to the trained conversation, and which are side requests."""

from typing import Any

import pytest
from fakes.agent_clients import ChatClient
from fakes.gateway_run import Run, serving

from envkit.errors import ConfigurationError
from envkit.trajectory import Trajectory
from envkit_gateway import AgentSettings, Train

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
