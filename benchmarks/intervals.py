"""Simulate how often the intervals of `envkit eval` contain the true mean.

Each trial draws tasks whose success probabilities follow a distribution with a known mean, plays
every task k times, and checks whether the interval contains that mean. A 95% interval should do so
in 95% of the trials. Mean rewards that are not shares follow.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
from harness import run, sized
from numpy.typing import NDArray

from envkit.metrics.intervals import Interval, mean_interval, share_interval

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


def coverage(found: Iterable[Interval | None], mean: float) -> dict[str, float]:
    """Return the share of intervals that contain the mean, of all that were told, and the width."""
    trials = [*found]
    told = [one for one in trials if one is not None]
    return {
        "envkit": sum(one.low <= mean <= one.high for one in told) / max(1, len(told)),
        "width": sum(one.high - one.low for one in told) / max(1, len(told)),
        "told": len(told) / len(trials),
    }


def of_shares(rates: Rates, tasks: int, samples: int, trials: int) -> Iterator[Interval | None]:
    """Yield the interval of each trial that plays every task some times."""
    rng = np.random.default_rng(2026)
    for _ in range(trials):
        solved = rng.binomial(samples, rates(rng, tasks))
        yield share_interval((solved / samples).tolist(), samples=tasks * samples)


def of_rewards(rewards: Rates, tasks: int, trials: int) -> Iterator[Interval | None]:
    """Yield the interval of each trial's mean reward."""
    rng = np.random.default_rng(2026)
    for trial in range(trials):
        yield mean_interval(rewards(rng, tasks).tolist(), resamples=_RESAMPLES, seed=trial)


def measure(trials: int) -> dict[str, Any]:
    """Return the coverage of each kind of tasks, and its lowest and highest."""
    figures: dict[str, dict[str, float]] = {}
    for tasks in (8, 16, 64, 256):
        for name, (rates, mean) in TASKS.items():
            for samples in (1, 8):
                found = of_shares(rates, tasks, samples, trials)
                figures[f"{name}, {tasks} tasks x {samples}"] = coverage(found, mean)
        for name, (rewards, mean) in REWARDS.items():
            found = of_rewards(rewards, tasks, trials)
            figures[f"reward {name}, {tasks} tasks"] = coverage(found, mean)
    shares = [row["envkit"] for row in figures.values()]
    return {**figures, "lowest": min(shares), "highest": max(shares)}


if __name__ == "__main__":
    run(measure, trials=sized(1000, 5))
