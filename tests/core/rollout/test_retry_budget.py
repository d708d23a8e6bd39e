"""Retries at the limits of their budgets, attempt numbers, and no step that is applied twice."""

import asyncio
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, FaultyEngine, FragileEnv, ReplayEnv, SavedEnv, World, say_turn
from fakes.playing import collected
from fakes.recovering import (
    Schedule,
    Sessions,
    budget,
    hosted,
    keys,
    played,
    recovering,
    three_replies,
)
from fakes.virtual_time import skip_from_thread
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.reply import Reply
from envkit.rollout import Backoff, Interrupt, RetryBudget, RolloutState, ScriptedEngine, play
from envkit.rollout.boundary import as_env_fault, guarded
from envkit.rollout.host import EnvHost
from envkit.rollout.recovery import EpisodeLostError, RecoveringEnv
from envkit.threads.pool import WorkerPool
from envkit.trajectory import SegmentKind, StopReason, Trajectory

RECOVERABLE = [CountingEnv, ReplayEnv, SavedEnv]

# RecoveringEnvs.


async def test_restart_never_applies_a_step_key_twice() -> None:
    lost: Schedule = {("step", "e", 1, 0): "transient", ("step", "e", 2, 1): "transient"}
    async with hosted(FragileEnv, lost) as (host, world):
        restarts, history = await played(host, budget(max_episode_restarts=9), three_replies)
    assert (restarts, history) == (2, ["reply 0", "reply 1", "reply 2"])
    assert keys(world) == [
        *(("e", turn, 0) for turn in range(2)),
        *(("e", turn, 1) for turn in range(3)),
        *(("e", turn, 2) for turn in range(3)),
    ]


async def test_replay_never_applies_a_step_key_twice() -> None:
    failing: Schedule = {("step", "e", 1, 0): "transient", ("step", "e", 0, 1): "crashed"}
    async with hosted(ReplayEnv, failing) as (host, world):
        restarts, history = await played(host, budget(), three_replies)
    assert (restarts, history) == (0, ["reply 0", "reply 1", "reply 2"])
    assert keys(world) == [
        ("e", 0, 0), ("e", 1, 0),
        ("e", 0, 1),
        ("e", 0, 2), ("e", 1, 2), ("e", 2, 2),
    ]  # fmt: skip


async def test_waiting_for_room_costs_no_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [True, False]

    async def make_room(host: EnvHost, fault: EnvFault) -> bool:
        assert "injected" in str(fault)
        return waits.pop(0)

    monkeypatch.setattr(EnvHost, "make_room", make_room)
    failing: Schedule = {("step", "e", 0, 0): "transient", ("step", "e", 0, 1): "transient"}
    async with hosted(ReplayEnv, failing) as (host, _):
        env = recovering(host)
        await env.reset()
        await env.step(Reply(text="reply"))
    assert waits == []
    assert (env.spent, env.retries.total()) == (1, 1)


@pytest.mark.parametrize("kind", RECOVERABLE)
async def test_resampled_reply_never_applies_a_step_key_twice(kind: type[CountingEnv]) -> None:
    async with hosted(kind) as (host, world):
        env = recovering(host, budget(resample_on_parse_error=2))
        await env.reset()
        await env.step(Reply(text="first"))
        for text in ("bad", "worse"):
            await env.step(Reply(text=text))
            assert await env.rewind()
        outcome = await env.step(Reply(text="good"))
    assert outcome.step.info["history"] == ["first", "good"]
    assert {key[:2] for key in keys(world)} == {("e", 0), ("e", 1)}
    assert env.spent == 0, "a resampled reply is not a retry"


async def test_restart_after_a_resampled_reply_never_applies_a_step_key_twice() -> None:
    async with hosted(ReplayEnv) as (host, world):

        async def play(env: RecoveringEnv) -> int:
            await env.reset()
            await env.step(Reply(text="first"))
            if env.restarts == 0:
                assert await env.rewind()
                await env.step(Reply(text="again"))
                raise EpisodeLostError("lost")
            return env.restarts

        assert await played(host, budget(max_episode_restarts=1), play) == 1
    assert keys(world) == [("e", 0, 0), ("e", 0, 1), ("e", 0, 2)]


@pytest.mark.parametrize(("life", "name"), [(None, "e"), ("e~2", "e~2")])
async def test_step_keys_name_the_episode_or_its_life(life: str | None, name: str) -> None:
    async with hosted(CountingEnv) as (host, world):
        await played(host, budget(), three_replies, life=life)
    assert keys(world) == [(name, turn, 0) for turn in range(3)]


# Budgets.


def survives(kind: type[CountingEnv], schedule: Schedule, retries: RetryBudget) -> bool:
    """Play six turns; return whether the episode ends without a fault."""

    async def play() -> bool:
        async with hosted(kind, schedule, turns=6) as (host, world):
            env = recovering(host, retries)
            await env.reset()
            try:
                outcomes = [await env.step(Reply(text=f"reply {turn}")) for turn in range(6)]
            except EnvFault:
                return False
            finally:
                keys(world)
            assert outcomes[-1].step.info["history"] == [f"reply {turn}" for turn in range(6)]
            return True

    return asyncio.run(play())


limited = st.integers(0, 3).flatmap(lambda limit: st.tuples(st.just(limit), at_limit(limit)))


@given(kind=st.sampled_from(RECOVERABLE), limited=limited)
def test_episode_survives_exactly_as_many_faults_as_its_budget(
    kind: type[CountingEnv], limited: tuple[int, int]
) -> None:
    limit, faults = limited
    schedule = {("step", "e", n, n): "transient" for n in range(faults)}
    assert survives(kind, schedule, budget(max_env_retries_per_episode=limit)) is (faults <= limit)


@given(kind=st.sampled_from(RECOVERABLE), limited=limited)
def test_turn_survives_exactly_as_many_faults_as_its_budget(
    kind: type[CountingEnv], limited: tuple[int, int]
) -> None:
    limit, faults = limited
    first = {("step", "e", 1, n): "transient" for n in range(limit)}
    second = {("step", "e", 2, limit + n): "transient" for n in range(faults)}  # a new budget
    retries = budget(max_env_retries_per_turn=limit)
    assert survives(kind, {**first, **second}, retries) is (faults <= limit)


@given(limited=limited)
def test_reset_survives_exactly_as_many_faults_as_its_budget(limited: tuple[int, int]) -> None:
    limit, faults = limited
    schedule = {("reset", 1, n): "transient" for n in range(1, faults + 1)}

    async def play() -> bool:
        async with hosted(FragileEnv, schedule) as (host, world):
            env = recovering(host, budget(max_env_retries_per_turn=limit))
            try:
                await env.reset()
            except EnvFault:
                assert world.resets == limit + 1
                return False
            assert env.retries == ({"transient": faults} if faults else {})
            assert (env.spent, world.resets, world.built) == (faults, faults + 1, 1)
            return True

    assert asyncio.run(play()) is (faults <= limit)


@given(limited=limited)
def test_episode_restarts_at_most_as_often_as_its_budget(limited: tuple[int, int]) -> None:
    limit, faults = limited
    lost = {("step", "e", 1, n): "transient" for n in range(faults)}

    async def play() -> None:
        engine = Sessions()
        async with hosted(FragileEnv, lost) as (host, world):
            restarts = min(faults, limit)
            try:
                found = await played(
                    host, budget(max_episode_restarts=limit), three_replies, engine=engine
                )
            except EnvFault:
                assert faults > limit
            else:
                assert faults <= limit
                assert found == (faults, ["reply 0", "reply 1", "reply 2"])
            assert (world.built, world.resets) == (restarts + 1, restarts + 1)
            assert engine.ended == ["e"] * restarts
            keys(world)

    asyncio.run(play())


@pytest.mark.parametrize("limit", [0, 1, 2])
async def test_restart_keeps_the_spent_retries_of_the_episode(limit: int) -> None:
    always = {("step", "e", 1, n): "transient" for n in range(9)}
    async with hosted(FragileEnv, always) as (host, world):
        retries = budget(max_env_retries_per_episode=limit, max_episode_restarts=8)
        with pytest.raises(EnvFault, match="injected transient"):
            await played(host, retries, three_replies)
    assert keys(world) == [("e", turn, n) for n in range(limit + 1) for turn in range(2)]


async def test_environment_that_cannot_be_rebuilt_is_not_restarted() -> None:
    world, pool = World(), WorkerPool()
    env = FragileEnv(world, FaultPlan(schedule={("step", "e", 1, 0): "transient"}))
    host = EnvHost(pool, env=env)
    with pytest.raises(EnvFault, match="injected transient"):
        await played(host, budget(max_episode_restarts=9), three_replies)
    assert (world.built, world.resets) == (1, 1)
    await host.close()
    pool.close()
    env.close()


@pytest.mark.parametrize("kind", [CountingEnv, FragileEnv])
async def test_permanent_fault_is_never_retried(kind: type[CountingEnv]) -> None:
    async with hosted(kind, {("step", "e", 0, 0): "permanent"}) as (host, world):
        with pytest.raises(EnvFault, match="injected permanent"):
            await played(host, budget(max_episode_restarts=9), three_replies)
    assert (keys(world), world.resets) == ([("e", 0, 0)], 1)


async def test_fault_is_not_retried_once_the_episode_must_stop() -> None:
    interrupt = Interrupt()
    async with hosted(CountingEnv, {("step", "e", 0, 0): "transient"}) as (host, world):
        env = recovering(host, interrupt=interrupt)
        await env.reset()
        interrupt.fire()
        with pytest.raises(EnvFault, match="injected transient"):
            await env.step(Reply(text="reply"))
    assert keys(world) == [("e", 0, 0)]
    assert env.spent == 0


async def test_pause_before_a_retry_ends_with_the_episode() -> None:
    interrupt = Interrupt(grace_s=0.0)
    async with hosted(CountingEnv, {("step", "e", 0, 0): "transient"}) as (host, world):
        env = recovering(host, budget(backoff=Backoff(initial_s=60.0)), interrupt=interrupt)
        await env.reset()
        stepping = asyncio.ensure_future(env.step(Reply(text="reply")))
        while not env.spent:
            await asyncio.sleep(0)
        interrupt.fire()
        with pytest.raises(EnvFault, match="injected transient"):
            await stepping
    assert keys(world) == [("e", 0, 0)]


async def test_pauses_grow_with_the_retries_of_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def delay(_: Backoff, attempt: int, rng: Any) -> float:
        asked.append((attempt, rng.random()))
        return 0.0

    monkeypatch.setattr(Backoff, "delay", delay)
    failing = {("step", "e", turn, n): "transient" for turn, n in ((0, 0), (0, 1), (1, 2))}
    for _ in range(2):
        async with hosted(CountingEnv, failing) as (host, _world):
            env = recovering(host)
            await env.reset()
            for turn in range(2):
                await env.step(Reply(text=f"reply {turn}"))
    assert [attempt for attempt, _ in asked] == [0, 1, 0] * 2
    assert asked[:3] == asked[3:], "the jitter depends on the episode alone"


# What recorded retries say.


async def test_retries_of_a_turn_are_counted_by_kind() -> None:
    failing: Schedule = {("step", "e", 1, 0): "transient", ("restore", 1): "crashed"}
    async with hosted(CountingEnv, failing) as (host, _):
        env = recovering(host)
        await env.reset()
        await env.step(Reply(text="reply 0"))
        outcome = await env.step(Reply(text="reply 1"))
        assert env.retries == {"transient": 1, "crashed": 1}
        assert outcome.step.info["history"] == ["reply 0", "reply 1"]
        await env.step(Reply(text="reply 2"))
        assert (dict(env.retries), env.spent) == ({}, 2)


async def test_last_fault_of_a_recovery_is_the_one_that_ends_the_episode() -> None:
    failing: Schedule = {("step", "e", 1, 0): "transient", ("restore", 1): "permanent"}
    async with hosted(CountingEnv, failing) as (host, _):
        env = recovering(host)
        await env.reset()
        await env.step(Reply(text="reply 0"))
        with pytest.raises(EnvFault, match="injected permanent at restore"):
            await env.step(Reply(text="reply 1"))


@pytest.mark.parametrize("can_restart", [True, False])
async def test_lost_state_raises_its_fault_unless_the_episode_may_restart(
    can_restart: bool,
) -> None:
    async with hosted(FragileEnv, {("step", "e", 0, 0): "crashed"}) as (host, _):
        options: dict[str, Any] = {"can_restart": True} if can_restart else {}
        env = recovering(host, **options)
        await env.reset()
        with pytest.raises(EpisodeLostError if can_restart else EnvFault) as caught:
            await env.step(Reply(text="reply"))
    fault = caught.value.__cause__ if can_restart else caught.value
    assert isinstance(fault, EnvFault)
    assert fault.kind is FaultKind.CRASHED
    assert env.spent == 1


FAST = RetryBudget(
    step_timeout_s=60,
    reset_timeout_s=60,
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
    world.hang = partial(skip_from_thread, asyncio.get_running_loop(), 60)
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
    deadline = time.monotonic() + 120
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
