"""Retries: the recovery ladder, budgets, and the promise that no step is applied twice."""

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, FaultyEngine, FragileEnv, ReplayEnv, World, say_turn
from fakes.playing import collected

from envkit.errors import EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import Backoff, RetryBudget, RolloutState, ScriptedEngine, play
from envkit.rollout.boundary import as_env_fault, guarded
from envkit.trajectory import SegmentKind, StopReason, Trajectory

FAST = RetryBudget(
    step_timeout_s=0.7,
    reset_timeout_s=0.7,
    backoff=Backoff(initial_s=0.001, maximum_s=0.002),
    max_env_retries_per_turn=4,
    max_env_retries_per_episode=30,
    max_engine_retries_per_turn=6,
    max_episode_restarts=8,
)


class Scheduled(FaultPlan):
    """Fails the calls that are listed: (where, turn, attempt) -> kind."""

    def __init__(self, schedule: dict[tuple[Any, ...], str]) -> None:
        super().__init__(0.0)
        self._listed = schedule

    def decide(self, scope: str, *key: object, attempt: int = 0) -> str | None:
        where = key if scope == "reset" else key[1:]  # regardless of the episode's id
        return self._listed.get((scope, *where, attempt))


async def run(
    kind: type[CountingEnv],
    schedule: dict[tuple[Any, ...], str],
    *,
    after: bool = True,
) -> tuple[Trajectory, World]:
    world, plan, codec = World(), Scheduled(schedule), text_codec()
    trajectory = await play(
        lambda: kind(world, plan, after=after),
        ScriptedEngine(codec, say_turn),
        codec,
        retries=FAST,
        seed=5,
    )
    return trajectory, world


def test_thread_that_the_system_refuses_is_a_transient_fault() -> None:
    def refused() -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(EnvFault, match="reset failed") as caught:
        guarded(refused, "reset")()
    assert caught.value.kind is FaultKind.TRANSIENT
    assert as_env_fault(RuntimeError("the thread"), "reset").kind is FaultKind.PERMANENT


def assert_exactly_once(trajectory: Trajectory, world: World) -> None:
    """The final state holds every reply once, and no attempt was made twice."""
    replies = [turn.response_text for turn in trajectory.turns]
    assert trajectory.turns[-1].info["history"] == replies
    assert max(world.steps.values()) == 1


@pytest.mark.parametrize("kind", [CountingEnv, ReplayEnv])
@pytest.mark.parametrize("fault", ["transient", "crashed", "timeout"])
@pytest.mark.parametrize("after", [True, False])
async def test_play_recovers_a_failed_step_and_applies_it_once_invariant_8(
    kind: type[CountingEnv], fault: str, after: bool
) -> None:
    trajectory, world = await run(kind, {("step", 1, 0): fault}, after=after)
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.reward == 1.0
    assert trajectory.turns[1].env_retries == {fault: 1}
    assert trajectory.env_restarts == 0
    assert_exactly_once(trajectory, world)


async def test_play_faults_when_the_turns_budget_is_spent() -> None:
    always: dict[tuple[Any, ...], str] = {("step", 1, n): "transient" for n in range(99)}
    trajectory, world = await run(CountingEnv, always)
    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.fault is not None
    assert trajectory.fault.where == "step"
    assert trajectory.fault.kind == "transient"
    assert not any(trajectory.loss_mask())
    assert trajectory.turns[-1].env_retries == {"transient": FAST.max_env_retries_per_turn}
    assert len(world.steps) == 1 + 1 + FAST.max_env_retries_per_turn


async def test_play_keeps_the_reply_through_a_recovery() -> None:
    asked: list[int] = []
    codec = text_codec()
    world, plan = World(), Scheduled({("step", 1, 0): "crashed"})
    engine = ScriptedEngine(codec, lambda context: asked.append(context.turn) or "text")
    trajectory = await play(lambda: CountingEnv(world, plan), engine, codec, retries=FAST, seed=5)
    assert asked == [0, 1, 2]
    assert trajectory.reward == 1.0


async def test_play_retries_the_engine_within_its_budget() -> None:
    codec = text_codec()

    class Twice(FaultPlan):
        def decide(self, scope: str, *key: object, attempt: int = 0) -> str | None:
            is_hit = scope == "engine" and key[1] == 1 and attempt < 2
            return "transient" if is_hit else None

    world, plan = World(), Twice(0.0)
    engine = FaultyEngine(codec, say_turn, plan)
    trajectory = await play(lambda: CountingEnv(world, plan), engine, codec, retries=FAST, seed=5)
    assert trajectory.reward == 1.0
    assert [turn.engine_retries for turn in trajectory.turns] == [0, 2, 0]


async def test_play_does_not_close_a_callers_environment_that_failed() -> None:
    world, codec = World(), text_codec()
    env = CountingEnv(world, Scheduled({("step", 0, 0): "permanent"}))
    trajectory = await play(env, ScriptedEngine(codec, say_turn), codec, seed=5)
    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert world.open_envs == 1
    env.close()


TIGHT = RetryBudget(
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
        retries=TIGHT,
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
