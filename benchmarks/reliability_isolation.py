"""Isolated environments whose workers and supervisors are killed at random while a run plays.

The processes are found by a mark in their environment, so one that loses its parent counts too.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Final

from harness import memory_mb
from reliability_campaign import is_paid_fault, is_rewarded

from envkit.env import Capabilities, Env, Turn
from envkit.rollout import Backoff, RetryBudget, RolloutConfig, ScriptedEngine, collect
from envkit.tasks import Task
from envkit.tokens import ChatCodec
from envkit_isolation import isolated
from envkit_isolation.process import close_supervisors

MARK: Final = "ENVKIT_RELIABILITY_ISOLATED"
TURNS: Final = 4
_STEP_S: Final = 0.02
_STOPPED_S: Final = 10.0
"""Seconds in which the processes of a closed run must end."""
BUDGET: Final = RetryBudget(
    backoff=Backoff(initial_s=0.01, maximum_s=0.05),
    max_env_retries_per_turn=3,
    max_env_retries_per_episode=6,
)


class SlowCountEnv(Env):
    """Counts to four, and blocks its process for a moment at each step."""

    capabilities: ClassVar[Capabilities] = Capabilities(replay_safe=True, deterministic=True)

    def __init__(self) -> None:
        super().__init__(max_turns=TURNS + 2)
        self._count = 0

    def on_reset(self, task: Task) -> Turn:
        """Start at zero."""
        self._count = 0
        return Turn("Count.")

    def on_turn(self, response_text: str) -> Turn:
        """Block, then count the reply."""
        time.sleep(_STEP_S)
        self._count += 1
        done = self._count >= TURNS
        return Turn(f"{self._count} so far.", reward=1.0 if done else 0.0, done=done)


class Killer(threading.Thread):
    """Kills a random process of the run at random moments, until it is stopped."""

    def __init__(self, every_s: float) -> None:
        super().__init__(daemon=True)
        self._every_s, self._is_over = every_s, threading.Event()
        self._rng = random.Random(5)
        self.kills: Counter[str] = Counter()

    def run(self) -> None:
        """Kill a worker, or one time in ten a supervisor."""
        while not self._is_over.wait(self._every_s * 2 * self._rng.random()):
            parents = marked()
            supervisors = [pid for pid, parent in parents.items() if parent == os.getpid()]
            workers = sorted(parents.keys() - supervisors)
            kind = "supervisor" if self._rng.random() < 0.1 else "worker"
            if pids := supervisors if kind == "supervisor" else workers:
                try:
                    os.kill(self._rng.choice(pids), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.kills[kind] += 1

    def stop(self) -> None:
        """Kill no more."""
        self._is_over.set()
        self.join()


def marked() -> dict[int, int]:
    """Return the parent of each living process that the run started."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or folder.name == str(os.getpid()):
            continue
        try:
            if MARK.encode() not in (folder / "environ").read_bytes():
                continue
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended
            continue
        if state != "Z":
            found[int(folder.name)] = int(parent)
    return found


async def isolated_kills(
    codec: ChatCodec, *, episodes: int, concurrency: int, every_s: float
) -> dict[str, Any]:
    """Play episodes in worker processes while some are killed; return what was lost or left."""
    os.environ[MARK] = "1"
    killer, started = Killer(every_s), time.perf_counter()
    seen = Counter[str]()
    rss: list[float] = []
    kinds = Counter[str]()
    wrong = paid = untyped = 0
    descriptors = len(os.listdir("/proc/self/fd"))
    killer.start()
    try:
        async for one in collect(
            isolated(SlowCountEnv),
            ScriptedEngine(codec, lambda context: f"{context.turn + 1}"),
            codec,
            episodes=episodes,
            concurrency=concurrency,
            config=RolloutConfig(retries=BUDGET),
        ):
            seen[one.episode_id] += 1
            rss.append(memory_mb())
            if one.is_faulted:
                paid += is_paid_fault(one)
                untyped += one.fault is None
                kinds[str(one.fault.kind) if one.fault else "untyped"] += 1
            else:
                wrong += not is_rewarded(one, TURNS)
    finally:
        killer.stop()
    close_supervisors()
    deadline = time.monotonic() + _STOPPED_S
    while marked() and time.monotonic() < deadline:
        time.sleep(0.05)
    fifth = max(1, len(rss) // 5)
    settled, last = max(rss[fifth : 2 * fifth]), max(rss[-fifth:])
    return {
        "episodes": len(seen),
        "workers_killed": killer.kills["worker"],
        "supervisors_killed": killer.kills["supervisor"],
        "faulted": sum(kinds.values()),
        "fault_kinds": dict(kinds),
        "faults_untyped": untyped,
        "lost": episodes - len(seen),
        "doubled": sum(count > 1 for count in seen.values()),
        "faults_with_reward_or_mask": paid,
        "wrong_rewards": wrong,
        "processes_left": len(marked()),
        "descriptors_before": descriptors,
        "descriptors_after": len(os.listdir("/proc/self/fd")),
        "rss_settled_mb": settled,
        "rss_end_mb": last,
        "rss_growth": last / settled - 1,
        "seconds": time.perf_counter() - started,
    }
