"""A machine with room for few environments: the others wait, and no episode is lost for it."""

import asyncio
import errno
import os
import resource
import threading
from collections.abc import Callable, Generator
from typing import Any, ClassVar

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, ReplayEnv, World, say_turn
from fakes.playing import collected

from envkit.env import Capabilities, Reset, Step
from envkit.errors import EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import (
    Backoff,
    Interrupt,
    RetryBudget,
    RolloutState,
    ScriptedEngine,
)
from envkit.rollout.host import EnvHost
from envkit.rollout.sessions import Sessions, shortage_in
from envkit.rollout.sources import EnvPool
from envkit.threads.pool import WorkerPool
from envkit.trajectory import StopReason, Trajectory

ROOM = 3
NO_RETRIES = RetryBudget(
    max_env_retries_per_turn=0,
    max_env_retries_per_episode=0,
    max_episode_restarts=0,
    backoff=Backoff(initial_s=0.001, maximum_s=0.002),
)


def no_process() -> Exception:
    return BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def no_descriptor() -> Exception:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def no_thread() -> Exception:
    return RuntimeError("can't start new thread")


def told_by_a_program() -> Exception:
    text = f"bwrap: Can't fork: {os.strerror(errno.EAGAIN)}"
    return EnvFault(f"the sandbox ended at once: {text}", kind=FaultKind.CRASHED)


class Machine:
    """Counts the environments that hold something of the machine."""

    def __init__(self, refusal: Callable[[], Exception], room: int = ROOM) -> None:
        self.refusal, self.room = refusal, room
        self.used, self.most, self.refused = 0, 0, 0
        self._lock = threading.Lock()

    def take(self) -> None:
        with self._lock:
            if self.used >= self.room:
                self.refused += 1
                raise self.refusal()
            self.used += 1
            self.most = max(self.most, self.used)

    def give(self) -> None:
        with self._lock:
            self.used -= 1


class CrowdedEnv(ReplayEnv):
    """Takes one thing of the machine per episode, at the reset or at the second step."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, thread_safe=True)

    def __init__(self, world: World, machine: Machine, at: str) -> None:
        super().__init__(world, FaultPlan(0.0))
        self._machine, self._at, self._held, self._steps = machine, at, False, 0

    def reset(self, **options: Any) -> Reset:
        self._free()
        self._steps = 0
        if self._at == "reset":
            self._grab()
        return super().reset(**options)

    def step(self, action: str) -> Step:
        self._steps += 1
        if self._at == "step" and self._steps == 2:
            self._grab()
        step = super().step(action)
        if step.terminated:
            self._free()
        return step

    def close(self) -> None:
        self._free()
        super().close()

    def _grab(self) -> None:
        self._machine.take()
        self._held = True

    def _free(self) -> None:
        if self._held:
            self._machine.give()
            self._held = False


async def play_all(
    make: Callable[[], CountingEnv], *, episodes: int = 24, **options: Any
) -> list[Trajectory]:
    codec = text_codec()
    options = {"concurrency": 12, "retries": NO_RETRIES, **options}
    engine = ScriptedEngine(codec, say_turn)
    playing = collected(make, engine, codec, episodes=episodes, **options)
    return [trajectory async for trajectory in playing]


@pytest.mark.parametrize("refusal", [no_process, no_descriptor, no_thread, told_by_a_program])
@pytest.mark.parametrize("at", ["reset", "step"])
async def test_episodes_wait_for_room_and_the_shortage_is_said_once(
    at: str, refusal: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    machine, world, state = Machine(refusal), World(), RolloutState()
    played = await play_all(lambda: CrowdedEnv(world, machine, at), state=state)
    assert machine.refused > 0
    assert {one.stop_reason for one in played} == {StopReason.TERMINATED}
    assert {one.reward for one in played} == {1.0}
    assert all(not turn.env_retries for one in played for turn in one.turns)
    assert len({one.episode_id for one in played}) == 24
    assert max(world.steps.values()) == 1
    assert machine.used == world.open_envs == 0
    assert len([one for one in caplog.records if "wait for others" in one.message]) == 1


async def test_shortage_without_others_to_wait_for_is_paid_from_the_budget() -> None:
    machine = Machine(no_process, room=0)
    played = await play_all(lambda: CrowdedEnv(World(), machine, "reset"), episodes=6)
    assert {one.stop_reason for one in played} == {StopReason.ENV_FAULT}
    assert {one.reward for one in played} == {None}


class DescriptorEnv(CountingEnv):
    """Holds twenty real descriptors."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)
    _held: tuple[int, ...] = ()

    def reset(self, **options: Any) -> Reset:
        self.release()
        for _ in range(20):
            self._held = (*self._held, os.dup(0))
        return super().reset(**options)

    def release(self) -> None:
        held, self._held = self._held, ()
        for number in held:
            os.close(number)

    def close(self) -> None:
        self.release()
        super().close()


@pytest.fixture
def few_descriptors() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = os.dup(0)
    os.close(opened)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 90, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
async def test_run_within_few_descriptors_loses_no_episode() -> None:
    world = World()
    played = await play_all(lambda: DescriptorEnv(world, FaultPlan(0.0)))
    assert {one.stop_reason for one in played} == {StopReason.TERMINATED}
    assert world.open_envs == 0


class ThreadEnv(CountingEnv):
    """Needs a thread of its own."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=False)


async def test_run_with_few_threads_loses_no_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    start, ours = threading.Thread.start, list[threading.Thread]()

    def start_if_few(thread: threading.Thread) -> None:
        ours[:] = [one for one in ours if one.is_alive()]
        if len(ours) >= 6:
            raise RuntimeError("can't start new thread")
        start(thread)
        ours.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_few)
    world = World()
    played = await play_all(
        lambda: ThreadEnv(world, FaultPlan(0.0)), concurrency=24, retries=RetryBudget()
    )
    assert {one.stop_reason for one in played} == {StopReason.TERMINATED}
    assert world.open_envs == 0


async def test_stop_ends_an_episode_that_waits_for_room() -> None:
    machine, interrupt = Machine(no_process, room=1), Interrupt()

    class Slow(CrowdedEnv):
        def step(self, action: str) -> Step:
            interrupt.fire()
            return super().step(action)

    played = await play_all(
        lambda: Slow(World(), machine, "reset"), episodes=8, concurrency=8, interrupt=interrupt
    )
    assert not any(one.reward == 0 for one in played)
    assert machine.used == 0


async def test_limit_grows_again_after_a_shortage_has_passed() -> None:
    sessions = Sessions([])
    for _ in range(4):
        await sessions.enter()
    assert await sessions.step_aside("no process")
    waiting = [asyncio.create_task(sessions.enter()) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(6):  # two rounds of three
        sessions.leave()
        await asyncio.sleep(0)
    assert sum(task.done() for task in waiting) == 7
    for task in waiting:
        task.cancel()


async def test_cancelled_wait_keeps_no_place() -> None:
    sessions = Sessions([])
    sessions.declared = 1
    await sessions.enter()
    waiting = [asyncio.create_task(sessions.enter()) for _ in range(2)]
    await asyncio.sleep(0)
    sessions.leave()
    waiting[0].cancel()
    await asyncio.sleep(0)
    await asyncio.wait_for(waiting[1], 120)
    assert waiting[0].cancelled()


def test_other_faults_are_no_shortage() -> None:
    assert shortage_in(EnvFault("connection refused", kind=FaultKind.TRANSIENT)) is None
    assert shortage_in(EnvFault(str(no_process()), kind=FaultKind.PERMANENT)) is None
    caused = EnvFault("the reset failed", kind=FaultKind.TRANSIENT)
    caused.__cause__ = no_descriptor()
    assert shortage_in(caused) == "Too many open files"


async def test_place_is_given_back_though_closing_an_environment_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cancelled(host: EnvHost) -> None:
        raise asyncio.CancelledError

    threads, world = WorkerPool(), World()
    pool = EnvPool(lambda: CountingEnv(world, FaultPlan(0.0)), threads, timeout_s=20)
    one, other = pool.lend(), pool.lend()
    await one.__aenter__()
    refused = await other.__aenter__()
    waiting = asyncio.create_task(
        refused.make_room(EnvFault(str(no_process()), kind=FaultKind.TRANSIENT))
    )
    await asyncio.sleep(0.05)
    with monkeypatch.context() as patch:
        patch.setattr(EnvHost, "close", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await one.__aexit__(None, None, None)
    assert await asyncio.wait_for(waiting, 120)
    await other.__aexit__(None, None, None)
    await pool.close()
    threads.close()
    assert world.open_envs == 0


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_pool_closes_few_environments_between_two_steps_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    closed: list[int] = []
    per_step: list[int] = []

    async def close(host: EnvHost) -> None:
        closed.append(id(host))

    async def count() -> None:
        while True:
            before = len(closed)
            await asyncio.sleep(0)
            per_step.append(len(closed) - before)

    threads, world = WorkerPool(), World()
    pool = EnvPool(lambda: CountingEnv(world, FaultPlan(0.0)), threads, timeout_s=20)
    lent = [pool.lend() for _ in range(100)]
    for one in lent:
        await one.__aenter__()
    for one in lent:
        await one.__aexit__(None, None, None)
    monkeypatch.setattr(EnvHost, "close", close)
    counting, closing = asyncio.create_task(count()), asyncio.create_task(pool.close())
    if is_cancelled:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    else:
        await closing
        assert max(per_step) <= 32
    counting.cancel()
    threads.close()
    assert len(set(closed)) == 100
