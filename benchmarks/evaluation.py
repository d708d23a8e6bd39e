"""Measure the overhead of `envkit eval` over `envkit rollout` on the same scripted episodes.

Both commands run alternately, each in its own process. The figure is the ratio of their CPU times,
including imports; CPU time varies less than wall time on a shared machine.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import run

ROOT = Path(__file__).parents[1]


def cpu_seconds(*arguments: str) -> float:
    """Return the CPU time of a command."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("", "envs", "adapters"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "from envkit.cli import main; main()", *arguments, "-q"],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(env: str, episodes: int, pairs: int) -> dict[str, Any]:
    """Return the seconds of both commands in each pair, and their median ratio."""
    shared = (env, "--policy", "oracle", "-n", str(episodes))
    rollouts: list[float] = []
    evals: list[float] = []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            rollouts.append(cpu_seconds("rollout", *shared, "--out", f"{folder}/rollout"))
            evals.append(cpu_seconds("eval", *shared, "--out", f"{folder}/eval"))
    ratio = statistics.median(b / a for a, b in zip(rollouts, evals, strict=True))
    return {"rollout_s": rollouts, "eval_s": evals, "ratio": ratio}


if __name__ == "__main__":
    run(measure, env="canary-v0", episodes=1000, pairs=3)
