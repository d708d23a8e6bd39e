"""Faults in a tree: they end one branch alone, and no token is lost or owned twice."""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.templates import make_codec
from fakes.trees import (
    ONE_RETRY,
    SavedSums,
    SlowSums,
    Sums,
    digit,
    drifts,
    fails,
    grow,
    make_player,
    nothing,
    outlasts,
    planned,
)
from fakes.virtual_time import skip
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import FaultKind, RunFailedError
from envkit.rollout import (
    AtTurns,
    Backoff,
    EpisodeSpec,
    GenerateRequest,
    Interrupt,
    Limits,
    Player,
    RetryBudget,
    ScriptedEngine,
    play_tree,
)
from envkit.trajectory import (
    FaultPlace,
    StopReason,
    Trajectory,
    check_trajectory,
    save,
    verify_file,
)

STEP_S = 60.0
"""A step that does not hang takes less on any machine."""


async def forked(
    env: Any, place: str, *calls: Any, is_retried: bool, **settings: Any
) -> Trajectory:
    """Fork once before turn 2, with calls of the environment planned; return the fork."""
    player = make_player(retries=ONE_RETRY, **settings) if is_retried else make_player(**settings)
    with planned(place, *calls):
        trunk, fork = await grow(env, player=player, branching=AtTurns(turns=(2,)))
    assert trunk.fault is None, trunk.fault
    assert fork.origin is not None
    assert fork.own_turns or fork.fault
    return fork


@pytest.mark.parametrize("kind", [FaultKind.TRANSIENT, FaultKind.TIMEOUT, FaultKind.CRASHED])
@pytest.mark.parametrize(
    ("env", "place"), [(Sums, "turn 1"), (Sums, "turn 0"), (Sums, "reset"), (SavedSums, "restore")]
)
async def test_infrastructure_fault_while_state_is_rebuilt_is_retried(
    env: type[Sums], place: str, kind: FaultKind
) -> None:
    first = () if place == "restore" else (nothing,)  # the trunk's own call
    fork = await forked(env, place, *first, fails(kind), is_retried=True)
    assert fork.fault is None, fork.fault
    assert fork.reward == sum(int(turn.response_text) for turn in fork.turns) / 10
    assert check_trajectory(fork) == ()


@pytest.mark.parametrize(("env", "place"), [(Sums, "turn 1"), (SavedSums, "restore")])
async def test_infrastructure_fault_beyond_the_budget_ends_the_fork_at_its_snapshot(
    env: type[Sums], place: str
) -> None:
    first = () if place == "restore" else (nothing,)
    trouble = fails(FaultKind.TRANSIENT)
    fork = await forked(env, place, *first, trouble, trouble, is_retried=True)
    assert fork.fault is not None
    assert (fork.fault.where, fork.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.TRANSIENT)
    assert fork.reward is None


@pytest.mark.parametrize("turn", [0, 1])
async def test_replay_that_differs_is_a_fault_that_names_the_turn(turn: int) -> None:
    fork = await forked(Sums, f"turn {turn}", nothing, drifts, is_retried=True)
    assert fork.fault is not None
    assert (fork.fault.where, fork.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.PERMANENT)
    assert f"at turn {turn}" in fork.fault.message
    assert fork.trained_token_count == 0


async def test_slow_replay_of_a_blamed_step_is_retried_and_never_truncates() -> None:
    budget = replace(ONE_RETRY, step_timeout_s=STEP_S)
    player = make_player(retries=budget)
    with planned("turn 1", nothing, outlasts(STEP_S)):
        _, fork = await grow(SlowSums, player=player, branching=AtTurns(turns=(2,)))
    assert fork.stop_reason is StopReason.TERMINATED, fork.fault
    with planned("turn 1", nothing, outlasts(STEP_S), outlasts(STEP_S)):
        player = make_player(retries=budget)
        _, fork = await grow(SlowSums, player=player, branching=AtTurns(turns=(2,)))
    assert fork.fault is not None
    assert (fork.fault.where, fork.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.TIMEOUT)
    assert "turn 1" in fork.fault.message
    assert fork.reward is None


async def test_slow_step_of_a_branch_ends_that_branch_alone() -> None:
    player = make_player(retries=replace(ONE_RETRY, step_timeout_s=STEP_S))
    with planned("turn 2", nothing, outlasts(STEP_S)):
        trunk, *forks = await grow(
            SlowSums(), player=player, branching=AtTurns(turns=(1,), width=3)
        )
    assert trunk.stop_reason is StopReason.TERMINATED
    assert [one.stop_reason for one in forks] == [StopReason.STEP_TIMEOUT, StopReason.TERMINATED]


async def test_snapshot_that_cannot_be_restored_faults_the_fork_alone() -> None:
    def breaks(_: Sums) -> None:
        raise KeyError("total")

    with planned("restore", breaks):
        trunk, first, second = await grow(SavedSums(), branching=AtTurns(turns=(1,), width=3))
    assert trunk.fault is None
    assert first.fault is not None
    assert (first.fault.where, first.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.PERMANENT)
    assert first.initial_observation_hash == trunk.initial_observation_hash
    assert second.fault is None


@pytest.mark.slow
async def test_deadline_holds_for_each_branch_and_ends_that_branch_alone() -> None:
    def latency(request: GenerateRequest) -> float:
        context = request.context
        assert context is not None
        if context.turn == 2:
            skip(45)
        is_hung = request.session_id.endswith(".2") and context.turn == 3
        if is_hung:
            skip(20)
        return 600.0 if is_hung else 0.0

    player = make_player(latency=latency, limits=Limits(episode_timeout_s=60))
    leaves = await grow(Sums(), player=player, branching=AtTurns(turns=(1,), width=4))
    assert [leaf.stop_reason for leaf in leaves] == [
        StopReason.TERMINATED,
        StopReason.TERMINATED,
        StopReason.ENGINE_FAULT,
        StopReason.TERMINATED,
    ]


async def test_engine_that_fails_in_one_branch_faults_that_leaf_alone() -> None:
    class Failing(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            if request.session_id == "tree.1.1":
                raise RuntimeError("no memory")
            return await super().generate(request)

    codec = make_codec("qwen3")
    player = Player(Failing(codec, digit), codec)
    leaves = await grow(player=player, branching=AtTurns(turns=(1,), width=3))
    assert [leaf.stop_reason for leaf in leaves] == [
        StopReason.TERMINATED,
        StopReason.ENGINE_FAULT,
        StopReason.TERMINATED,
    ]


PLACES = ("reset", "restore", "turn 0", "turn 1", "turn 2", "turn 3")
TROUBLES = (*[nothing] * 30, drifts, *map(fails, FaultKind))


class Campaign:
    """One tree, and everything that goes wrong in it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.interrupt = Interrupt(grace_s=0.01)
        self.delivered: list[Trajectory] = []
        self.growing: asyncio.Task[tuple[Trajectory, ...]] | None = None
        self.requests = 0
        self.ends_at = self.rng.randint(1, 40)
        self.end = self.rng.choice(["", "interrupt", "cancel"])

    async def run(self) -> tuple[Trajectory, ...] | None:
        """Play the tree; None if it was cancelled or found to be pointless."""
        rng = self.rng
        kind = rng.choice([Sums, SavedSums])
        retries = RetryBudget(
            max_env_retries_per_turn=rng.randint(0, 2), backoff=Backoff(initial_s=0.0)
        )
        player = make_player(retries=retries, latency=self.latency)
        self.growing = asyncio.ensure_future(
            play_tree(
                rng.choice([kind, kind()]),
                player,
                branching=AtTurns(
                    turns=tuple(rng.sample(range(5), rng.randint(1, 3))), width=rng.randint(2, 3)
                ),
                spec=EpisodeSpec(seed=rng.randint(0, 99)),
                token_budget=rng.choice([None, rng.randint(1, 60)]),
                concurrency=rng.randint(1, 4),
                interrupt=self.interrupt,
                on_leaf=self.delivered.append,
            )
        )
        try:
            return await self.growing
        except (asyncio.CancelledError, RunFailedError):
            return None
        finally:
            await player.aclose()

    def latency(self, request: GenerateRequest) -> float:
        self.requests += 1
        if self.requests == self.ends_at and self.growing is not None:
            if self.end == "interrupt":
                self.interrupt.fire()
            elif self.end == "cancel":
                self.growing.cancel()
        return self.rng.choice([0.0, 0.0, 0.001])

    def troubles(self) -> Iterator[tuple[str, list[Any]]]:
        for place in PLACES:
            yield place, [self.rng.choice(TROUBLES) for _ in range(self.rng.randint(0, 9))]


def check(leaves: list[Trajectory]) -> None:
    """Check each leaf, that the stored tree is sound, and that each token has one owner."""
    for leaf in leaves:
        assert check_trajectory(leaf) == (), (leaf.episode_id, check_trajectory(leaf))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trajectories.jsonl"
        save(leaves, path)
        assert verify_file(path).is_sound, str(verify_file(path))
    owned = sum(sum(leaf.loss_mask()) for leaf in leaves)
    sampled = sum(leaf.sampled_token_count for leaf in leaves if not leaf.is_faulted)
    assert owned == sampled


async def check_resumed(leaves: list[Trajectory]) -> None:
    """Check that leaves which were aborted can be played to their end."""
    player: Player = make_player()
    for leaf in leaves:
        if leaf.stop_reason is StopReason.ABORTED and leaf.env_snapshot is None:
            (whole,) = await player.resume(leaf, Sums)
            assert whole.origin == leaf.origin
            if whole.fault is None:
                assert whole.stop_reason is StopReason.TERMINATED
            else:  # the recorded episode had drifted
                assert "gave a different outcome" in whole.fault.message
            assert check_trajectory(whole) == ()
    await player.aclose()


@given(seed=st.integers(0, 2**32))
def test_trees_keep_each_token_whatever_goes_wrong(seed: int) -> None:
    campaign = Campaign(seed)
    Sums.trouble.update(campaign.troubles())
    try:
        leaves = asyncio.run(campaign.run())
    finally:
        Sums.trouble.clear()
    delivered = campaign.delivered
    if leaves is not None:
        assert sorted(map(id, delivered)) == sorted(map(id, leaves))
    if delivered:
        check(delivered)
        asyncio.run(check_resumed(delivered))
