"""Many episodes: groups, concurrency, stopping, and what must not leak."""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from typing import Any, ClassVar

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, FaultyEngine, ReplayEnv, World, say_turn
from fakes.playing import collected

from envkit.env import Capabilities, Turn
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.faults import FaultPlan
from envkit.rollout import (
    FaultPolicy,
    GenerateRequest,
    Interrupt,
    RetryBudget,
    RolloutState,
    ScriptedEngine,
)
from envkit.tasks import Task
from envkit.trajectory import StopReason, Trajectory


def factory(world: World) -> Any:
    return lambda: CountingEnv(world, FaultPlan(0.0))


async def gather(world: World, **options: Any) -> list[Trajectory]:
    codec = text_codec()
    engine = options.pop("engine", None) or ScriptedEngine(codec, say_turn)
    env = options.pop("env", factory(world))
    return [trajectory async for trajectory in collected(env, engine, codec, **options)]


async def test_collect_plays_every_episode_once() -> None:
    world = World()
    trajectories = await gather(world, episodes=24, group_size=4, concurrency=5)
    assert len({t.episode_id for t in trajectories}) == 24
    groups: dict[str | None, set[int]] = defaultdict(set)
    for trajectory in trajectories:
        groups[trajectory.group_id].add(trajectory.metadata["member"])
    assert list(groups.values()) == [{0, 1, 2, 3}] * 6
    assert world.open_envs == 0


async def test_collect_starts_group_members_from_one_state() -> None:
    trajectories = await gather(World(), episodes=12, group_size=4)
    starts: dict[str | None, set[str | None]] = defaultdict(set)
    for trajectory in trajectories:
        starts[trajectory.group_id].add(trajectory.initial_observation_hash)
    assert all(len(hashes) == 1 for hashes in starts.values())
    assert len(set.union(*starts.values())) == 3


async def test_collect_faults_a_member_that_starts_elsewhere() -> None:
    class Random(CountingEnv):
        starts = 0

        def on_reset(self, task: Task) -> Turn:
            type(self).starts += 1
            return Turn(f"start {type(self).starts}")

    world = World()
    trajectories = await gather(
        world, episodes=3, group_size=3, env=lambda: Random(world, FaultPlan(0.0))
    )
    faulted = [t for t in trajectories if t.is_faulted]
    assert len(faulted) == 2
    assert all("a different observation" in t.fault.message for t in faulted if t.fault)


async def test_collect_gives_the_same_tasks_at_any_concurrency() -> None:
    def starts(trajectories: list[Trajectory]) -> dict[Any, str | None]:
        return {t.metadata["group"]: t.initial_observation_hash for t in trajectories}

    one = await gather(World(), episodes=10, concurrency=1, seed=7)
    many = await gather(World(), episodes=10, concurrency=10, seed=7)
    other = await gather(World(), episodes=10, concurrency=10, seed=8)
    assert starts(one) == starts(many)
    assert starts(one) != starts(other)


async def test_collect_plays_given_tasks_in_order() -> None:
    seen: list[Task] = []

    class Reader(CountingEnv):
        def on_reset(self, task: Task) -> Turn:
            seen.append(task)
            return super().on_reset(task)

    world = World()
    tasks = [{"number": n} for n in range(3)]
    trajectories = await gather(
        world, episodes=6, group_size=2, concurrency=1, tasks=tasks,
        env=lambda: Reader(world, FaultPlan(0.0)),
    )  # fmt: skip
    assert [task["number"] for task in seen] == [0, 0, 1, 1, 2, 2]
    assert {t.metadata["group"]: t.task["number"] for t in trajectories} == {0: 0, 1: 1, 2: 2}


async def test_collect_bounds_concurrency_by_argument_and_capability() -> None:
    world, codec = World(), text_codec()
    most = 0

    class Few(CountingEnv):
        capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, max_sessions=2)

    engine = ScriptedEngine(codec, say_turn, latency=lambda request: 0.005)
    for env, bound in ((factory(world), 5), (lambda: Few(world, FaultPlan(0.0)), 2)):
        state, most = RolloutState(), 0
        async for _ in collected(env, engine, codec, episodes=20, concurrency=5, state=state):
            most = max(most, state.in_flight, world.open_envs)
        assert most <= bound


async def test_collect_interrupt_keeps_finished_and_partial_work_invariant_9() -> None:
    world, codec, interrupt, state = World(), text_codec(), Interrupt(), RolloutState()
    order: dict[str, int] = {}

    def latency(request: GenerateRequest) -> float:  # the first 8 episodes are quick
        return 0.0 if order.setdefault(request.session_id, len(order)) < 8 else 30.0

    engine = ScriptedEngine(codec, say_turn, latency=latency)
    done: list[Trajectory] = []
    async for trajectory in collected(
        factory(world), engine, codec, episodes=60, concurrency=6, interrupt=interrupt, state=state
    ):
        done.append(trajectory)
        if len(done) == 8:
            interrupt.fire()
    assert len(done) == state.started == state.finished < 60
    aborted = [t for t in done if t.stop_reason is StopReason.ABORTED]
    assert len(aborted) == len(done) - 8 > 0
    assert all(t.reward is None for t in aborted)
    assert world.open_envs == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_collect_left_early_cancels_and_closes_everything() -> None:
    world, codec = World(), text_codec()
    engine = ScriptedEngine(codec, say_turn, latency=lambda request: 0.02)
    stream = collected(factory(world), engine, codec, episodes=50, concurrency=8)
    async for _ in stream:
        break
    await stream.aclose()
    assert world.open_envs == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_collect_cancelled_leaks_nothing_invariant_9() -> None:
    world, codec = World(), text_codec()
    engine = ScriptedEngine(codec, say_turn, latency=lambda request: 0.02)

    async def consume() -> None:
        async for _ in collected(factory(world), engine, codec, episodes=500, concurrency=8):
            pass

    for delay in (0.0, 0.01, 0.05, 0.1):
        task = asyncio.create_task(consume())
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert world.open_envs == 0


async def test_collect_cancelled_while_building_closes_what_was_built() -> None:
    class Slow(CountingEnv):
        def __init__(self, world: World) -> None:
            super().__init__(world, FaultPlan(0.0))
            building.set()
            time.sleep(0.2)

    world, codec, building = World(), text_codec(), threading.Event()

    async def consume() -> None:
        async for _ in collected(
            lambda: Slow(world), ScriptedEngine(codec, say_turn), codec, episodes=4, concurrency=2
        ):
            pass

    for builds in (1, 2):  # the first one, which determines the maximum, and a worker's own
        task, before = asyncio.create_task(consume()), world.built
        while world.built < before + builds:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.open_envs == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_collect_cancelled_closes_the_environment_of_a_running_step() -> None:
    class Slow(ReplayEnv):
        def on_turn(self, response_text: str) -> Turn:
            stepping.set()
            time.sleep(0.2)
            return super().on_turn(response_text)

    world, codec, stepping = World(), text_codec(), threading.Event()

    async def consume() -> None:
        async for _ in collected(
            lambda: Slow(world, FaultPlan(0.0)), ScriptedEngine(codec, say_turn), codec, episodes=2
        ):
            pass

    task = asyncio.create_task(consume())
    while not stepping.is_set():
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.open_envs == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"episodes": 5, "group_size": 2}, "multiple of group_size"),
        ({"episodes": 4, "concurrency": 0}, "concurrency"),
        ({"episodes": 4, "tasks": [{}]}, "as many tasks"),
        ({"episodes": 4, "env_kwargs": {"x": 1}}, "env_kwargs"),
    ],
)
async def test_collect_refuses_numbers_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        await gather(World(), **options)


async def test_collect_suggests_the_nearest_environment() -> None:
    with pytest.raises(UnknownNameError, match=r"geo3k-v0"):
        await gather(World(), env="geo3k-v00", episodes=1)


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
