"""Play many concurrent desktop episodes and measure stalls of the event loop.

The oracle writes the replies, and a real chat codec with an image processor encodes them and the
screenshots. A watchdog wakes up every five milliseconds; its delay is the time that the loop was
blocked or the process did not run. The CPU time used meanwhile distinguishes the two: "own" stalls
are at most that long. The process is pinned to two cores. A stall may last at most 50 ms
(DESIGN.md, 12.11).
"""

import asyncio
import os
import time
from typing import Any

from harness import run, sized

from envkit.rollout import Limits, RolloutConfig, ScriptedEngine, collect
from envkit.tokens import ChatCodec, load_codec
from envkit_desktop.policies import oracle
from envkit_transformers import builtin_model_dir

BEAT_S = 0.005
LONGEST_STALL_MS = 50.0


class Watchdog:
    """Measures the delay of a task that sleeps for one interval at a time."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.own_ms: list[float] = []
        """Stalls, each capped by the CPU time that the process used meanwhile."""
        self._task: asyncio.Task[None] | None = None

    async def _watch(self) -> None:
        while True:
            due, used = time.perf_counter() + BEAT_S, time.process_time()
            await asyncio.sleep(BEAT_S)
            late_s = time.perf_counter() - due
            self.late_ms.append(late_s * 1e3)
            self.own_ms.append(min(late_s, time.process_time() - used) * 1e3)

    async def __aenter__(self) -> "Watchdog":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()


async def rollout(codec: ChatCodec, episodes: int, concurrency: int) -> dict[str, Any]:
    """Return turns, seconds, rewards and stalls of concurrent episodes."""
    engine = ScriptedEngine(codec, oracle())
    limits = Limits(max_turns=40, max_response_tokens=100_000, max_context_tokens=100_000)
    turns, solved, faults = 0, 0, 0
    started, busy = time.perf_counter(), time.process_time()
    async with Watchdog() as watchdog:
        async for trajectory in collect(
            "computer-use-v0",
            engine,
            codec,
            episodes=episodes,
            concurrency=concurrency,
            config=RolloutConfig(limits=limits),
        ):
            turns += len(trajectory.turns)
            solved += trajectory.reward == 1.0
            faults += trajectory.fault is not None
    late, own = sorted(watchdog.late_ms), sorted(watchdog.own_ms)
    return {
        "episodes": episodes,
        "concurrency": concurrency,
        "solved": solved,
        "faults": faults,
        "turns": turns,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_ms_a_turn": round((time.process_time() - busy) / turns * 1e3, 3),
        "turns_per_second": round(turns / (time.perf_counter() - started), 1),
        "stall_ms_p50": round(late[len(late) // 2], 2),
        "stall_ms_p99": round(late[len(late) * 99 // 100], 2),
        "stall_ms_most": round(late[-1], 2),
        "stalls_over_50_ms": sum(ms > LONGEST_STALL_MS for ms in late),
        "own_stall_ms_p99": round(own[len(own) * 99 // 100], 2),
        "own_stall_ms_most": round(own[-1], 2),
        "own_stalls_over_50_ms": sum(ms > LONGEST_STALL_MS for ms in own),
        "beats": len(late),
    }


async def measure(model: str | None, episodes: int, concurrency: int) -> dict[str, Any]:
    """Return the figures on two cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    codec = load_codec(model or builtin_model_dir("builtin-text"))
    await rollout(codec, 4, 4)  # loads the font and the processor
    return await rollout(codec, episodes, concurrency)


if __name__ == "__main__":
    run(
        measure,
        model={"help": "folder of a vision model (default: the built-in one)"},
        episodes=sized(256, 2),
        concurrency=sized(256, 2),
    )
