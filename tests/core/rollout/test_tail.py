"""The long tail of a batch: exact batches, nothing lost, nothing twice, and what it did is told."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.codecs import text_codec
from fakes.command import run_envkit
from fakes.faults import ReplayEnv, World, say_turn
from fakes.prompt_player import PromptPlayer
from fakes.tails import Engine, batch
from fakes.trajectories import build
from hypothesis import given
from hypothesis import strategies as st

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
    Stale,
    Stragglers,
    Tail,
    collect,
    delivered,
)
from envkit.rollout.plan import Played, Progress
from envkit.rollout.run_folder import RunFolder
from envkit.rollout.tail import ParkedGroup, is_aborted, marked
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
        batch(Engine(), tail, groups=8, size=size), timeout=120
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


# ---- the numbers of a tail: how many groups a batch starts, and how many complete it


def test_tail_without_settings_plays_every_group_to_its_end() -> None:
    tail = Tail()
    assert (tail.oversample, tail.stop_at, tail.max_staleness) == (1, 1, None)
    assert (tail.then, tail.stale, tail.cuts) == (Stragglers.WAIT, Stale.MASK, False)
    assert (tail.started(7), tail.needed(7)) == (7, 7)


@pytest.mark.parametrize("then", Stragglers)
def test_tail_cuts_stragglers_unless_it_waits(then: Stragglers) -> None:
    assert Tail(then=then).cuts is (then is not Stragglers.WAIT)


def test_tail_refuses_what_makes_no_batch() -> None:
    for wrong, text in (
        ({"oversample": 0.999, "then": "drop"}, "at least 1"),
        ({"stop_at": 0, "then": "drop"}, "above 0"),
        ({"stop_at": 1.001, "then": "park"}, "at most 1"),
        ({"oversample": 1.001}, "waits for every group"),
        ({"stop_at": 0.999}, "waits for every group"),
        ({"then": "forget"}, "one of"),
        ({"oversampling": 2}, "oversample"),
        ({"max_staleness": -1}, "at least 0"),
        ({"stale": "keep"}, "one of"),
        ({"oversample": float("nan"), "then": "drop"}, "finite"),
        ({"oversample": float("inf"), "then": "drop"}, "finite"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            RolloutConfig.from_mapping({"tail": wrong})


@pytest.mark.parametrize(
    "right",
    [
        {"oversample": 1, "stop_at": 1},
        {"oversample": 1, "stop_at": 1, "then": "drop"},
        {"oversample": 1.5, "then": "park"},
        {"stop_at": 0.001, "then": "drop"},
        {"max_staleness": 0},
        {"max_staleness": 1},
    ],
    ids=str,
)
def test_tail_accepts_numbers_at_their_limits(right: dict[str, Any]) -> None:
    config = RolloutConfig.from_mapping({"tail": right})
    assert RolloutConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize(
    ("groups", "oversample", "started"),
    [
        (10, 1.1, 11),
        (100, 1.1, 110),
        (10, 1.0, 10),
        (10, 1.11, 12),
        (3, 1.1, 4),
        (1, 1.0, 1),
        (1000, 1.001, 1001),
    ],
)
def test_tail_starts_the_exact_multiple_of_its_groups(
    groups: int, oversample: float, started: int
) -> None:
    assert Tail(oversample=oversample, then=Stragglers.DROP).started(groups) == started


@pytest.mark.parametrize(
    ("groups", "stop_at", "needed"),
    [(10, 0.7, 7), (100, 0.07, 7), (10, 0.71, 8), (10, 1.0, 10), (1, 0.5, 1), (1, 1e-12, 1)],
)
def test_tail_needs_the_exact_share_of_its_groups_and_at_least_one(
    groups: int, stop_at: float, needed: int
) -> None:
    assert Tail(stop_at=stop_at, then=Stragglers.DROP).needed(groups) == needed


@given(
    groups=st.integers(1, 1000),
    percent=st.integers(100, 400) | at_limit(110, least=100),
    share=st.integers(1, 100) | at_limit(100, least=1).filter(lambda share: share <= 100),
)
def test_tail_rounds_up_what_decimal_numbers_give(groups: int, percent: int, share: int) -> None:
    tail = Tail(oversample=percent / 100, stop_at=share / 100, then=Stragglers.DROP)
    assert 1 <= tail.needed(groups) <= groups <= tail.started(groups)
    assert tail.started(groups) == -(-Fraction(groups * percent, 100) // 1)
    assert tail.needed(groups) == -(-Fraction(groups * share, 100) // 1)


def test_parked_group_is_complete_once_no_member_is_missing_or_aborted() -> None:
    done, cut = (build(()),), (build((), stop_reason=StopReason.ABORTED),)
    assert (is_aborted(done), is_aborted(cut), is_aborted((*done, *cut))) == (False, True, True)
    for members, is_complete in (
        ({}, False),
        ({0: done}, False),
        ({0: done, 1: cut}, False),
        ({0: done, 1: (*done, *cut)}, False),
        ({0: done, 1: done}, True),
    ):
        group = ParkedGroup(
            group_id="g", seed=1, task=None, initial_observation_hash=None, members=members, times=1
        )
        assert group.is_complete(2) is is_complete


def test_marked_record_keeps_its_metadata() -> None:
    trajectory = build((), metadata={"a": 1, "b": 1})
    assert marked(trajectory, {"b": 2, "c": 3}).metadata == {"a": 1, "b": 2, "c": 3}
    assert trajectory.metadata == {"a": 1, "b": 1}


def test_trainer_with_a_tail_gets_an_error_with_the_alternative() -> None:
    with pytest.raises(ConfigurationError, match="use --partial"):
        RolloutConfig.for_trainer({"tail": {"then": "park"}}, tail="--partial")
    with pytest.raises(ConfigurationError, match="use --partial"):
        RolloutConfig.for_trainer(RolloutConfig(tail=Tail(then=Stragglers.DROP)), tail="--partial")
    assert RolloutConfig.for_trainer(None, tail="--partial") == RolloutConfig()


def test_settings_take_the_value_of_a_choice() -> None:
    config = RolloutConfig(on_fault="retry", tail=Tail(then="park", stale="drop"))  # pyright: ignore[reportArgumentType]  # a user's text
    assert (config.on_fault, config.tail.then, config.tail.stale) == (
        FaultPolicy.RETRY, Stragglers.PARK, Stale.DROP,
    )  # fmt: skip
    assert all(isinstance(one, StrEnum) for one in (config.on_fault, config.tail.then))
    assert RolloutConfig.from_mapping(config.to_mapping()) == config


# ---- what a run keeps of the groups that its tail stopped


async def batch_of_one(
    ends: dict[tuple[int, int], StopReason],
    then: Stragglers,
    *,
    state: RolloutState | None = None,
    **settings: Any,
) -> tuple[list[Trajectory], RolloutState, PromptPlayer]:
    """Play a batch of one group of two out of two started groups.

    Args:
        ends: How an episode that the tail stops ends, by group and member; all others end well
            once these have started.
        then: What happens to the stopped groups.
        state: Of an earlier batch.
    """

    waiting, are_running = set(ends), asyncio.Event()

    async def ending(group: int, member: int, interrupt: Interrupt) -> StopReason:
        if (group, member) not in ends:
            await are_running.wait()
            return StopReason.TERMINATED
        waiting.discard((group, member))
        if not waiting:
            are_running.set()
        await interrupt.fired()
        return ends[group, member]

    config = RolloutConfig(tail=Tail(oversample=2, then=then), **settings)
    player, state = PromptPlayer(config, ending), state or RolloutState()
    plan = RunPlan(episodes=2, group_size=2, concurrency=4)
    run: Any = Run(lambda: pytest.fail("no environment is needed"), player, plan, state=state)
    return [one async for one in delivered(run)], state, player


def faults_of(trajectories: Any) -> list[bool]:
    return [one.is_faulted for one in trajectories]


STOPPED = {(1, 0): StopReason.ENV_FAULT, (1, 1): StopReason.ABORTED}


async def test_faulted_straggler_is_not_kept_in_a_dropped_group() -> None:
    kept, state, _ = await batch_of_one(STOPPED, Stragglers.DROP)
    assert [one.metadata["group"] for one in kept] == [0, 0]
    assert [(one.metadata["member"], one.stop_reason) for one in state.cut] == [
        (1, StopReason.ABORTED)
    ]


async def test_faulted_straggler_of_a_parked_group_starts_over() -> None:
    _, state, _ = await batch_of_one(STOPPED, Stragglers.PARK)
    (parked,) = state.parked
    assert set(parked.members) == {1}
    assert parked.times == 1
    again, state, player = await batch_of_one(
        {(1, 0): StopReason.ABORTED}, Stragglers.PARK, state=state
    )
    assert faults_of(again) == [False, False]
    assert {one.group_id for one in again} == {parked.group_id}
    assert all(one.metadata[TIMES_PARKED] == 1 for one in again)
    assert [one.metadata["member"] for one in player.resumed] == [1]
    assert (0, 0) in {(one.metadata["group"], one.metadata["member"]) for one in player.played}


async def test_straggler_that_still_ended_well_is_kept() -> None:
    ends = {(1, 0): StopReason.TERMINATED, (1, 1): StopReason.MAX_TURNS}
    kept, state, _ = await batch_of_one(ends, Stragglers.DROP)
    assert [one.metadata["group"] for one in kept] == [0, 0]
    assert {one.stop_reason for one in state.cut} == set(ends.values())
    assert not any(TAIL in one.metadata for one in kept)


@pytest.mark.parametrize("policy", FaultPolicy)
async def test_faulted_straggler_changes_no_count_of_the_batch(policy: FaultPolicy) -> None:
    kept, state, player = await batch_of_one(STOPPED, Stragglers.DROP, on_fault=policy)
    assert len(kept) == state.finished == state.total == 2
    assert (state.faulted, state.dropped, state.in_flight) == (0, [], 0)
    assert len({spec.episode_id for spec in player.played}) == len(player.played)


async def test_faulted_episode_is_played_again_under_another_id() -> None:
    """A new id makes new step keys: the first attempt's steps are never repeated."""
    tried: list[int] = []

    async def ending(group: int, member: int, interrupt: Interrupt) -> StopReason:
        tried.append(group)
        return StopReason.ENV_FAULT if len(tried) == 1 else StopReason.TERMINATED

    player = PromptPlayer(RolloutConfig(on_fault=FaultPolicy.RETRY), ending)
    run: Any = Run(lambda: pytest.fail("no environment is needed"), player, RunPlan(episodes=1))
    (found,) = [one async for one in delivered(run)]
    first, second = player.played
    assert found.episode_id == second.episode_id != first.episode_id
    assert (first.seed, first.group_id, first.member) == (
        second.seed, second.group_id, second.member,
    )  # fmt: skip
