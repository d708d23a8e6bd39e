"""Cut replies on Ray workers: the outcomes of one process, also when they are played again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.hearing import Hearing, SavedHearing
from fakes.ray_players import hearing_player

from envkit.rollout import AtTurns, EpisodeSpec, Interrupt, RolloutConfig, play_tree
from envkit.trajectory import StopReason, Trajectory
from envkit_ray import RayPlayer

SPEC = EpisodeSpec(seed=1, env_id="hearing", episode_id="e", group_id="g")
CONFIG = RolloutConfig.from_mapping(
    {
        "workers": 1,
        "player_options": {},
        "sampling": {"max_new_tokens": 24},
        "retries": {"max_env_retries_per_turn": 3, "backoff": {"initial_s": 0}},
    }
)
KINDS = pytest.mark.parametrize("kind", [Hearing, SavedHearing])


@asynccontextmanager
async def playing(on_ray: bool, folder: Path, **options: Any) -> AsyncGenerator[Any]:
    """Give a player of this process or of a worker."""
    make = partial(hearing_player, config=CONFIG.of_worker(), mark=str(folder / "mark"), **options)
    player = RayPlayer(make, CONFIG) if on_ray else make()
    try:
        yield player
    finally:
        await player.aclose()


def outcome(one: Trajectory) -> tuple[Any, ...]:
    """Return everything that the environment answered, and the sampled tokens."""
    turns = [
        (turn.info, turn.parse_error, turn.reward, turn.observation_hash, turn.opened)
        for turn in one.turns
    ]
    return one.reward, one.stop_reason, one.fault, turns, one.train_ids(), one.loss_mask()


async def aborted(player: Any, kind: type[Hearing], mark: Path) -> Trajectory:
    """Return the episode, aborted in the turn that waits."""
    interrupt = Interrupt()
    episode = asyncio.create_task(player.play(kind, SPEC, interrupt=interrupt))
    async with asyncio.timeout(60):
        while not mark.exists():
            assert not episode.done(), episode.result()
            await asyncio.sleep(0.05)
    interrupt.fire()
    (one,) = await episode
    assert one.stop_reason is StopReason.ABORTED
    return one


@KINDS
async def test_cut_replies_have_the_outcome_of_one_process(
    cluster: Any, kind: type[Hearing], tmp_path: Path
) -> None:
    async with playing(False, tmp_path) as player:
        (expected,) = await player.play(kind, SPEC)
    assert [turn.parse_error for turn in expected.turns] == [None, "cut"] * 2
    assert [turn.info["finish"] for turn in expected.turns] == ["stop", "length"] * 2
    assert [turn.reward for turn in expected.turns] == [1.0, 0.0] * 2

    async with playing(True, tmp_path, fails_at=3) as player:
        (replayed,) = await player.play(kind, SPEC)
        (undisturbed,) = await player.play(kind, SPEC)
    assert replayed.turns[3].env_retries == {"transient": 1}
    assert not undisturbed.turns[3].env_retries
    assert outcome(replayed) == outcome(undisturbed) == outcome(expected)


@KINDS
async def test_an_aborted_episode_with_a_cut_reply_resumes_to_the_outcome_of_one_process(
    cluster: Any, kind: type[Hearing], tmp_path: Path
) -> None:
    async with playing(False, tmp_path, waits_at=2) as player:
        local = await aborted(player, kind, tmp_path / "mark")
        (expected,) = await player.resume(local, kind)
    assert [turn.parse_error for turn in expected.turns] == [None, "cut"] * 2
    (tmp_path / "mark").unlink()

    async with playing(True, tmp_path, waits_at=2) as player:
        far = await aborted(player, kind, tmp_path / "mark")
        assert outcome(far) == outcome(local)
        for one in (local, far):
            (resumed,) = await player.resume(one, kind)
            assert outcome(resumed) == outcome(expected)


async def test_forks_after_a_cut_reply_have_the_outcomes_of_one_process(
    cluster: Any, tmp_path: Path
) -> None:
    found: list[list[tuple[Any, ...]]] = []
    for on_ray in (False, True):
        async with playing(on_ray, tmp_path) as player:
            leaves = [
                leaf
                for kind in (Hearing, SavedHearing)
                for leaf in await play_tree(
                    kind, player, branching=AtTurns(turns=(2, 3)), spec=SPEC
                )
            ]
        errors = [[turn.parse_error for turn in leaf.turns] for leaf in leaves]
        assert errors == [[None, "cut"] * 2] * 8
        found.append([outcome(leaf) for leaf in leaves])
    assert found[0] == found[1]
