"""Sandboxed environments on Ray workers: solved, and no process outlives its worker."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from fakes.needs import DESKTOP
from fakes.processes import is_alive
from fakes.ray_players import scripted_player

from envkit.rollout import RolloutConfig, Run, RunPlan, delivered
from envkit_ray import RayPlayer
from envkit_sandbox.watchdog import processes

pytestmark = DESKTOP.mark
TASKS: list[tuple[str, dict[str, Any]]] = [
    ("terminal-v0", {"families": "find_file"}),
    ("computer-use-linux-v0", {"families": ["write_note"], "level": 1}),
]


@asynccontextmanager
async def watching(player: RayPlayer) -> AsyncGenerator[set[int]]:
    """Collect every process that a worker starts."""
    found: set[int] = set()

    async def watch() -> None:
        while True:
            for _, worker in player.processes:
                found.update(await asyncio.to_thread(processes, worker))
                found.discard(worker)
            await asyncio.sleep(0.02)

    task = asyncio.ensure_future(watch())
    try:
        yield found
    finally:
        task.cancel()


@pytest.mark.parametrize(("env_id", "kwargs"), TASKS)
async def test_sandboxes_end_with_their_worker(
    cluster: Any, env_id: str, kwargs: dict[str, Any]
) -> None:
    settings = {"workers": 2, "player_options": {}, "env_kwargs": kwargs}
    config = RolloutConfig.from_mapping(settings)
    make = partial(scripted_player, env_id, model="qwen2_5_vl", config=config.of_worker())
    player, rewards = RayPlayer(make, config), list[float | None]()
    try:
        await player.start()
        async with watching(player) as started:
            async for one in delivered(Run(env_id, player, RunPlan(episodes=4, concurrency=2))):
                rewards.append(one.reward)
                if len(rewards) == 1:
                    os.kill(player.processes[0][1], signal.SIGKILL)
    finally:
        await player.aclose()
    assert rewards == [1.0] * 4
    assert len(started) >= 4 * 2  # a sandbox is two processes at least
    async with asyncio.timeout(30):
        while any(map(is_alive, started)):
            await asyncio.sleep(0.1)
