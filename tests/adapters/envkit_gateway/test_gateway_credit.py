"""Which turn a reward is on, and credit by turn over several conversations."""

import asyncio
import math
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from fakes.agent_clients import ChatClient
from fakes.agent_runs import played
from fakes.gateway_run import Run, serving
from fakes.own_agents import client_of
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.advantages import TurnRewards, turn_advantages
from envkit.agents import credit
from envkit.env import Env, Policy, Turn
from envkit.errors import EnvFault, EpisodeStateError
from envkit.registration import register
from envkit.tasks import Task
from envkit.trajectory import (
    StopReason,
    Trajectory,
    call_rows,
    check_trajectory,
    load,
    save,
    success_of,
)
from envkit_gateway import AgentTask, Train
from envkit_gateway.credit import Credit

HAND_OFF = {"Route.": "I hand it to the expert.", "Solve.": "The sum is three.", "Title.": "Sums"}


def write(context: str) -> str:
    return next(text for system, text in HAND_OFF.items() if system in context)


def rewards(trajectory: Trajectory) -> list[float | None]:
    """Return the rewards of turns in the order of the calls."""
    return [trajectory.turns[n].reward for n in trajectory.call_order]


async def ask(run: Run, system: str, text: str, *, tools: bool = True) -> ChatClient:
    client: ChatClient = run.client(ChatClient, system=system, tools=tools)
    await client.ask(text)
    return client


async def test_reward_of_a_hand_off_is_on_the_experts_last_turn() -> None:
    async with serving(write) as run:
        await ask(run, "Route.", "add")
        expert = await ask(run, "Solve.", "add")
        await expert.ask("sure?")
        await ask(run, "Title.", "add", tools=False)
    trajectory = run.trajectory()
    assert rewards(trajectory) == [0.0, 0.0, 1.0, 0.0]
    assert trajectory.turns[3].purpose == "side"
    (returns,) = turn_advantages(
        [TurnRewards.of_rows(call_rows(trajectory, filler_id=0))], [0], discount=1, is_scaled=False
    )
    assert not returns.any()  # alone in its group


async def test_turns_of_two_conversations_are_credited_in_call_order(tmp_path: Path) -> None:
    """The example of `docs/gateway.md`."""
    async with serving(write) as run:
        router = await ask(run, "Route.", "add")
        await ask(run, "Solve.", "add")
        searched = Credit(turn=run.session.latest, reward=0.2, own=0.0)
        await ask(run, "Title.", "add", tools=False)
        await router.ask("what did the expert say?")
    trajectory = run.trajectory(1.0, earlier=(searched,))

    assert [turn.call for turn in trajectory.turns] == [0, 3, 1, 2]
    assert rewards(trajectory) == [0.0, 0.2, 0.0, 1.0]
    rows = call_rows(trajectory, filler_id=0)
    assert [row.turns for row in rows] == [(0,), (2,), (1,)]
    assert [(row.reward, row.is_last) for row in rows] == [(0.0, False), (0.0, False), (1.2, True)]
    episode = TurnRewards.of_rows(rows)
    assert episode is not None
    assert episode.returns(0.5) == pytest.approx([0.35, 0.7, 1.0])
    save(trajectory, tmp_path / "run.jsonl")
    assert load(tmp_path / "run.jsonl")[0].call_order == (0, 2, 3, 1)


async def test_adjusted_reward_goes_to_the_last_call() -> None:
    async with serving(write) as run:
        await ask(run, "Route.", "add")
        lead = await ask(run, "Solve.", "add")
        first = run.client(ChatClient, system="Route.", tools=True, items=[*lead.items])
        await first.ask("and now?")
    found = credit(run.trajectory(), 0.5)
    assert rewards(found) == [0.0, 0.0, 1.5]


@pytest.mark.parametrize(("train", "expected"), [
    (Train.RULE, [0.0, 0.0, 1.0]), (Train.MAIN, [1.0, 0.0, 0.0]), (Train.ALL, [0.0, 0.0, 1.0]),
])  # fmt: skip
async def test_only_what_is_trained_is_rewarded(train: Train, expected: list[float]) -> None:
    async with serving(write) as run:
        await ask(run, "Route.", "add")
        expert = await ask(run, "Solve.", "add")
        await expert.ask("sure?")
    assert rewards(run.trajectory(train=train)) == expected


async def test_reward_of_an_untrained_call_goes_to_the_trained_one_before_it() -> None:
    async with serving(write) as run:
        await ask(run, "Title.", "add", tools=False)
        await ask(run, "Route.", "add")
        await ask(run, "Title.", "the same", tools=False)
        title, _, late = run.session.turns
        earlier = [Credit(turn=one, reward=1.0, own=0.0) for one in (None, title, late)]
    assert rewards(run.trajectory(0.5, earlier=tuple(earlier))) == [0.0, 3.5, 0.0]


class Paying(Env):
    """Pays for each turn, in full and by its own account."""

    def on_reset(self, task: Task) -> Turn:
        return Turn("Begin.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("More.", reward=2.0**self.turn, done=self.turn == 2, info={"own_reward": 0.5})

    def oracle(self) -> Policy:
        return lambda context: "yes"


@pytest.fixture
def paying() -> Any:
    register("toy-paying-v0", partial(Paying, max_turns=3), reward_threshold=1.5)
    yield "toy-paying-v0"
    del gymnasium.registry["envkit/toy-paying-v0"]


async def test_step_is_rewarded_on_the_turn_that_it_answers(paying: str) -> None:
    loop, agent = (
        await played(None, env=paying),
        await played("fakes.own_agents:trivial", env=paying),
    )
    assert rewards(loop) == rewards(agent)
    assert (len(agent.turns), success_of(loop), success_of(agent)) == (3, True, True)
    assert loop.steps(merge=True)[0].turn_rewards == agent.steps(merge=True)[0].turn_rewards


async def shaping(task: AgentTask) -> None:
    """Reward each reply, and let the environment pay too."""
    client = client_of(task)
    for n in range(3):
        said = await client.ask(f"{n}")
        task.reward(10 * (n + 1))
        half: Any = np.float32(0.5)
        task.reward(half)
        await task.step(said.text)


async def test_agents_rewards_add_to_the_environments_and_do_not_count_as_success(
    paying: str,
) -> None:
    found = await played({"function": shaping}, env=paying)
    assert rewards(found) == [11.5, 22.5, 34.5]
    assert success_of(found) is True
    assert success_of(found, threshold=2.0) is False


async def test_agents_rewards_add_to_the_one_it_returns(paying: str) -> None:
    async def agent(task: AgentTask) -> float:
        await shaping(task)
        await client_of(task).ask("one more")
        return 0.25

    found = await played({"function": agent}, env=paying)
    assert (rewards(found), found.reward) == ([10.5, 20.5, 30.5, 0.25], 61.75)
    assert success_of(found) is False


def blocking(task: AgentTask) -> None:
    """Reward from a thread."""
    asyncio.run(client_of(task).ask("one"))
    assert threading.current_thread() is not threading.main_thread()
    task.reward(True)


async def test_reward_may_be_given_on_a_thread() -> None:
    assert (await played({"function": blocking})).reward == 1.0


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, "1", None, 10**400, 1j],
    ids=["nan", "inf", "text", "none", "huge", "complex"],
)
async def test_reward_that_is_no_finite_number_is_refused_at_once(value: Any) -> None:
    async def agent(task: AgentTask) -> None:
        await client_of(task).ask("one")
        task.reward(value)

    found = await played({"function": agent})
    assert found.stop_reason is StopReason.ENV_FAULT
    assert found.fault is not None
    assert "a reward must be a finite number, got" in found.fault.message


async def test_refused_reward_may_be_replaced_by_another() -> None:
    async def agent(task: AgentTask) -> None:
        await client_of(task).ask("one")
        with pytest.raises(EnvFault, match="finite"):
            task.reward(math.nan)
        task.reward(0.5)

    found = await played({"function": agent})
    assert (found.stop_reason, found.reward) == (StopReason.TERMINATED, 0.5)


@pytest.mark.parametrize("last", [1.7e308, -1.7e308])
async def test_rewards_without_a_finite_sum_are_a_fault(last: float) -> None:
    async def agent(task: AgentTask) -> float:
        await client_of(task).ask("one")
        task.reward(1.7e308)
        return last

    assert (await played({"function": agent})).stop_reason is StopReason.ENV_FAULT


async def test_reward_needs_a_reply_and_a_running_episode() -> None:
    kept: list[AgentTask] = []

    async def agent(task: AgentTask) -> float:
        with pytest.raises(EpisodeStateError, match="ask the model first"):
            task.reward(1.0)
        await client_of(task).ask("one")
        kept.append(task)
        return 0.5

    assert (await played({"function": agent})).reward == 0.5
    with pytest.raises(EpisodeStateError, match="is over"):
        kept[0].reward(1.0)


CALLS = st.lists(st.sampled_from(["Route.", "Solve.", "Title."]), min_size=1, max_size=7)
AMOUNTS = st.lists(st.tuples(st.integers(-1, 6), st.integers(-3, 3)), max_size=6)


@settings(max_examples=25, deadline=None)
@given(calls=CALLS, amounts=AMOUNTS, train=st.sampled_from(list(Train)))
def test_rewards_of_any_calls_are_on_trained_turns_and_add_up(
    calls: list[str], amounts: list[tuple[int, int]], train: Train
) -> None:
    async def play() -> None:
        async with serving(write) as run:
            clients: dict[str, ChatClient] = {}
            for n, system in enumerate(calls):
                tools = system != "Title."
                client = clients.setdefault(
                    system, run.client(ChatClient, system=system, tools=tools)
                )
                await client.ask(f"{n}")
            turns = run.session.turns
            earlier = tuple(
                Credit(turn=turns[n] if 0 <= n < len(turns) else None, reward=r, own=0.0)
                for n, r in amounts
            )
            found = run.trajectory(0.5, earlier=earlier, train=train)
        assert found.reward == 0.5 + sum(amount for _, amount in amounts)
        assert check_trajectory(found) == ()
        purposes = [found.turns[n].purpose for n in found.call_order]
        trained = [n for n, one in enumerate(purposes) if one is None]
        got = rewards(found)
        if trained:
            expected = [0.0] * len(got)
            for n, amount in [*amounts, (len(turns), 0.5)]:
                asked = n if n < len(turns) or amount == 0.5 else -1
                expected[max([one for one in trained if one <= asked], default=trained[0])] += (
                    amount
                )
            assert got == expected
            episode = TurnRewards.of_rows(call_rows(found, filler_id=0))
            assert episode is not None
            assert list(episode.rewards) == [got[n] for n in trained]

    asyncio.run(play())
