"""Simulate how often the intervals of `envkit eval` contain the true mean.

Each trial draws tasks whose success probabilities follow a distribution with a known mean, plays
every task k times, and checks whether the interval contains that mean. A 95% interval should do so
in 95% of the trials. Mean rewards that are not shares follow.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from harness import quiet, run, sized
from numpy.typing import NDArray

from envkit.metrics.intervals import mean_interval, share_interval

Rates = Callable[[np.random.Generator, int], NDArray[np.float64]]
_RESAMPLES: Final = 1000

TASKS: Final[dict[str, tuple[Rates, float]]] = {
    **{
        f"all {rate:.0%}": (lambda rng, n, rate=rate: np.full(n, rate), rate)
        for rate in (0.01, 0.02, 0.05, 0.1, 0.5, 0.9, 0.99)
    },
    **{
        f"spread, {rate:.0%}": (lambda rng, n, rate=rate: rng.beta(rate, 1 - rate, n), rate)
        for rate in (0.01, 0.05, 0.1, 0.5, 0.9, 0.99)
    },
}
"""Success probabilities and their mean."""
REWARDS: Final[dict[str, tuple[Rates, float]]] = {
    "0 to 1, even": (lambda rng, n: rng.uniform(0, 1, n), 0.5),
    "0, or 2 in one of ten": (lambda rng, n: rng.binomial(1, 0.1, n) * np.float64(2.0), 0.2),
    "exponential": (lambda rng, n: rng.exponential(1.0, n), 1.0),
}
"""Rewards of tasks that are not shares, and their mean."""


def coverage(rates: Rates, mean: float, *, tasks: int, samples: int, trials: int) -> dict[str, Any]:
    """Return the share of trials whose interval contained the mean, and the mean width."""
    rng = np.random.default_rng(2026)
    told, hits, width = 0, 0, 0.0
    for _ in range(trials):
        solved = rng.binomial(samples, rates(rng, tasks))
        found = share_interval((solved / samples).tolist(), samples=tasks * samples)
        if found is not None:
            told += 1
            width += found.high - found.low
            hits += found.low <= mean <= found.high
    return {
        "tasks": tasks,
        "samples": samples,
        "envkit": hits / max(1, told),
        "width": width / max(1, told),
        "told": told / trials,
    }


def reward_coverage(rewards: Rates, mean: float, *, tasks: int, trials: int) -> dict[str, Any]:
    """Return the share of trials whose interval of the mean reward contained the mean."""
    rng = np.random.default_rng(2026)
    told = hits = 0
    for trial in range(trials):
        values = rewards(rng, tasks).tolist()
        found = mean_interval(values, resamples=_RESAMPLES, seed=trial)
        told += found is not None
        hits += found is not None and found.low <= mean <= found.high
    return {"tasks": tasks, "envkit": hits / max(1, told), "told": told / trials}


def measure(trials: int) -> dict[str, Any]:
    """Return the coverage of each kind of tasks."""
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, (rates, mean) in TASKS.items():
        for tasks in (8, 16, 64, 256):
            for samples in (1, 8):
                row = coverage(rates, mean, tasks=tasks, samples=samples, trials=trials)
                figures.setdefault(name, []).append(row)
                print(
                    f"{name:18} {tasks:4} tasks x {samples}: envkit {row['envkit']:.3f} "
                    f"(width {row['width']:.3f})",
                    flush=True,
                )
    for name, (rewards, mean) in REWARDS.items():
        for tasks in (8, 16, 64, 256):
            row = reward_coverage(rewards, mean, tasks=tasks, trials=trials)
            figures.setdefault(f"reward {name}", []).append(row)
            print(f"reward {name:22} {tasks:4} tasks: envkit {row['envkit']:.3f}", flush=True)
    shares = [row["envkit"] for rows in figures.values() for row in rows]
    print(f"intervals: coverage {min(shares):.3f} to {max(shares):.3f} of 0.95")
    return {**figures, "lowest": min(shares), "highest": max(shares)}


if __name__ == "__main__":
    run(measure, show=quiet, trials=sized(1000, 5))
