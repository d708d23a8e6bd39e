"""What an episode that never branches costs, compared with another checkout of envkit.

Both checkouts play the same scripted episodes with the same libraries: ten turns of text, as
`benchmarks/loop.py` does, and ten turns with an image each (`canary-v0`). One process holds each
checkout. They take turns, a few episodes at a time, so that a busy machine slows both alike. Two
processes of one checkout differ by a few percent, so there are several pairs of processes. The
ratio of a pair is the median over its rounds; the figures are the median, lowest and highest pair.
Memory is what the trajectories of finished episodes hold, and the peak with all of them at once.

Without `--before` the other checkout is this one, which shows the noise.

    git worktree add --detach ../before 78a3ea1
    python benchmarks/linear.py --before ../before [--json FILE]
"""

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

from harness import run, sized

ROOT: Final = Path(__file__).parents[1]
WORKLOADS: Final = ("text", "images")
AT_ONCE: Final = 16
Play = Callable[[str, int, int], list[Any]]
"""Plays a workload: a number of episodes with a given concurrency."""


def serve() -> None:
    """Answer requests on standard input: "cpu" or "memory", a workload, and how many episodes."""
    play = player()
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


def compare(before: Worker, now: Worker, name: str, rounds: int, episodes: int) -> dict[str, Any]:
    """Return what a pair of processes measures for a workload."""
    count = episodes if name == "text" else episodes // 4
    spent: dict[Worker, list[float]] = {before: [], now: []}
    for worker in spent:
        worker.ask("cpu", name, count)  # warm up
    for number in range(rounds):
        for worker in (before, now) if number % 2 else (now, before):
            spent[worker].append(worker.ask("cpu", name, count))
    ratios = [b / a for a, b in zip(spent[before], spent[now], strict=True)]
    held = {
        key: worker.ask("memory", name, 5 * episodes // 2)
        for key, worker in (("a", before), ("b", now))
    }
    return {
        "before_us_per_turn": statistics.median(spent[before]),
        "now_us_per_turn": statistics.median(spent[now]),
        "cpu_ratio": statistics.median(ratios),
        "held_ratio": held["b"]["held_kb"] / held["a"]["held_kb"],
        "peak_ratio": held["b"]["peak_kb"] / held["a"]["peak_kb"],
    }


def summary(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of every figure over the pairs, and the range of the CPU time's ratio."""
    found: dict[str, Any] = {
        name: statistics.median(one[name] for one in pairs) for name in pairs[0]
    }
    ratios = [one["cpu_ratio"] for one in pairs]
    return {**found, "cpu_ratio_low": min(ratios), "cpu_ratio_high": max(ratios)}


def measure(before: Path, pairs: int, rounds: int, episodes: int) -> dict[str, Any]:
    """Return the figures of both checkouts by workload."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in WORKLOADS}
    for _ in range(pairs):
        then, now = Worker(before.resolve()), Worker(ROOT)
        for name, compared in found.items():
            compared.append(compare(then, now, name, rounds, episodes))
        then.close()
        now.close()
    return {name: summary(compared) for name, compared in found.items()}


if __name__ == "__main__":
    run(
        measure,
        before={"type": Path, "default": ROOT, "help": "the other checkout"},
        pairs=sized(5, 1, "pairs of processes"),
        rounds=sized(12, 1, "rounds per pair"),
        episodes=sized(40, 4, "text episodes per round"),
    )
