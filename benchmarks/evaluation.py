"""Measure the overhead of `envkit eval` over `envkit rollout` on the same scripted episodes.

Both commands run alternately, each in its own process. The figure is the ratio of their CPU times,
including imports; CPU time varies less than wall time on a shared machine.
"""

import resource
import statistics
import subprocess
import tempfile
from typing import Any

from harness import COMMAND, run, sized


def cpu_seconds(*arguments: str) -> float:
    """Return the CPU time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*COMMAND, *arguments, "-q"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(env: str, episodes: int, pairs: int) -> dict[str, Any]:
    """Return the median seconds of both commands, and the median ratio of a pair."""
    shared = (env, "--policy", "oracle", "-n", str(episodes))
    rollouts: list[float] = []
    evals: list[float] = []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            rollouts.append(cpu_seconds("rollout", *shared, "--out", f"{folder}/rollout"))
            evals.append(cpu_seconds("eval", *shared, "--out", f"{folder}/eval"))
    ratio = statistics.median(b / a for a, b in zip(rollouts, evals, strict=True))
    return {
        "rollout_s": statistics.median(rollouts),
        "eval_s": statistics.median(evals),
        "ratio": ratio,
    }


if __name__ == "__main__":
    run(measure, env="canary-v0", episodes=sized(1000, 4), pairs=sized(3, 1))
