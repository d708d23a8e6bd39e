"""Simulate how often the intervals of `envkit eval` contain the true mean.

Each trial draws tasks whose success probabilities follow a distribution with a known mean, plays
every task k times, and checks whether the interval contains that mean. A 95% interval should do so
in 95% of the trials. The other two columns show alternatives: resampling all samples as if those of
one task were independent, and plain percentiles.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from envkit.metrics.intervals import mean_interval

Rates = Callable[[np.random.Generator, int], NDArray[np.float64]]
_RESAMPLES: Final = 1000

TASKS: Final[dict[str, tuple[Rates, float]]] = {
    "all alike, 50%": (lambda rng, n: np.full(n, 0.5), 0.5),
    "all alike, 90%": (lambda rng, n: np.full(n, 0.9), 0.9),
    "easy or hard, 50%": (lambda rng, n: rng.beta(0.3, 0.3, n), 0.5),
    "mostly hard, 20%": (lambda rng, n: rng.beta(0.5, 2.0, n), 0.2),
}
"""Success probabilities and their mean."""


def coverage(rates: Rates, mean: float, *, tasks: int, samples: int, trials: int) -> dict[str, Any]:
    """Return the share of trials whose interval contained the mean, and the mean width."""
    rng = np.random.default_rng(2026)
    hits = dict.fromkeys(("envkit", "samples", "percentile"), 0)
    told, width = 0, 0.0
    for trial in range(trials):
        solved = rng.binomial(samples, rates(rng, tasks))
        found = mean_interval(
            (solved / samples).tolist(), is_share=True, resamples=_RESAMPLES, seed=trial
        )
        if found is not None:
            told += 1
            width += found.high - found.low
            hits["envkit"] += found.low <= mean <= found.high
        drawn = rng.binomial(tasks * samples, solved.mean() / samples, _RESAMPLES)
        hits["samples"] += _holds(drawn / (tasks * samples), mean)
        means = (solved / samples)[rng.integers(0, tasks, (_RESAMPLES, tasks))].mean(axis=1)
        hits["percentile"] += _holds(means, mean)
    return {
        "tasks": tasks,
        "samples": samples,
        "envkit": hits["envkit"] / max(1, told),
        "samples_alike": hits["samples"] / trials,
        "percentile": hits["percentile"] / trials,
        "width": width / max(1, told),
        "told": told / trials,
    }


def _holds(means: NDArray[np.float64], mean: float) -> bool:
    low, high = np.quantile(means, (0.025, 0.975))
    return bool(low <= mean <= high)


def main() -> None:
    """Simulate, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, (rates, mean) in TASKS.items():
        for tasks in (8, 16, 64, 256):
            for samples in (1, 8):
                row = coverage(rates, mean, tasks=tasks, samples=samples, trials=options.trials)
                figures.setdefault(name, []).append(row)
                print(
                    f"{name:18} {tasks:4} tasks x {samples}: envkit {row['envkit']:.3f} "
                    f"(width {row['width']:.3f}), percentiles {row['percentile']:.3f}, "
                    f"samples alike {row['samples_alike']:.3f}",
                    flush=True,
                )
    shares = [row["envkit"] for rows in figures.values() for row in rows]
    print(f"intervals: coverage {min(shares):.3f} to {max(shares):.3f} of 0.95")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
