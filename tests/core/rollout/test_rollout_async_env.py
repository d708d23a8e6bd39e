"""Asynchronous environments in the loop: no thread, the same ledger, the same recovery."""

import asyncio
from collections import Counter
from typing import Any, ClassVar

import pytest
from fakes.codecs import text_codec
from fakes.faults import say_turn
from fakes.playing import collected

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.rollout import (
    Backoff,
    RetryBudget,
    ScriptedEngine,
    play,
)
from envkit.tasks import Task
from envkit.trajectory import StopReason, Trajectory


class Remote(AsyncEnv):
    """Three turns against a service that fails or hangs once, by plan."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)

    def __init__(self, trouble: str | None = None) -> None:
        super().__init__(max_turns=5)
        self._trouble = trouble
        self._said: list[str] = []
        self.closed = 0

    async def on_areset(self, task: Task) -> Turn:
        self._said = []
        return Turn("Connected.")

    async def on_aturn(self, response_text: str) -> Turn:
        assert self.step_key is not None
        await asyncio.sleep(0.001)
        first = self.step_key.attempt == 0
        if self.turn == 1 and first and self._trouble == "transient":
            raise EnvFault("the service is down", kind=FaultKind.TRANSIENT)
        if self.turn == 1 and first and self._trouble == "hang":
            await asyncio.sleep(60)
        self._said.append(response_text)
        done = len(self._said) == 3
        return Turn("Noted.", reward=float(done), done=done, info={"said": list(self._said)})

    async def aclose(self) -> None:
        self.closed += 1


async def run(trouble: str | None, built: list[Remote]) -> Trajectory:
    def build() -> Remote:
        built.append(Remote(trouble))
        return built[-1]

    codec = text_codec()
    budget = RetryBudget(step_timeout_s=0.5, backoff=Backoff(initial_s=0.001))
    return await play(build, ScriptedEngine(codec, say_turn), codec, seed=1, retries=budget)


async def test_play_awaits_an_async_environment_and_closes_it() -> None:
    built: list[Remote] = []
    trajectory = await run(None, built)
    assert trajectory.reward == 1.0
    assert [env.closed for env in built] == [1]


async def test_play_replays_an_async_environment_after_a_fault() -> None:
    for trouble, environments in (("transient", 1), ("hang", 2)):
        built: list[Remote] = []
        trajectory = await run(trouble, built)
        assert trajectory.stop_reason is StopReason.TERMINATED, trajectory.fault
        replies = [turn.response_text for turn in trajectory.turns]
        assert trajectory.turns[-1].info["said"] == replies
        assert sum(trajectory.turns[1].env_retries.values()) == 1
        assert len(built) == environments
        assert all(env.closed == 1 for env in built)


@pytest.mark.slow
async def test_collect_plays_thousands_of_async_episodes_at_once() -> None:
    codec = text_codec()
    stops: Counter[Any] = Counter()
    engine = ScriptedEngine(codec, say_turn, latency=lambda request: 0.05)
    async for trajectory in collected(Remote, engine, codec, episodes=1000, concurrency=1000):
        stops[trajectory.stop_reason] += 1
    assert stops == {StopReason.TERMINATED: 1000}
