"""Agents that are not ours on Ray workers: the same episodes as in one process."""

import sys
from functools import partial
from typing import Any

import pytest
from fakes.ray_players import scripted_player

from envkit.rollout import RolloutConfig, Run, RunPlan, delivered
from envkit.trajectory import StopReason, Trajectory, check_trajectory
from envkit_ray import RayPlayer

CANARY = "canary-v0"
COMMAND = """
import json, os, urllib.request as u
body = {"model": "m", "messages": [{"role": "user", "content": open("prompt.txt").read()}]}
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
got = json.load(u.urlopen(u.Request(url, json.dumps(body).encode(), head)))
print(got["choices"][0]["message"]["content"])
"""
AGENTS: dict[str, Any] = {
    "function": "fakes.own_agents:trivial",
    "command": {"command": [sys.executable, "-c", COMMAND], "timeout_s": 120},
}


async def played(player: Any) -> dict[tuple[int, int], Trajectory]:
    plan = RunPlan(episodes=4, group_size=2, concurrency=4)
    try:
        return {
            (one.metadata["group"], one.metadata["member"]): one
            async for one in delivered(Run(CANARY, player, plan))
        }
    finally:
        await player.aclose()


@pytest.mark.parametrize("kind", AGENTS)
async def test_agents_on_workers_play_the_episodes_of_one_process(cluster: Any, kind: str) -> None:
    config = RolloutConfig.from_mapping(
        {"agent": AGENTS[kind], "seed": 5, "workers": 2, "player_options": {}}
    )
    alone = config.of_worker()
    make = partial(scripted_player, CANARY, model="qwen2_5_vl", config=alone)
    expected = await played(make())
    found = await played(RayPlayer(make, config))

    assert set(found) == set(expected)
    for key, one in found.items():
        same = expected[key]
        assert (one.stop_reason, one.fault) == (StopReason.TERMINATED, None)
        assert check_trajectory(one) == ()
        for name in ("train_ids", "loss_mask", "logprobs"):
            assert getattr(one, name)() == getattr(same, name)(), name
        assert (one.reward, one.metadata["agent"]) == (same.reward, same.metadata["agent"])
