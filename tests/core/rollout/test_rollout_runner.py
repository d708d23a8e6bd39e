"""Many episodes: groups, concurrency, stopping, and what must not leak."""

import asyncio
import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, FaultyEngine, ReplayEnv, World, say_turn
from fakes.hostile_runs import no_file_longer_than
from fakes.playing import collected

from envkit.env import Capabilities, Turn
from envkit.errors import ConfigurationError, StorageError
from envkit.faults import FaultPlan
from envkit.rollout import (
    Engine,
    FaultPolicy,
    GenerateRequest,
    Interrupt,
    Player,
    Progress,
    RetryBudget,
    RolloutConfig,
    RolloutState,
    Run,
    RunPlan,
    ScriptedEngine,
)
from envkit.rollout.plan import Played
from envkit.rollout.run_folder import RunFolder
from envkit.tasks import Task
from envkit.trajectory import StopReason, Trajectory, load, save, verify_file


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
        ({"episodes": 5, "group_size": 2}, "multiple of the group size"),
        ({"episodes": 4, "concurrency": 0}, "concurrency"),
        ({"episodes": 4, "tasks": [{}]}, "as many tasks"),
        ({"episodes": 4, "env_kwargs": {"x": 1}}, "env_kwargs"),
    ],
)
async def test_collect_refuses_numbers_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        await gather(World(), **options)


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


# ---- delivery of a run: bounded, complete when it is stopped, resumable


Deliver = Callable[[Played], Awaitable[None]]


def run_of(
    engine: Engine, *, episodes: int, concurrency: int, group_size: int = 1, **more: Any
) -> tuple[Run, Player]:
    world = World()
    player = Player(engine, text_codec(), RolloutConfig())
    plan = RunPlan(episodes=episodes, concurrency=concurrency, group_size=group_size)
    return Run(lambda: ReplayEnv(world, FaultPlan(0.0)), player, plan, **more), player


async def play(run: Run, player: Player, deliver: Deliver) -> None:
    try:
        await run.play(deliver)
    finally:
        await player.aclose()


@pytest.mark.slow
async def test_delivery_holds_episodes_back_while_finished_ones_wait() -> None:
    kept: list[Trajectory] = []
    run, player = run_of(ScriptedEngine(text_codec(), say_turn), episodes=300, concurrency=300)

    async def slowly(played: Played) -> None:
        await asyncio.sleep(0.001)
        kept.extend(played)

    await play(run, player, slowly)
    assert len(kept) == 300
    assert run.state.most_undelivered <= 64
    assert run.state.undelivered == 0


async def test_cancelled_run_delivers_what_was_finished() -> None:
    started = asyncio.Event()
    kept: list[str] = []
    run, player = run_of(
        ScriptedEngine(text_codec(), say_turn, latency=lambda request: 0.01),
        episodes=64,
        concurrency=16,
    )

    async def slowly(played: Played) -> None:
        started.set()
        await asyncio.sleep(0.02)
        kept.extend(one.episode_id for one in played)

    playing = asyncio.create_task(play(run, player, slowly))
    await started.wait()
    await asyncio.sleep(0.05)
    playing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await playing
    assert run.state.finished == len(kept) == len(set(kept)) > 0
    assert run.undelivered == []


async def test_failed_delivery_stops_new_episodes_and_names_undelivered_ones() -> None:
    kept: list[Trajectory] = []
    run, player = run_of(ScriptedEngine(text_codec(), say_turn), episodes=400, concurrency=8)

    async def until_full(played: Played) -> None:
        if len(kept) >= 20:
            raise StorageError("the disk is full")
        kept.extend(played)

    with pytest.raises(StorageError, match="disk is full"):
        await play(run, player, until_full)
    left = [one for played in run.undelivered for one in played]
    assert len(kept) == 20
    assert 0 < len(left) <= 8
    assert run.state.finished == len(kept) + len(left)


@pytest.mark.parametrize("group_size", [1, 4])
async def test_run_folder_completes_an_interrupted_run(tmp_path: Path, group_size: int) -> None:
    settings = {"group_size": group_size}
    interrupt = Interrupt()
    sessions: list[str | None] = []

    def latency(request: GenerateRequest) -> float:
        """Keep one episode unfinished until the run is stopped."""
        if request.session_id not in sessions:
            sessions.append(request.session_id)
        is_held = request.session_id == sessions[0] and interrupt.reason is None
        assert request.context is not None
        return 60.0 if is_held and request.context.turn else 0.005

    engine = ScriptedEngine(text_codec(), say_turn, latency=latency)

    async def part(folder: RunFolder, stop_at: int | None) -> None:
        run, player = run_of(
            engine, episodes=24, concurrency=6, group_size=group_size,
            interrupt=interrupt if stop_at else None, progress=folder.progress,
        )  # fmt: skip
        count = 0

        async def deliver(played: Played) -> None:
            nonlocal count
            await folder.deliver(played)
            count += 1
            if count == stop_at:
                interrupt.fire()

        with folder:
            await play(run, player, deliver)

    await part(RunFolder.create(tmp_path / "run", settings), 7)
    first = {one.episode_id: one for one in load(tmp_path / "run")}
    aborted = [n for n, one in first.items() if one.stop_reason is StopReason.ABORTED]
    assert aborted
    folder = RunFolder.resume(tmp_path / "run", settings)
    assert len(folder.progress.delivered) == len(first) - len(aborted)
    await part(folder, None)
    whole = load(tmp_path / "run")
    places = [(one.metadata["group"], one.metadata["member"]) for one in whole]
    assert len(set(places)) == len(whole) == 24
    assert all(one.stop_reason is StopReason.TERMINATED for one in whole)
    assert first.keys() <= {one.episode_id for one in whole}  # the unfinished were continued
    assert verify_file(tmp_path / "run").is_sound


async def test_run_starts_an_unfinished_episode_again_that_cannot_be_resumed() -> None:
    world, interrupt, asked = World(), Interrupt(), list[str]()
    plan = RunPlan(episodes=4, concurrency=4)

    def latency(request: GenerateRequest) -> float:
        asked.append(request.request_id)
        if len(asked) == 6:  # then an episode has had a turn, and none has ended
            interrupt.fire()
        return 0.02

    engine = ScriptedEngine(text_codec(), say_turn, latency=latency)

    async def play_on(interrupt: Interrupt | None, progress: Progress) -> list[Trajectory]:
        player = Player(engine, text_codec())
        kept: list[Trajectory] = []

        async def take(played: Played) -> None:
            kept.extend(played)

        env = lambda: CountingEnv(world, FaultPlan(0.0))  # noqa: E731  # neither replay nor snapshot
        await play(Run(env, player, plan, interrupt=interrupt, progress=progress), player, take)
        return kept

    first = await play_on(interrupt, Progress())
    assert {one.stop_reason for one in first} == {StopReason.ABORTED}
    assert any(one.turns for one in first)
    unfinished = {one.metadata["group"]: one for one in first}
    second = await play_on(None, Progress(unfinished=unfinished))
    assert [one.stop_reason for one in second] == [StopReason.TERMINATED] * 4
    assert all(one.fault is None for one in second)


async def test_run_folder_stores_a_fault_for_a_record_that_cannot_be_stored(
    tmp_path: Path,
) -> None:
    run, player = run_of(ScriptedEngine(text_codec(), say_turn), episodes=1, concurrency=1)
    played: list[Trajectory] = []

    async def take(one: Played) -> None:
        played.extend(one)

    await play(run, player, take)
    loop: list[Any] = []
    loop.append(loop)
    object.__setattr__(played[0], "metadata", {**played[0].metadata, "loop": loop})
    with RunFolder.create(tmp_path / "run", {"group_size": 1}) as folder:
        (stored,) = await folder.deliver(tuple(played))
    assert stored.stop_reason is StopReason.LEDGER_FAULT
    assert stored.trained_token_count == 0
    (read,) = load(tmp_path / "run")
    assert (read.episode_id, read.reward) == (played[0].episode_id, None)
    assert verify_file(tmp_path / "run").is_sound


async def test_run_folder_stores_what_fits_of_episodes_that_share_a_write(tmp_path: Path) -> None:
    run, player = run_of(ScriptedEngine(text_codec(), say_turn), episodes=8, concurrency=1)
    played: list[Played] = []

    async def take(one: Played) -> None:
        played.append(one)

    await play(run, player, take)
    save([one for episode in played[:3] for one in episode], tmp_path / "three.jsonl")
    room = (tmp_path / "three.jsonl").stat().st_size
    others_wait = threading.Event()

    def hold(*_: object) -> None:
        others_wait.wait(120)

    with RunFolder.create(tmp_path / "run", {"group_size": 1}) as folder:
        first = asyncio.create_task(folder.deliver(played[0], then=hold))
        others = [asyncio.create_task(folder.deliver(one)) for one in played[1:]]
        await asyncio.sleep(0)
        with no_file_longer_than(room):
            others_wait.set()
            outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    refused = [isinstance(one, StorageError) for one in outcomes]
    stored = [one.episode_id for one in load(tmp_path / "run")]
    assert stored == [
        one[0].episode_id for one, is_refused in zip(played, refused, strict=True) if not is_refused
    ]
    assert 1 < len(stored) < 8


async def test_run_folder_refuses_other_settings_and_a_second_writer(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, {"group_size": 1, "seed": 0}):
        before = {file: file.read_bytes() for file in path.iterdir()}
        with pytest.raises(StorageError, match="another writer"):
            RunFolder.resume(path)
        with pytest.raises(StorageError, match="already holds a run"):
            RunFolder.create(path, {"group_size": 1, "seed": 0})
    with pytest.raises(ConfigurationError, match="seed is 0, got 1"):
        RunFolder.resume(path, {"group_size": 1, "seed": 1})
    assert {file: file.read_bytes() for file in path.iterdir()} == before
