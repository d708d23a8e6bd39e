"""What an episode that never branches costs, compared with another checkout of envkit.

Both checkouts play the same scripted episodes with the same libraries: ten turns of text, as
`benchmarks/loop.py` does, and ten turns with an image each (`canary-v0`). One process holds each
checkout. They take turns, a few episodes at a time, so that a busy machine slows both alike. The
ratio is the median over pairs of the CPU time, with a 95% interval of that median by resampling.
Memory is what the trajectories of finished episodes hold, and the peak with all of them at once.

    git worktree add --detach ../before 78a3ea1
    python benchmarks/linear.py --before ../before [--json FILE]
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).parents[1]
WORKLOADS: Final = ("text", "images")
AT_ONCE: Final = 16
Play = Callable[[str, int, int], list[Any]]
"""Plays a workload: a number of episodes with a given concurrency."""


def serve() -> None:
    """Answer requests on standard input: "cpu" or "memory", a workload, and how many episodes."""
    play = player()
    for name in WORKLOADS:
        play(name, 20, AT_ONCE)
    sys.stdout.write(json.dumps("ready") + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        measure, name, episodes = json.loads(line)
        answer = {"cpu": cpu, "memory": memory}[measure](play, name, episodes)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def player() -> Play:
    """Return a function that plays episodes of a workload with the checkout on the path."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from loop import Instant, reply

    import envkit
    from envkit.rollout import RolloutConfig, ScriptedEngine, collect
    from envkit.tokens import load_codec
    from envkit_transformers import builtin_model_dir

    config = RolloutConfig(sanity="off")
    codecs = {
        "text": load_codec(builtin_model_dir("builtin-text")),
        "images": load_codec(builtin_model_dir()),
    }
    makes: dict[str, Callable[[], Any]] = {
        "text": Instant,
        "images": lambda: envkit.make("canary-v0", turns=10),
    }

    def play(name: str, episodes: int, at_once: int) -> list[Any]:
        async def run() -> list[Any]:
            codec = codecs[name]
            found = collect(
                makes[name],
                ScriptedEngine(codec, reply),
                codec,
                episodes=episodes,
                concurrency=at_once,
                config=config,
            )
            return [one async for one in found]

        return asyncio.run(run())

    return play


def cpu(play: Play, name: str, episodes: int) -> float:
    """Return microseconds of CPU time per turn, rows included."""
    gc.collect()
    started = time.process_time()
    played = play(name, episodes, AT_ONCE)
    for one in played:
        one.steps(merge=True)
    spent = time.process_time() - started
    return spent / sum(len(one.turns) for one in played) * 1e6


def memory(play: Play, name: str, episodes: int) -> dict[str, float]:
    """Return kilobytes per episode: held by the finished trajectories, and at the peak."""
    gc.collect()
    tracemalloc.start()
    try:
        played = play(name, episodes, episodes)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {"held_kb": held / len(played) / 1e3, "peak_kb": peak / len(played) / 1e3}


class Worker:
    """A process that plays with one checkout."""

    def __init__(self, checkout: Path) -> None:
        paths = [checkout, checkout / "adapters", checkout / "envs"]
        setup = f"import sys; sys.path[:0] = {[str(one) for one in paths]!r}; "
        run = f"sys.argv = [{__file__!r}]; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{setup}{run}import linear; linear.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._read()

    def ask(self, *request: Any) -> Any:  # noqa: ANN401  # JSON of any shape
        """Return the answer to a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read(self) -> Any:  # noqa: ANN401  # JSON of any shape
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def compare(before: Worker, now: Worker, name: str, rounds: int) -> dict[str, Any]:
    """Return the figures of a workload."""
    episodes = 40 if name == "text" else 10
    pairs = list[tuple[float, float]]()
    for number in range(rounds):
        order = (before, now) if number % 2 else (now, before)
        spent = {worker: worker.ask("cpu", name, episodes) for worker in order}
        pairs.append((spent[before], spent[now]))
    ratios = np.array([b / a for a, b in pairs])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    held = {key: worker.ask("memory", name, 100) for key, worker in (("a", before), ("b", now))}
    return {
        "rounds": rounds,
        "before_us_per_turn": statistics.median(a for a, _ in pairs),
        "now_us_per_turn": statistics.median(b for _, b in pairs),
        "cpu_ratio": float(np.median(ratios)),
        "cpu_ratio_low": float(low),
        "cpu_ratio_high": float(high),
        "best_ratio": min(b for _, b in pairs) / min(a for a, _ in pairs),
        "before": held["a"],
        "now": held["b"],
        "held_ratio": held["b"]["held_kb"] / held["a"]["held_kb"],
        "peak_ratio": held["b"]["peak_kb"] / held["a"]["peak_kb"],
    }


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    before, now = Worker(options.before.resolve()), Worker(ROOT)
    figures = {name: compare(before, now, name, options.rounds) for name in WORKLOADS}
    before.close()
    now.close()
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
