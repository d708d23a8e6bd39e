"""Tree rollouts whose episodes play in workers, on a fake of Ray."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
from fakes.agents import GuessEnv
from fakes.branching import Saved, Screens, branching_player
from fakes.ray_cluster import FakeRay
from fakes.waiting import until

from envkit.env import Capabilities
from envkit.errors import ConfigurationError
from envkit.rollout import AtTurns, EpisodeSpec, Interrupt, RolloutConfig, play_tree
from envkit.trajectory import StopReason, fork_before
from envkit_ray import RayPlayer
from envkit_ray import player as ray_player
from envkit_ray import workers as ray_workers


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(ray_workers, "_RETRY_S", 0.01)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


@asynccontextmanager
async def playing(*, make: Callable[..., Any]) -> AsyncGenerator[RayPlayer]:
    player = RayPlayer(make, RolloutConfig(workers=2))
    try:
        yield player
    finally:
        await player.aclose()


@pytest.mark.parametrize("env", [Screens, Saved])
async def test_tree_is_forked_by_workers(ray: FakeRay, env: type[Screens]) -> None:
    make = partial(branching_player, RolloutConfig())
    branching = AtTurns(turns=(1, 3))
    async with playing(make=make) as player:
        leaves = await play_tree(env, player, branching=branching, spec=EpisodeSpec(seed=7))
    local = branching_player(RolloutConfig())
    expected = await play_tree(env, local, branching=branching, spec=EpisodeSpec(seed=7))
    await local.aclose()
    assert [leaf.fault for leaf in leaves] == [None] * 4
    assert [leaf.train_ids() for leaf in leaves] == [leaf.train_ids() for leaf in expected]
    assert [leaf.loss_mask() for leaf in leaves] == [leaf.loss_mask() for leaf in expected]


@pytest.mark.slow
async def test_tree_continues_if_a_worker_dies(ray: FakeRay) -> None:
    make = partial(branching_player, RolloutConfig(), latency_s=0.03)
    async with playing(make=make) as player:
        await player.start()
        growing = asyncio.create_task(
            play_tree(
                Screens,
                player,
                branching=AtTurns(turns=(1, 2, 3)),
                spec=EpisodeSpec(seed=7, episode_id="tree"),
            )
        )
        for _ in range(2):
            await asyncio.sleep(0.15)
            await until(lambda: any(actor.running for actor in ray.actors))
            actor = next(actor for actor in ray.actors if actor.running)
            actor.die()
            asyncio.get_running_loop().call_later(0.05, actor.come_back)
        leaves = await growing
    assert player.lost_calls > 0
    assert [leaf.fault for leaf in leaves] == [None] * 8
    owned = sum(sum(leaf.loss_mask()) for leaf in leaves)
    assert owned == sum(leaf.sampled_token_count for leaf in leaves)


async def test_interrupted_resume_without_a_worker_keeps_the_trajectory(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_player, "_STOP_S", 0.1)
    interrupt = Interrupt(grace_s=0.1)
    async with playing(make=partial(branching_player, RolloutConfig())) as player:
        (trunk,) = await player.play(Screens, EpisodeSpec(seed=7))
        fork = fork_before(trunk, 2, episode_id="fork")
        for actor in ray.actors:
            actor.die()
        asyncio.get_running_loop().call_later(0.1, interrupt.fire)
        async with asyncio.timeout(20):
            (leaf,) = await player.resume(fork, Screens, interrupt=interrupt)
        for actor in ray.actors:
            actor.come_back()
        assert leaf.stop_reason is StopReason.ABORTED
        assert leaf.origin == fork.origin
        (whole,) = await player.resume(leaf, Screens)
    assert whole.fault is None
    assert whole.train_ids()[: fork.token_count] == fork.train_ids()


class Fixed(Screens):
    """Can be neither saved nor replayed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)


@pytest.mark.parametrize(("env", "why"), [(GuessEnv, "one agent"), (Fixed, "neither snapshot")])
async def test_environment_that_workers_cannot_fork_is_refused(
    ray: FakeRay, env: Any, why: str
) -> None:
    async with playing(make=partial(branching_player, RolloutConfig())) as player:
        with pytest.raises(ConfigurationError, match=why):
            await play_tree(env, player, branching=AtTurns(turns=(1,)))
