"""Confidence intervals and tests for evaluations, with tasks as the sampling unit.

Samples of one task are not independent, so every interval resamples tasks, never samples. Axis:
P problems (tasks).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 4000
FEWEST: Final = 5
"""Minimum number of problems for resampling: with two, an interval would cover the true mean only
half of the time."""
_BLOCK: Final = 1 << 20
"""Number of values resampled at once: 8 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The bounds of a confidence interval."""

    low: float
    high: float


def mean_interval(
    values: Sequence[float],
    *,
    is_share: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Return the bootstrap interval of a mean over problems.

    The percentiles are those of Hesterberg's expanded interval (What Teachers Should Know About the
    Bootstrap, 2015). Plain percentiles are too narrow for few problems: by the factor
    sqrt((n - 1) / n), and because they use the normal quantile instead of Student's.

    Args:
        values: One per problem, (P,), in any order.
        is_share: Whether the values are success rates. If all are 0 or all are 1, resampling cannot
            vary them; the other bound is then the exact binomial bound.
        confidence: Share of such intervals that contain the true mean.
        resamples: Number of bootstrap resamples.
        seed: The same values and seed give the same interval.

    Returns:
        None for fewer than `FEWEST` problems, and for equal values that are not all 0 or 1 rates.
    """
    column = np.sort(np.asarray(values, dtype=np.float64))  # episodes finish in any order
    count = len(column)
    if not count:
        return None
    if (column == column[0]).all():
        return _binomial_bound(float(column[0]), count, confidence) if is_share else None
    if count < FEWEST:
        return None
    tail = _expanded_tail((1 - confidence) / 2, count)
    low, high = np.quantile(_resampled_means(column, resamples, seed), (tail, 1 - tail))
    return Interval(low=float(low), high=float(high))


def _resampled_means(column: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Return the mean of every resample, (resamples,), a block at a time."""
    rng = np.random.default_rng(seed)
    count = len(column)
    rows = max(1, _BLOCK // count)
    blocks = [
        column[rng.integers(0, count, size=(min(rows, resamples - start), count))].mean(axis=1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(blocks)


def _expanded_tail(tail: float, count: int) -> float:
    """Return the percentile to use instead of `tail` for this many problems."""
    quantile = _student_quantile(1 - tail, count - 1) * math.sqrt(count / (count - 1))
    return NormalDist().cdf(-quantile)


def _student_quantile(share: float, freedom: int) -> float:
    """Return a quantile of Student's distribution.

    The Cornish-Fisher expansion of Abramowitz and Stegun, 26.7.5, is within 1% for at least 4
    degrees of freedom.
    """
    z, v = NormalDist().inv_cdf(share), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def _binomial_bound(value: float, count: int, confidence: float) -> Interval | None:
    """Return the exact (Clopper-Pearson) interval of a share that is 0 or 1."""
    reach = ((1 - confidence) / 2) ** (1 / count)
    if value == 1.0:
        return Interval(low=reach, high=1.0)
    return Interval(low=0.0, high=1 - reach) if value == 0.0 else None


def wilson_interval(solved: int, samples: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's score interval of one task's solve rate.

    Args:
        solved: Successes.
        samples: Trials; without any the interval is 0 to 1.
        confidence: Share of such intervals that contain the true rate.
    """
    if not samples:
        return Interval(low=0.0, high=1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, weight = solved / samples, z * z / samples
    middle = rate + weight / 2
    spread = z * math.sqrt(rate * (1 - rate) / samples + weight / (4 * samples))
    # With no or all successes one bound is exact; rounding must not move it.
    low = 0.0 if solved == 0 else max(0.0, (middle - spread) / (1 + weight))
    high = 1.0 if solved == samples else min(1.0, (middle + spread) / (1 + weight))
    return Interval(low=low, high=high)


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Return the probability that at least one of `k` samples solves a task.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al., Evaluating Large Language
    Models Trained on Code (2021), as a product that cannot overflow.

    Args:
        samples: Number drawn, n >= k.
        solved: Number that solved the task, c.
        k: At least 1.
    """
    if samples - solved < k:
        return 1.0
    missed = 1.0
    for number in range(samples - solved + 1, samples + 1):
        missed *= 1 - k / number
    return 1.0 - missed


def exact_p_value(better: int, worse: int) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        better: Pairs that only the second side solved.
        worse: Pairs that only the first side solved.

    Returns:
        The probability of a split at least as uneven if both directions were equally likely; 1.0
        without any such pair.
    """
    count, fewer = better + worse, min(better, worse)
    tail = sum(math.comb(count, n) for n in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**count))
