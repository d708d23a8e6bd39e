"""A long run and a wide run, over HTTP to a server in another process."""

import asyncio
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import memory_mb, serving
from reliability_server import draw_wait, raise_file_limit, reply_wait

from envkit.async_env import AsyncEnv
from envkit.env import Turn
from envkit.rollout import Interrupt, Player, Run, RunPlan
from envkit.rollout.run_folder import RunFolder
from envkit.tasks import Task
from envkit.tokens import ChatCodec
from envkit.trajectory import Trajectory
from envkit_sglang import SGLangEngine

OBSERVATION = "The corridor goes on; two doors are open and one is locked. " * 4


class Log:
    """Events seen by a run's environments, counted outside the library."""

    def __init__(self) -> None:
        self.steps = 0
        self.finished = 0
        self.written = 0
        self.waited: dict[str, float] = {}
        """Seconds that each episode's environment waited."""

    def count_written(self, _trajectory: Trajectory) -> None:
        """Count a stored trajectory; a soak keeps nothing else of it."""
        self.written += 1


class CorridorEnv(AsyncEnv):
    """One to five turns, each after a log-normal time."""

    def __init__(self, log: Log, mean_s: float) -> None:
        super().__init__(max_turns=8)
        self._log, self._mean_s = log, mean_s
        self._turns = 1

    async def on_areset(self, task: Task) -> Turn:
        """Start immediately."""
        self._turns = int(self.np_random.integers(1, 6))
        return Turn(OBSERVATION)

    async def on_aturn(self, response_text: str) -> Turn:
        """Wait and answer."""
        assert self.step_key is not None
        name = self.step_key.episode_id
        wait_s = draw_wait(self._mean_s, 0.8, name, self.turn)
        await asyncio.sleep(wait_s)
        log, done = self._log, self.turn + 1 >= self._turns
        log.steps += 1
        log.finished += done
        log.waited[name] = log.waited.get(name, 0.0) + wait_s
        return Turn(OBSERVATION, reward=1.0 if done else 0.0, done=done)


def server(mean_s: float, *, image_tokens: int = 1) -> AbstractContextManager[str]:
    """Run the server in its own process; the manager's value is its address."""
    file = Path(__file__).with_name("reliability_server.py")
    command = [sys.executable, str(file), "--mean-s", str(mean_s)]
    return serving([*command, "--image-tokens", str(image_tokens)])


@dataclass(kw_only=True)
class Samples:
    """Measurements taken once per second."""

    at_s: list[float] = field(default_factory=list[float])
    rss_mb: list[float] = field(default_factory=list[float])
    unwritten: list[int] = field(default_factory=list[int])
    threads: list[int] = field(default_factory=list[int])
    tasks: list[int] = field(default_factory=list[int])
    descriptors: list[int] = field(default_factory=list[int])

    def take(self, at_s: float, unwritten: int) -> None:
        """Measure this process now."""
        self.at_s.append(at_s)
        self.rss_mb.append(memory_mb())
        self.unwritten.append(unwritten)
        self.threads.append(threading.active_count())
        self.tasks.append(len(asyncio.all_tasks()))
        self.descriptors.append(len(os.listdir("/proc/self/fd")))

    def after(self, settle_s: float, values: list[Any]) -> list[Any]:
        """Return the counted part of a column, or all of it if the run was too short."""
        part = [value for at, value in zip(self.at_s, values, strict=True) if at >= settle_s]
        return part or values


async def _play(
    folder: str,
    player: Player,
    plan: RunPlan,
    build: Callable[[], CorridorEnv],
    keep: Callable[[Trajectory], None],
    interrupt: Interrupt,
) -> None:
    """Play and store a run as the command does."""
    with RunFolder.create(Path(folder) / "run", {"group_size": plan.group_size}) as run_folder:

        async def deliver(played: tuple[Trajectory, ...]) -> None:
            # Called once they are in the file.
            await run_folder.deliver(played, then=lambda one, _: keep(one))

        try:
            await Run(build, player, plan, interrupt=interrupt).play(deliver)
        finally:
            await player.aclose()


async def soak(
    codec: ChatCodec, *, seconds: float, settle_s: float, concurrency: int, mean_s: float
) -> dict[str, Any]:
    """Play for a while; return what grew."""
    log, samples, interrupt = Log(), Samples(), Interrupt()
    with server(mean_s) as url, tempfile.TemporaryDirectory() as folder:
        engine = SGLangEngine(url, max_connections=concurrency)
        started = time.perf_counter()

        async def watch() -> None:
            at_s = 0.0
            while True:  # the last sample is taken however long the loop was blocked
                samples.take(at_s, log.finished - log.written)
                log.waited.clear()
                if at_s >= seconds:
                    return interrupt.fire()
                await asyncio.sleep(min(1.0, seconds - at_s))
                at_s = time.perf_counter() - started

        watcher = asyncio.create_task(watch())
        await _play(
            folder,
            Player(engine, codec),
            RunPlan(episodes=100_000_000, concurrency=concurrency),
            lambda: CorridorEnv(log, mean_s / 4),
            log.count_written,
            interrupt,
        )
        await watcher
        await engine.aclose()
    rss = samples.after(settle_s, samples.rss_mb)
    tenth = max(1, len(rss) // 10)
    first, last = statistics.median(rss[:tenth]), statistics.median(rss[-tenth:])
    figures: dict[str, Any] = {
        "seconds": seconds,
        "settle_s": settle_s,
        "concurrency": concurrency,
        "steps": log.steps,
        "episodes": log.written,
        "rss_settled_mb": first,
        "rss_end_mb": last,
        "rss_peak_mb": max(rss),
        "rss_growth": last / first - 1,
        "unwritten_most": max(samples.unwritten),
    }
    for name in ("threads", "tasks", "descriptors"):
        part = samples.after(settle_s, getattr(samples, name))
        figures[f"{name}_settled"] = statistics.median(part[:tenth])
        figures[f"{name}_end"] = statistics.median(part[-tenth:])
        figures[f"{name}_most"] = max(part)
    return figures


async def wide(codec: ChatCodec, *, episodes: int, mean_s: float) -> dict[str, Any]:
    """Play all episodes concurrently; compare the time with the minimum."""
    raise_file_limit()
    log, written = Log(), list[Trajectory]()
    most_unwritten = 0
    with server(mean_s) as url, tempfile.TemporaryDirectory() as folder:
        engine = SGLangEngine(url, max_connections=episodes)
        started, cpu = time.perf_counter(), time.process_time()

        async def watch() -> None:
            nonlocal most_unwritten
            while True:
                most_unwritten = max(most_unwritten, log.finished - len(written))
                await asyncio.sleep(0.05)

        watcher = asyncio.create_task(watch())
        await _play(
            folder,
            Player(engine, codec),
            RunPlan(episodes=episodes, concurrency=episodes),
            lambda: CorridorEnv(log, mean_s / 4),
            written.append,
            Interrupt(),
        )
        watcher.cancel()
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        await engine.aclose()
    waiting_s = max(
        log.waited.get(one.episode_id, 0.0)
        + sum(reply_wait(mean_s, one.episode_id, turn.prompt_tokens) for turn in one.turns)
        for one in written
    )
    return {
        "episodes": episodes,
        "faulted": sum(one.is_faulted for one in written),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "longest_waiting_s": waiting_s,
        "ratio": wall_s / (cpu_s + waiting_s),
        "unwritten_most": most_unwritten,
        "rss_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
