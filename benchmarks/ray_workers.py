"""Measure the cost of Ray workers, and check that killing them loses no episode.

Cost: CPU seconds per episode of one process, and of the driver and the workers together, for the
same seeds, alternately. The replies come from the environment's oracle; environments, images and
tokens are real. Each round plays new seeds on both sides. A side's figure is its cheapest round,
because other work on the machine only adds CPU time. Startup and Ray's own processes (raylet,
gcs_server, agents) are printed separately and charged to neither side. CPU time is the kernel's
count over all threads of a process. Ray's threads in driver and workers use some every second
regardless of load (idle_..._ms_per_s), so a slow machine has more per episode; driver_busy_ms
excludes it.

Kills: a run whose workers are repeatedly killed by SIGKILL. Replies are text and the environment is
small, so workers start quickly. Every episode must be delivered exactly once.

    python benchmarks/ray_workers.py
    python benchmarks/ray_workers.py --kills 200 --episodes 20000
"""

import asyncio
import os
import random
import signal
import statistics
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from harness import run, sized

import envkit
from envkit import rollout
from envkit.async_env import AsyncEnv
from envkit.env import Turn
from envkit.rollout.player import AnyPlayer
from envkit.rollout.sources import FunctionSource
from envkit.tasks import Task
from envkit.tokens import load_codec
from envkit_ray import RayPlayer
from envkit_transformers import builtin_model_dir

AT_ONCE: Final = 16
MAX_CPU: Final = 1.08
MAX_DRIVER_MS: Final = 1.5
EPISODES: Final = {"computer-use-v0": 60, "geo3k-v0": 200}
"""Episodes per round."""
_IDLE_S: Final = 3.0
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


def oracle_player(env_id: str, model: str, config: rollout.RolloutConfig) -> rollout.Player:
    """Return a player whose replies come from the environment's oracle."""
    env: Any = envkit.make(env_id).unwrapped
    codec = load_codec(model, tools=env.tools)
    return rollout.Player(rollout.ScriptedEngine(codec, env.oracle()), codec, config)


def stat_of(pid: int) -> list[str]:
    """Return the kernel's fields for a process, from its state on; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_of(pids: list[int]) -> float:
    """Return the CPU seconds that processes have used so far."""
    found = [stat for stat in map(stat_of, pids) if stat]
    return _TICK_S * sum(int(stat[11]) + int(stat[12]) for stat in found)


def daemons(workers: list[int]) -> list[int]:
    """Return Ray's own processes below this one."""
    everyone = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    parents = {pid: int(stat[1]) for pid in everyone if (stat := stat_of(pid))}
    ours, found = {os.getpid()}, set[int]()
    while children := {pid for pid, parent in parents.items() if parent in ours} - found:
        found |= children
        ours = children
    return sorted(found - set(workers))


async def play(player: AnyPlayer, env_id: str, seeds: range) -> int:
    """Play one episode per seed and return the turns.

    Seeds are new each time, so cached images cannot help.
    """
    plan = rollout.RunPlan(episodes=len(seeds), seeds=seeds, concurrency=AT_ONCE)
    playing = rollout.Run(env_id, player, plan)
    return sum([len(one.turns) async for one in rollout.delivered(playing)])


async def cost(
    env_id: str, model: str, workers: int, episodes: int, rounds: int
) -> dict[str, float]:
    """Measure one process and workers, alternately."""
    config = rollout.RolloutConfig(workers=workers)
    alone = replace(config, workers=0)
    make = partial(oracle_player, env_id, model, alone)
    here, there = make(), RayPlayer(make, config)
    began, before = time.monotonic(), time.process_time()
    await there.start()
    pids = [pid for _, pid in there.processes]
    figures = {
        "start_s": time.monotonic() - began,
        "start_cpu_s_per_worker": cpu_of(pids) / workers,
        "start_cpu_s_driver": time.process_time() - before,
    }
    for player in (here, there):
        await play(player, env_id, range(min(4 * AT_ONCE, episodes)))
    before, inside = time.process_time(), cpu_of(pids)
    await asyncio.sleep(_IDLE_S)
    idle = (time.process_time() - before) / _IDLE_S
    figures["idle_driver_ms_per_s"] = 1000 * idle
    figures["idle_workers_ms_per_s"] = 1000 * (cpu_of(pids) - inside) / _IDLE_S
    spent = {
        name: list[float]()
        for name in ("one_process", "driver", "driver_busy", "workers", "daemons")
    }
    for number in range(rounds):
        seeds = range(1000 + number * episodes, 1000 + (number + 1) * episodes)
        for player in (here, there) if number % 2 else (there, here):
            of_ray = daemons(pids)
            began = time.monotonic()
            before = (time.process_time(), cpu_of(pids), cpu_of(of_ray))
            await play(player, env_id, seeds)
            after = (time.process_time(), cpu_of(pids), cpu_of(of_ray))
            driver, inside, ray = (b - a for a, b in zip(before, after, strict=True))
            if player is here:
                spent["one_process"].append(driver)
            else:
                spent["driver"].append(driver)
                spent["driver_busy"].append(driver - idle * (time.monotonic() - began))
                spent["workers"].append(inside)
                spent["daemons"].append(ray)
    await there.aclose()
    await here.aclose()
    both = list(map(sum, zip(spent["driver"], spent["workers"], strict=True)))
    pairs = [there / here for there, here in zip(both, spent["one_process"], strict=True)]
    return {
        **figures,
        **{f"{name}_ms": 1000 * min(values) / episodes for name, values in spent.items()},
        "ratio": min(both) / min(spent["one_process"]),
        "median_ratio": statistics.median(pairs),
    }


class TextEngine:
    """Answers with text after a short wait."""

    name = "text"
    logprob_kind = rollout.LogprobKind.SAMPLED

    async def generate(self, request: rollout.GenerateRequest) -> rollout.Generation:
        """Wait and answer."""
        await asyncio.sleep(0.05)
        return rollout.Generation(
            token_ids=(),
            logprobs=(),
            finish_reason=rollout.FinishReason.STOP,
            prompt_tokens=None,
            text="on",
            text_tokens=1,
        )

    async def abort(self, request_id: str) -> None:
        """Do nothing: the reply comes soon."""

    async def end_session(self, session_id: str) -> None:
        """Do nothing: no state is kept."""

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""


class Corridor(AsyncEnv):
    """Three turns of text."""

    async def on_areset(self, task: Task) -> Turn:
        """Say where it starts."""
        return Turn("You stand in a corridor.")

    async def on_aturn(self, response_text: str) -> Turn:
        """Answer; the third turn ends the episode."""
        return Turn("Go on.", reward=0.5, done=self.turn == 2)


def text_player(config: rollout.RolloutConfig) -> rollout.Player:
    """Return a player of text."""
    return rollout.Player(TextEngine(), None, config)


async def campaign(count: int, episodes: int, workers: int) -> dict[str, float]:
    """Kill workers during a run, and count deliveries."""
    config = rollout.RolloutConfig(workers=workers, seed=1)
    player = RayPlayer(partial(text_player, replace(config, workers=0)), config)
    await player.start()
    playing = rollout.Run(
        FunctionSource("corridor", partial(Corridor, max_turns=4)),
        player,
        rollout.RunPlan(episodes=episodes, group_size=4, concurrency=32 * workers),
    )
    rng, started = random.Random(0), time.monotonic()
    found: Counter[tuple[int, int]] = Counter()
    ends: Counter[str] = Counter()
    killed: set[int] = set()
    async for one in rollout.delivered(playing):
        found[one.metadata["group"], one.metadata["member"]] += 1
        ends[one.stop_reason.value] += 1
        ends["restarted"] += bool(one.env_restarts)
        if one.fault is not None:
            ends[
                "attempts used up"
                if "player_options.max_attempts" in one.fault.message
                else "faulted"
            ] += 1
        if len(killed) < found.total() * count // episodes:
            alive = [pid for _, pid in player.processes if pid not in killed]
            if alive:
                victim = rng.choice(alive)
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)
    figures = {
        "killed": len(killed),
        "delivered": found.total(),
        "different": len(found),
        "terminated": ends["terminated"],
        "restarted": ends["restarted"],
        "attempts_used_up": ends["attempts used up"],
        "other_faults": ends["faulted"],
        "lost_or_doubled": episodes + found.total() - 2 * len(found),
        "lost_calls": player.lost_calls,
        "seconds": time.monotonic() - started,
    }
    await player.aclose()
    return figures


def measure(
    env: list[str],
    kills: int,
    episodes: int,
    workers: int | None,
    rounds: int,
    per_round: int | None,
) -> dict[str, dict[str, float]]:
    """Return the figures of the run with kills, or the cost of each environment."""
    if kills:
        return {"kills": asyncio.run(campaign(kills, episodes, workers or 4))}
    model = str(builtin_model_dir())
    found: dict[str, dict[str, float]] = {}
    for name in env:
        measuring = cost(name, model, workers or 2, per_round or EPISODES[name], rounds)
        found[name] = asyncio.run(measuring)
    return found


def is_met(figures: dict[str, dict[str, float]]) -> bool:
    """Return whether every figure reaches its target, and no episode was lost."""
    if "kills" in figures:
        return figures["kills"]["lost_or_doubled"] == 0
    return all(
        one["ratio"] <= MAX_CPU and one["driver_ms"] <= MAX_DRIVER_MS for one in figures.values()
    )


if __name__ == "__main__":
    figures = run(
        measure,
        env={**sized([*EPISODES], ["computer-use-v0"], "whose cost to measure"), "nargs": "+"},
        kills={"default": 0, "help": "kill this many workers instead"},
        episodes=sized(20_000, 100, "episodes of the run with kills"),
        workers=sized(None, 1, "workers, if not 2 for the cost and 4 with kills"),
        rounds=sized(8, 1, "rounds of the cost measurement"),
        per_round=sized(None, 2, "episodes per round, if not those of EPISODES"),
    )
    raise SystemExit(0 if is_met(figures) else 1)
