"""What a run keeps of the groups that its tail stopped."""

import asyncio
from typing import Any

import pytest
from fakes.prompt_player import PromptPlayer

from envkit.rollout import (
    FaultPolicy,
    Interrupt,
    RolloutConfig,
    RolloutState,
    Run,
    RunPlan,
    Stragglers,
    Tail,
    delivered,
)
from envkit.trajectory import StopReason, Trajectory
from envkit.trajectory.trajectory import TAIL, TIMES_PARKED


async def batch(
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
    kept, state, _ = await batch(STOPPED, Stragglers.DROP)
    assert [one.metadata["group"] for one in kept] == [0, 0]
    assert [(one.metadata["member"], one.stop_reason) for one in state.cut] == [
        (1, StopReason.ABORTED)
    ]


async def test_faulted_straggler_of_a_parked_group_starts_over() -> None:
    _, state, _ = await batch(STOPPED, Stragglers.PARK)
    (parked,) = state.parked
    assert set(parked.members) == {1}
    assert parked.times == 1
    again, state, player = await batch({(1, 0): StopReason.ABORTED}, Stragglers.PARK, state=state)
    assert faults_of(again) == [False, False]
    assert {one.group_id for one in again} == {parked.group_id}
    assert all(one.metadata[TIMES_PARKED] == 1 for one in again)
    assert [one.metadata["member"] for one in player.resumed] == [1]
    assert (0, 0) in {(one.metadata["group"], one.metadata["member"]) for one in player.played}


async def test_straggler_that_still_ended_well_is_kept() -> None:
    ends = {(1, 0): StopReason.TERMINATED, (1, 1): StopReason.MAX_TURNS}
    kept, state, _ = await batch(ends, Stragglers.DROP)
    assert [one.metadata["group"] for one in kept] == [0, 0]
    assert {one.stop_reason for one in state.cut} == set(ends.values())
    assert not any(TAIL in one.metadata for one in kept)


@pytest.mark.parametrize("policy", FaultPolicy)
async def test_faulted_straggler_changes_no_count_of_the_batch(policy: FaultPolicy) -> None:
    kept, state, player = await batch(STOPPED, Stragglers.DROP, on_fault=policy)
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
