"""A fault campaign: thousands of episodes with a fifth of all calls failing."""

import asyncio
import threading
import time
from collections import Counter

import pytest
from fakes.codecs import text_codec
from fakes.faults import (
    CountingEnv,
    FaultyEngine,
    FragileEnv,
    ReplayEnv,
    World,
    say_turn,
)
from fakes.playing import collected

from envkit.faults import FaultPlan
from envkit.rollout import (
    Backoff,
    FaultPolicy,
    RetryBudget,
    RolloutState,
)
from envkit.trajectory import SegmentKind, StopReason, Trajectory

BUDGET = RetryBudget(
    step_timeout_s=0.15,
    reset_timeout_s=0.15,
    backoff=Backoff(initial_s=0.001, maximum_s=0.002),
    max_env_retries_per_turn=3,
    max_env_retries_per_episode=8,
    max_engine_retries_per_turn=2,
    max_episode_restarts=2,
)


def check(trajectory: Trajectory) -> None:
    """What must hold of every record, whatever failed."""
    ids, mask = trajectory.train_ids(), trajectory.loss_mask()
    assert len(ids) == len(mask) == len(trajectory.logprobs())
    if trajectory.is_faulted:
        assert trajectory.reward is None
        assert trajectory.fault is not None
        assert not any(mask)
        assert all(row.reward is None for row in trajectory.steps(merge=True))
        return
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.reward == 1.0
    replies = [turn.response_text for turn in trajectory.turns]
    assert trajectory.turns[-1].info["history"] == replies
    assert sum(s.kind is SegmentKind.MODEL for s in trajectory.segments) == len(replies)


async def campaign(kind: type[CountingEnv], episodes: int, rate: float) -> Counter[str]:
    world, plan, codec, state = (
        World(),
        FaultPlan(rate, seed=episodes),
        text_codec(),
        RolloutState(),
    )
    engine = FaultyEngine(codec, say_turn, plan)
    stops: Counter[str] = Counter()
    before = set(threading.enumerate())
    async for trajectory in collected(
        lambda: kind(world, plan),
        engine,
        codec,
        episodes=episodes,
        group_size=4,
        concurrency=96,
        retries=BUDGET,
        state=state,
    ):
        check(trajectory)
        stops[trajectory.stop_reason.value] += 1
    assert sum(stops.values()) == episodes, "a trajectory was lost"
    assert max(world.steps.values()) == 1, "an attempt was made twice"
    assert state.in_flight == 0
    assert state.finished == episodes
    assert engine.running == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.to_thread(settle, world, before)
    return stops


def settle(world: World, before: set[threading.Thread]) -> None:
    """Wait for abandoned calls to come back; then nothing of the run may be left."""
    deadline = time.monotonic() + 20
    while world.open_envs or own_threads(before):
        assert time.monotonic() < deadline, (world.open_envs, own_threads(before))
        time.sleep(0.05)


def own_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Find envkit's threads that the run started: sandboxes of earlier tests keep theirs."""
    return [t for t in set(threading.enumerate()) - before if t.name.startswith("envkit-")]


async def test_campaign_loses_nothing_in_a_small_run_invariants_6_8_9() -> None:
    stops = await campaign(CountingEnv, 120, 0.2)
    assert stops["terminated"] > 60


@pytest.mark.slow
async def test_campaign_of_2000_episodes_loses_nothing() -> None:
    stops: Counter[str] = Counter()
    for kind, episodes in ((CountingEnv, 1000), (ReplayEnv, 600), (FragileEnv, 400)):
        stops += await campaign(kind, episodes, 0.2)
    assert sum(stops.values()) == 2000
    assert stops["terminated"] > 1000
    assert stops["env_fault"] > 0
    assert stops["engine_fault"] > 0


THIRD_RESET = FaultPlan(schedule={("reset", 3, 1): "transient"})
"""The third environment fails its first reset, and nothing else fails."""


async def faulted_once(policy: FaultPolicy) -> tuple[list[Trajectory], RolloutState]:
    world, plan, codec, state = World(), THIRD_RESET, text_codec(), RolloutState()
    stream = collected(
        lambda: CountingEnv(world, plan), FaultyEngine(codec, say_turn, plan), codec,
        episodes=40, group_size=4, concurrency=16, on_fault=policy, state=state,
        retries=RetryBudget(max_env_retries_per_turn=0),
    )  # fmt: skip
    return [trajectory async for trajectory in stream], state


async def test_collect_mask_delivers_a_fault_with_its_siblings() -> None:
    delivered, state = await faulted_once(FaultPolicy.MASK)
    assert len(delivered) == 40
    assert [t.is_faulted for t in delivered].count(True) == state.faulted == 1


async def test_collect_retry_plays_a_faulted_episode_again() -> None:
    delivered, state = await faulted_once(FaultPolicy.RETRY)
    assert len(delivered) == 40
    assert (state.retried, state.faulted) == (1, 0)
    assert all(trajectory.reward == 1.0 for trajectory in delivered)


async def test_collect_drop_group_withholds_the_siblings_of_a_fault() -> None:
    delivered, state = await faulted_once(FaultPolicy.DROP_GROUP)
    assert set(Counter(t.group_id for t in delivered).values()) == {4}
    assert (len(delivered), len(state.dropped)) == (36, 4)
    assert [t.is_faulted for t in state.dropped].count(True) == 1
