"""The long tail of a batch: exact batches, nothing lost, nothing twice, and what it did is told."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.codecs import text_codec
from fakes.command import run_envkit
from fakes.faults import ReplayEnv, World, say_turn
from fakes.tails import Engine, batch

from envkit.errors import ConfigurationError
from envkit.faults import FaultPlan
from envkit.metrics import aggregate
from envkit.rollout import (
    FaultPolicy,
    Interrupt,
    Player,
    RolloutConfig,
    RolloutState,
    Run,
    RunPlan,
    ScriptedEngine,
    Stragglers,
    Tail,
    collect,
    delivered,
)
from envkit.rollout.plan import Played, Progress
from envkit.rollout.run_folder import RunFolder
from envkit.rollout.tail import ParkedGroup, marked
from envkit.trajectory import StopReason, Trajectory, load, save, verify_file
from envkit.trajectory.trajectory import TAIL, TIMES_PARKED
from envkit_exchange import Selection, TrajectoryFormat, export_trajectories


def ids_of(trajectory: Trajectory) -> list[int]:
    """The whole ledger."""
    return [token for segment in trajectory.segments for token in segment.train_ids]


@pytest.mark.parametrize("size", [1, 4])
async def test_drop_completes_the_batch_without_its_stragglers(size: int) -> None:
    tail = Tail(oversample=2, then=Stragglers.DROP)
    played, state, world = await asyncio.wait_for(
        batch(Engine(), tail, groups=8, size=size), timeout=20
    )
    assert set(Counter(one.group_id for one in played).values()) == {size}
    assert len(played) == 8 * size == state.finished == state.total
    assert all(one.stop_reason is StopReason.TERMINATED for one in played)
    kept = {one.episode_id for one in played}
    assert state.cut
    assert not kept & {one.episode_id for one in state.cut}
    for _ in range(100):  # a cut call closes its environment when it returns
        if world.open_envs:
            await asyncio.sleep(0.05)
    assert (state.dropped, state.parked, state.in_flight, world.open_envs) == ([], [], 0, 0)


@pytest.mark.parametrize("size", [1, 4])
async def test_park_continues_its_stragglers_in_the_next_batch(size: int) -> None:
    engine, state = Engine(), RolloutState()
    tail = Tail(oversample=1.5, then=Stragglers.PARK)
    first, _, _ = await batch(engine, tail, groups=8, size=size, state=state)
    parked = {group.group_id: group for group in state.parked}
    aborted = {
        one.episode_id: one
        for group in state.parked
        for played in group.members.values()
        for one in played
        if one.stop_reason is StopReason.ABORTED
    }
    assert aborted
    assert any(one.turns for one in aborted.values())
    engine.version, engine.is_quick = 1, True
    second, _, _ = await batch(engine, tail, groups=8, size=size, state=state, seed=1)
    assert len(first) == len(second) == 8 * size
    assert {one.group_id for one in second} >= parked.keys()
    assert not {one.episode_id for one in first} & {one.episode_id for one in second}
    mixed = 0
    for one in second:
        earlier = aborted.get(one.episode_id)
        assert (TIMES_PARKED in one.metadata) == (one.group_id in parked)
        if earlier is not None:
            assert ids_of(one)[: len(ids_of(earlier))] == ids_of(earlier)
            versions = [s.weight_version for s in one.segments if s.weight_version is not None]
            assert versions == sorted(versions)
            mixed += set(versions) == {"0", "1"}
    assert mixed


async def test_park_delivers_every_group_once_over_many_batches() -> None:
    engine, state = Engine(), RolloutState()
    tail = Tail(oversample=1.6, then=Stragglers.PARK)
    seen: list[Trajectory] = []
    for number in range(6):
        engine.is_quick = number % 2 == 1
        played, _, _ = await batch(engine, tail, groups=5, size=2, state=state, seed=number)
        assert set(Counter(one.group_id for one in played).values()) == {2}
        assert len(played) == 10
        seen += played
    assert len({one.episode_id for one in seen}) == len(seen) == 60
    assert all(one.stop_reason is StopReason.TERMINATED for one in seen)
    places = [(one.group_id, one.metadata["member"]) for one in seen]
    assert len(set(places)) == len(places)
    for one in seen:
        assert len(one.turns[-1].info["history"]) == 3  # no step was lost or applied twice


async def test_stop_at_completes_the_batch_with_a_share_of_its_groups() -> None:
    tail = Tail(stop_at=0.5, then=Stragglers.DROP)
    played, state, _ = await batch(Engine(), tail, groups=8)
    assert len(played) == state.total == 4


async def test_group_that_completes_too_late_is_parked_whole_and_delivered_first() -> None:
    state = RolloutState()
    engine = ScriptedEngine(text_codec(), say_turn)  # all groups end in the same iterations
    tail = Tail(oversample=4, then=Stragglers.PARK)
    first, _, _ = await batch(engine, tail, groups=2, size=2, state=state)
    whole = [group for group in state.parked if group.is_complete(2)]
    second, _, _ = await batch(engine, tail, groups=2, size=2, state=state, seed=1)
    assert len(first) == len(second) == 4
    if len(whole) >= 2:
        assert {one.group_id for one in second} <= {group.group_id for group in whole}


async def test_dropped_group_with_a_fault_does_not_count_for_the_batch() -> None:
    world = World()
    plan = FaultPlan(0.12, kinds=("permanent",), seed=1)
    state = RolloutState()
    config = RolloutConfig(
        tail=Tail(oversample=10, then=Stragglers.DROP), on_fault=FaultPolicy.DROP_GROUP
    )
    found = collect(
        lambda: ReplayEnv(world, plan), ScriptedEngine(text_codec(), say_turn), text_codec(),
        episodes=12, group_size=2, concurrency=4, config=config, state=state,
    )  # fmt: skip
    played = [one async for one in found]
    assert len(played) == 12
    assert not any(one.is_faulted for one in played)
    assert any(one.is_faulted for one in state.dropped)


async def test_group_that_was_delivered_is_not_parked_any_more_when_the_run_fails() -> None:
    state, tail = RolloutState(), Tail(oversample=4, then=Stragglers.PARK)
    played, _, _ = await batch(ScriptedEngine(text_codec(), say_turn), Tail(), groups=3, seed=5)
    # Whether a batch parks a group that is complete depends on the event loop's order.
    state.parked += [
        ParkedGroup(
            group_id=str(one.group_id), seed=one.seed or 0, task=None,
            initial_observation_hash=None, members={0: (one,)}, times=1,
        )
        for one in played
    ]  # fmt: skip
    whole = {group.group_id for group in state.parked}
    seen: list[str | None] = []

    class Broken(ScriptedEngine):
        async def check(self, codec: object, sampling: object) -> None:
            raise ConfigurationError("a server of another model")

    with pytest.raises(ConfigurationError, match="another model"):
        await noted(seen, Broken(text_codec(), say_turn), groups=100, tail=tail, state=state)
    assert whole <= set(seen)
    assert not set(seen) & {group.group_id for group in state.parked}
    again, _, _ = await batch(
        ScriptedEngine(text_codec(), say_turn), tail, groups=2, state=state, seed=2
    )
    assert not set(seen) & {one.group_id for one in again}


async def noted(
    seen: list[str | None], engine: ScriptedEngine, *, groups: int, tail: Tail, state: RolloutState
) -> None:
    """Play a batch and note the group of each episode as it comes."""
    found = collect(
        lambda: ReplayEnv(World(), FaultPlan(0.0)), engine, text_codec(), episodes=groups,
        config=RolloutConfig(tail=tail, seed=1), state=state,
    )  # fmt: skip
    async for one in found:
        seen.append(one.group_id)


async def test_interrupted_run_keeps_its_stragglers_and_what_was_still_parked() -> None:
    engine, state = Engine(), RolloutState()
    tail = Tail(oversample=3, then=Stragglers.PARK)
    await batch(engine, tail, groups=6, state=state, concurrency=18)
    parked = {group.group_id for group in state.parked}
    assert len(parked) > 2
    interrupt, world = Interrupt(), World()
    player = Player(engine, text_codec(), RolloutConfig(tail=tail, seed=1))
    plan = RunPlan(episodes=6, concurrency=2)
    run = Run(
        lambda: ReplayEnv(world, FaultPlan(0.0)), player, plan, interrupt=interrupt, state=state
    )
    asyncio.get_running_loop().call_later(0.2, interrupt.fire)
    kept = [one async for one in delivered(run)]
    await player.aclose()
    left = {group.group_id for group in state.parked}
    assert parked <= left | {one.group_id for one in kept}
    assert not left & {one.group_id for one in kept}


async def test_run_folder_keeps_what_the_tail_has_cut_and_a_resumed_run_adds_nothing(
    tmp_path: Path,
) -> None:
    tail = Tail(oversample=2, then=Stragglers.DROP)

    async def part(folder: RunFolder) -> RolloutState:
        world = World()
        player = Player(Engine(), text_codec(), RolloutConfig(tail=tail))
        run = Run(
            lambda: ReplayEnv(world, FaultPlan(0.0)), player, RunPlan(episodes=8),
            progress=folder.progress,
        )  # fmt: skip

        async def deliver(played: Played) -> None:
            await folder.deliver(played)

        with folder:
            await run.play(deliver)
        await player.aclose()
        return run.state

    await part(RunFolder.create(tmp_path / "run", {"group_size": 1}))
    stored = load(tmp_path / "run")
    cut = [one for one in stored if TAIL in one.metadata]
    assert len(stored) - len(cut) == 8
    assert cut
    assert verify_file(tmp_path / "run").is_sound
    state = await part(RunFolder.resume(tmp_path / "run"))
    assert (state.finished, state.in_flight) == (8, 0)
    assert len(load(tmp_path / "run")) == 8 + sum(one.reward is not None for one in cut)


async def test_resumed_run_completes_its_batch() -> None:
    tail = Tail(oversample=2, then=Stragglers.DROP)
    world = World()
    player = Player(Engine(), text_codec(), RolloutConfig(tail=tail))
    run = Run(
        lambda: ReplayEnv(world, FaultPlan(0.0)), player, RunPlan(episodes=8),
        progress=Progress(delivered=frozenset({0, 1, 2})),
    )  # fmt: skip
    kept = [one async for one in delivered(run)]
    await player.aclose()
    assert len(kept) == 5


@pytest.mark.slow
def test_command_reports_what_the_tail_cut(tmp_path: Path) -> None:
    done = run_envkit(
        "rollout", "canary-v0", "--policy", "oracle", "-n", "8", "--out", str(tmp_path / "run"),
        "--set", "tail.oversample=2", "--set", "tail.then=drop", "--concurrency", "16",
    )  # fmt: skip
    assert done.code == 0
    stored = load(tmp_path / "run")
    assert len([one for one in stored if TAIL not in one.metadata]) == 8
    assert "faulted" not in done.err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_bytes())
    assert metrics["episodes"] == 8
    assert metrics.get("tail/cut", 0) == len(stored) - 8


async def test_metrics_compare_parked_episodes_with_others() -> None:
    engine, state = Engine(), RolloutState()
    tail = Tail(oversample=1.5, then=Stragglers.PARK)
    first, _, _ = await batch(engine, tail, groups=8, state=state)
    engine.is_quick = True
    second, _, _ = await batch(engine, tail, groups=8, state=state, seed=1)
    metrics = aggregate([*first, *second])
    resumed = [one for one in second if TIMES_PARKED in one.metadata]
    assert metrics["tail/resumed"] == len(resumed) > 0
    assert metrics["tail/resumed_reward_gap"] == pytest.approx(0.0)
    assert metrics["episodes"] == 16
    cut = [replace(one, metadata={TAIL: "drop"}) for one in first]
    metrics = aggregate([*cut, *second])
    assert (metrics["episodes"], metrics["tail/cut"]) == (8, 8)


async def test_export_excludes_what_the_tail_cut(tmp_path: Path) -> None:
    tail = Tail(oversample=2, then=Stragglers.DROP)
    played, state, _ = await batch(Engine(), tail, groups=4)
    cut = [marked(one, {TAIL: tail.then.value}) for one in state.cut]
    assert any(one.turns for one in cut)
    save([*played, *cut], tmp_path / "trajectories.jsonl")
    out = tmp_path / "rows.jsonl"
    tally = export_trajectories(
        tmp_path / "trajectories.jsonl", out, TrajectoryFormat.SFT, Selection()
    )
    assert (tally.trajectories, sum(tally.left_out.values())) == (4, len(cut))


async def test_run_refuses_fewer_tasks_than_its_tail_may_start() -> None:
    tail = Tail(oversample=2, then=Stragglers.DROP)
    player = Player(Engine(), text_codec(), RolloutConfig(tail=tail))
    with pytest.raises(ConfigurationError, match="4 new groups need as many tasks, got 2"):
        Run("canary-v0", player, RunPlan(episodes=2, tasks=[None, None]))
