"""Trees under random faults, interrupts and cancellations: no token is lost or owned twice."""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fakes.trees import SavedSums, Sums, drifts, fails, make_player, nothing
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import FaultKind, RunFailedError
from envkit.rollout import (
    AtTurns,
    Backoff,
    EpisodeSpec,
    GenerateRequest,
    Interrupt,
    Player,
    RetryBudget,
    play_tree,
)
from envkit.trajectory import StopReason, Trajectory, check_trajectory, save, verify_file

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
