"""Retry budgets at their limits, and attempt numbers: no step key is ever applied twice."""

import asyncio
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.faults import CountingEnv, FragileEnv, ReplayEnv, SavedEnv, World
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
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.reply import Reply
from envkit.rollout import Backoff, Interrupt, RetryBudget
from envkit.rollout.host import EnvHost
from envkit.rollout.recovery import EpisodeLostError, RecoveringEnv
from envkit.threads.pool import WorkerPool

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
