"""Episodes on a real cluster of three simulated nodes, while workers and nodes are killed."""

import asyncio
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes.processes import is_alive
from fakes.ray_players import scripted_player, toy_player

import envkit
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.rollout import (
    EnvSource,
    EpisodeSpec,
    Interrupt,
    RolloutConfig,
    Run,
    RunPlan,
    delivered,
)
from envkit.trajectory import StopReason, Trajectory, success_of, threshold_of
from envkit_ray import RayPlayer
from envkit_ray.cluster import load_ray

CANARY = "canary-v0"
VISION = "qwen2_5_vl"


def settings(workers: int, **options: Any) -> RolloutConfig:
    return RolloutConfig.from_mapping({"workers": workers, "player_options": options})


@asynccontextmanager
async def playing(
    config: RolloutConfig, *, make: Any = scripted_player, env_id: str = CANARY, **options: Any
) -> AsyncGenerator[RayPlayer]:
    alone = config.of_worker()
    player = RayPlayer(partial(make, env_id, model=VISION, config=alone, **options), config)
    try:
        yield player
    finally:
        await player.aclose()


def pids(player: RayPlayer) -> list[int]:
    """Return the processes of workers that answer."""
    return [pid for _, pid in player.processes]


def keys_of(found: list[Trajectory]) -> set[tuple[int, int]]:
    return {(one.metadata["group"], one.metadata["member"]) for one in found}


async def test_episodes_are_those_of_one_process(cluster: Any) -> None:
    plan = RunPlan(episodes=16, group_size=4, concurrency=8)
    local = scripted_player(CANARY, model=VISION, config=RolloutConfig(seed=5))
    expected = {
        (one.metadata["group"], one.metadata["member"]): one
        async for one in delivered(Run(CANARY, local, plan))
    }
    await local.aclose()
    async with playing(replace(settings(2), seed=5)) as player:
        found = [one async for one in delivered(Run(CANARY, player, plan))]
    assert keys_of(found) == set(expected)
    for one in found:
        same = expected[one.metadata["group"], one.metadata["member"]]
        assert (one.train_ids(), one.loss_mask(), one.logprobs()) == (
            same.train_ids(),
            same.loss_mask(),
            same.logprobs(),
        )
        assert [image.sha256 for image in one.images()] == [i.sha256 for i in same.images()]
        assert (one.reward, one.initial_observation_hash) == (
            same.reward,
            same.initial_observation_hash,
        )
        assert (threshold_of(one), success_of(one)) == (threshold_of(same), success_of(same))
        assert not any(segment.features for segment in one.segments)


async def test_every_episode_is_delivered_once_while_workers_and_a_node_die(cluster: Any) -> None:
    rng, episodes, killed = random.Random(3), 240, list[int]()
    async with playing(settings(3), latency_s=0.4) as player:
        run = Run(CANARY, player, RunPlan(episodes=episodes, group_size=2, concurrency=24))
        await player.start()

        async def disturb() -> None:
            await asyncio.sleep(0.5)
            for _ in range(2):
                victim = rng.choice(await _until_up(player, 1))
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                await asyncio.sleep(1.0)
            await _until_up(player, 2)
            lost = rng.choice(list(cluster.worker_nodes))
            cluster.remove_node(lost)  # not on a thread, because it handles signals
            cluster.add_node(num_cpus=1)

        disturbing = asyncio.create_task(disturb())
        found = [one async for one in delivered(run)]
        await disturbing
    assert len(found) == episodes
    assert len(keys_of(found)) == episodes
    assert len({one.episode_id for one in found}) == episodes
    assert len(killed) == 2
    assert player.lost_calls > 0
    assert sum(one.env_restarts for one in found) == player.lost_calls
    assert {one.reward for one in found} == {1.0}


async def _until_up(player: RayPlayer, count: int) -> list[int]:
    async with asyncio.timeout(120):
        while len(found := pids(player)) < count:
            await asyncio.sleep(0.2)
    return found


async def test_interrupt_brings_back_partial_episodes(cluster: Any, tmp_path: Path) -> None:
    interrupt = Interrupt()

    async def fire_in_the_middle() -> None:
        while len([*tmp_path.iterdir()]) < 8:
            await asyncio.sleep(0.05)
        interrupt.fire()

    async with playing(settings(2), latency_s=600.0, marks=str(tmp_path)) as player:
        await player.start()
        run = Run(CANARY, player, RunPlan(episodes=12, concurrency=8), interrupt=interrupt)
        firing = asyncio.create_task(fire_in_the_middle())
        async with asyncio.timeout(120):
            found = [one async for one in delivered(run)]
        await firing
    assert [one.stop_reason for one in found] == [StopReason.ABORTED] * 8
    assert all(one.turns for one in found)  # half of each reply was sampled


async def test_closed_player_leaves_no_process_and_no_reservation(cluster: Any) -> None:
    ray = load_ray()
    async with playing(settings(2, num_cpus=1)) as player:
        await player.start()
        processes = pids(player)
    async with asyncio.timeout(30):
        while any(map(is_alive, processes)) or ray.available_resources().get("CPU") != 3.0:
            await asyncio.sleep(0.1)
    assert ray.is_initialized()


async def test_workers_that_do_not_fit_are_counted(cluster: Any) -> None:
    async with playing(settings(4, num_cpus=1, start_timeout_s=45)) as player:
        started = time.monotonic()
        with pytest.raises(ConfigurationError, match="3 of 4 Ray workers started in 45 s") as error:
            await player.start()
    assert "0 of the cluster's 3 are free" in str(error.value)
    assert time.monotonic() - started < 100


async def test_environment_of_the_driver_alone_is_refused(cluster: Any) -> None:
    async with playing(settings(1), make=toy_player, env_id="toy-dots-v0") as player:
        (one,) = await player.play(EnvSource("toy-dots-v0"), EpisodeSpec(seed=1))
        assert one.reward == 1.0
        with pytest.raises(UnknownNameError, match="not-there-v0") as error:
            await Run("not-there-v0", player, RunPlan(episodes=2)).play(_refuse)
    assert "every node needs the same packages" in error.value.__notes__[0]


async def _refuse(_: object) -> None:
    raise AssertionError("nothing may be delivered")


async def test_package_that_the_workers_lack_is_named(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = ModuleType("private_envs")
    exec("def make_player():\n    raise AssertionError", private.__dict__)
    monkeypatch.setitem(sys.modules, "private_envs", private)
    player = RayPlayer(private.make_player, settings(1))
    with pytest.raises(ConfigurationError, match="No module named 'private_envs'"):
        await player.start()
    await player.aclose()


async def test_cluster_without_envkit_is_refused(cluster: Any, tmp_path: Path) -> None:
    unprepared = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    assert not _is_importable("envkit_ray", unprepared)
    async with playing(settings(1, runtime_env=unprepared)) as player:
        with pytest.raises(ConfigurationError, match="No module named 'envkit_ray'") as error:
            await player.start()
    assert "a Ray worker cannot load envkit" in str(error.value)
    assert f"Install envkit-rl {envkit.__version__}" in str(error.value)


def _is_importable(module: str, runtime_env: dict[str, Any]) -> bool:
    """Ask a process of the cluster, by a function that needs nothing of ours."""
    ray = load_ray()
    find = ray.remote(importlib.util.find_spec)
    options = {"runtime_env": runtime_env, "num_cpus": 0}
    return ray.get(find.options(**options).remote(module), timeout=60) is not None


async def test_cluster_with_another_version_of_envkit_is_refused(
    cluster: Any, tmp_path: Path
) -> None:
    installed = distribution("envkit-rl")
    info = tmp_path / "envkit_rl-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: envkit-rl\nVersion: 9.9\n")
    (info / "entry_points.txt").write_text(installed.read_text("entry_points.txt") or "")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    other = {"env_vars": {"PYTHONPATH": path}}
    async with playing(settings(1, runtime_env=other)) as player:
        with pytest.raises(
            ConfigurationError, match="install the same version on every node"
        ) as error:
            await player.start()
    assert f"has envkit 9.9 and this process has {installed.version}:" in str(error.value)


def test_trainer_whose_cpus_are_all_reserved_gets_workers(cluster: Any) -> None:
    ray = load_ray()

    @ray.remote(num_cpus=1, max_retries=0)
    def trainer() -> tuple[int, bool]:
        async def train() -> int:
            config = settings(2)
            make = partial(scripted_player, CANARY, model=VISION, config=RolloutConfig())
            player = RayPlayer(make, config)
            run = Run(CANARY, player, RunPlan(episodes=4, concurrency=4))
            found = [one async for one in delivered(run)]
            await player.aclose()
            return len(found)

        return asyncio.run(train()), ray.is_initialized()

    groups = importlib.import_module("ray.util.placement_group")
    rest = groups.placement_group([{"CPU": 1}, {"CPU": 1}])
    ray.get(rest.ready(), timeout=30)
    try:
        assert ray.get(trainer.remote(), timeout=150) == (4, True)
    finally:
        groups.remove_placement_group(rest)
