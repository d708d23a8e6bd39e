"""Measure the makespan of tens of thousands of concurrent episodes in a few Ray workers.

Environment and replies wait for log-normal times. The replies are tokens of a real tokenizer. Ideal
is the longest episode's own waiting, plus the CPU time of the driver and the workers divided by the
cores: on a few cores the last episode starts late. `of_waiting` leaves the CPU time out. Other work
on the machine takes cores away and makes both ratios worse. Memory is the maximum proportional set
size of the driver and its workers, sampled every few seconds, without Ray's own processes.

    python benchmarks/ray_wide.py
    python benchmarks/ray_wide.py --episodes 4096 --mean-s 10
    python benchmarks/ray_wide.py --episodes 64 --workers 2 --mean-s 0.05    # a check of the script
"""

import asyncio
import os
import re
import time
from functools import partial
from pathlib import Path

from harness import run, sized
from loop import Waiting, drawn_waits, reply
from ray_workers import cpu_of

from envkit.rollout import Player, RolloutConfig, Run, RunPlan, ScriptedEngine, delivered
from envkit.rollout.sources import FunctionSource
from envkit.tasks import Task
from envkit.tokens import load_codec
from envkit_ray import RayPlayer
from envkit_transformers import builtin_model_dir

SIGMA = 0.5
SAMPLE_S = 5.0
MAX_OF_IDEAL = 1.05
MAX_BYTES = 6e9
START_S = 900.0
"""A busy machine takes minutes to import everything in each worker."""


def waiting_env(episodes: int, mean_s: float) -> Waiting:
    """Return an environment that waits."""
    return Waiting(drawn_waits(episodes, mean_s, SIGMA))


def waiting_player(config: RolloutConfig, *, model: str, episodes: int, mean_s: float) -> Player:
    """Return a player whose engine waits."""
    codec = load_codec(model)
    waits = drawn_waits(episodes, mean_s, SIGMA)
    return Player(ScriptedEngine(codec, reply, latency=waits.of_reply), codec, config)


def memory_of(pids: list[int]) -> int:
    """Return the memory of processes in bytes, counting shared pages once."""
    held = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        held += int(found[1]) * 1024
    return held


async def wide(episodes: int, workers: int, mean_s: float, model: str) -> dict[str, float]:
    """Play all episodes concurrently and return the measurements."""
    config = RolloutConfig(workers=workers, player_options={"start_timeout_s": START_S})
    make = partial(
        waiting_player, config.of_worker(), model=model, episodes=episodes, mean_s=mean_s
    )
    player = RayPlayer(make, config)
    await player.start()
    pids = [pid for _, pid in player.processes]
    tasks: list[Task] = [{"number": number} for number in range(episodes)]
    run = Run(
        FunctionSource("waiting", partial(waiting_env, episodes, mean_s)),
        player,
        RunPlan(episodes=episodes, tasks=tasks, concurrency=episodes),
    )
    most = 0

    async def sample() -> None:
        nonlocal most
        while True:
            most = max(most, await asyncio.to_thread(memory_of, [*pids, os.getpid()]))
            await asyncio.sleep(SAMPLE_S)

    sampling = asyncio.create_task(sample())
    started, inside, outside = time.monotonic(), cpu_of(pids), time.process_time()
    kept: set[str] = set()
    async for one in delivered(run):
        if one.fault is None:
            kept.add(one.episode_id)
    took = time.monotonic() - started
    sampling.cancel()
    waiting = drawn_waits(episodes, mean_s, SIGMA).ideal()
    driver_cpu, workers_cpu = time.process_time() - outside, cpu_of(pids) - inside
    cores = min(workers + 1, len(os.sched_getaffinity(0)))
    ideal = waiting + (driver_cpu + workers_cpu) / cores
    figures = {
        "episodes": len(kept),
        "seconds": took,
        "ideal_s": ideal,
        "of_ideal": took / ideal,
        "waiting_s": waiting,
        "of_waiting": took / waiting,
        "memory_gb": most / 1e9,
        "driver_cpu_s": driver_cpu,
        "workers_cpu_s": workers_cpu,
        "driver_ms_per_episode": 1e3 * driver_cpu / episodes,
        "workers_ms_per_episode": 1e3 * workers_cpu / episodes,
        "load_average": os.getloadavg()[1],
    }
    await player.aclose()
    return figures


async def measure(episodes: int, workers: int, mean_s: float) -> dict[str, float]:
    """Return the figures, and how many episodes are missing."""
    figures = await wide(episodes, workers, mean_s, str(builtin_model_dir()))
    return {**figures, "missing": episodes - figures["episodes"]}


if __name__ == "__main__":
    figures = run(
        measure,
        episodes=sized(65_536, 16, "concurrent episodes"),
        workers=sized(4, 1),
        mean_s=sized(
            40.0,
            0.2,
            "mean seconds of a reply; larger values bring steps near their deadline of 120 s",
        ),
    )
    is_met = figures["of_ideal"] <= MAX_OF_IDEAL and figures["memory_gb"] * 1e9 <= MAX_BYTES
    raise SystemExit(0 if is_met and not figures["missing"] else 1)
