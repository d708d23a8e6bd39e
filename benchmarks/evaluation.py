"""Measure the overhead of `envkit eval` over `envkit rollout` on the same scripted episodes.

Both commands run alternately, each in its own process. The figure is the ratio of their CPU times,
including imports; CPU time varies less than wall time on a shared machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="canary-v0")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    shared = (options.env, "--policy", "oracle", "-n", str(options.episodes))
    rollouts: list[float] = []
    evals: list[float] = []
    for number in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            rollouts.append(cpu_seconds("rollout", *shared, "--out", f"{folder}/rollout"))
            evals.append(cpu_seconds("eval", *shared, "--out", f"{folder}/eval"))
        print(
            f"pair {number + 1}: rollout {rollouts[-1]:.1f} s, eval {evals[-1]:.1f} s", flush=True
        )
    ratio = statistics.median(b / a for a, b in zip(rollouts, evals, strict=True))
    print(f"eval: {ratio:.3f} of rollout's CPU time, {options.episodes} episodes of {options.env}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"rollout_s": rollouts, "eval_s": evals, "ratio": ratio}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
