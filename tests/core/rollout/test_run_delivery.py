"""Delivery of a run: bounded, complete when it is stopped, resumable."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, ReplayEnv, World, say_turn
from fakes.hostile_runs import no_file_longer_than

from envkit.errors import ConfigurationError, StorageError
from envkit.faults import FaultPlan
from envkit.rollout import (
    Engine,
    GenerateRequest,
    Interrupt,
    Player,
    Progress,
    RolloutConfig,
    Run,
    RunPlan,
    ScriptedEngine,
)
from envkit.rollout.plan import Played
from envkit.rollout.run_folder import RunFolder
from envkit.trajectory import StopReason, Trajectory, load, save, verify_file

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

    def hold(_: Trajectory) -> None:
        others_wait.wait(10)

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
