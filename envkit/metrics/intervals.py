"""Confidence intervals and tests for evaluations, with tasks as the sampling unit.

Samples of one task are not independent, so every interval is about tasks, never about samples.
Axis: P problems (tasks).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envkit.seeds import checked_seed

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 4000
FEWEST: Final = 5
"""Minimum number of problems for resampling, and for shares between 0 and 1: with two, an interval
would cover the true mean only half of the time."""
RESAMPLED: Final = 10_000
"""Maximum number of problems to resample; more take seconds, and the limit is known."""
_MAX_SKEW: Final = 0.1
"""Maximum skewness of a resample's mean for its expansion; its square bounds the kurtosis. What the
expansion leaves out then is below 0.1% of the width; 4,000 resamples have an error of 1%."""
_BLOCK: Final = 1 << 20
"""Number of values resampled at once: 8 MiB."""
_TERMS: Final = 400
"""Limit of a continued fraction that needs about the square root of its larger parameter."""
_TINY: Final = 1e-300
"""Stands for 0 where it is divided by."""


class Method(StrEnum):
    """How an interval was computed."""

    CLOPPER_PEARSON = "Clopper-Pearson"
    """Exact for shares whose values are 0 or 1."""
    KORN_GRAUBARD = "Korn-Graubard"
    """Clopper-Pearson with the effective number of samples, for shares of several samples."""
    BOOTSTRAP = "bootstrap"
    """Expanded percentiles of resampled tasks, for means of any other values."""
    CORNISH_FISHER = "Cornish-Fisher"
    """The same percentiles by their expansion, for so many tasks that resampling takes long."""
    WILSON = "Wilson"
    """The score interval of one task's rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The bounds of a confidence interval."""

    low: float
    high: float
    method: Method


def share_interval(
    values: Sequence[float], *, samples: int | None = None, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the interval of a mean of shares, such as success rates or pass@k.

    Values of 0 and 1 get the exact interval of Clopper and Pearson (1934), which contains the true
    share at least as often as it says. Others get that of Korn and Graubard (Confidence Intervals
    for Proportions with Small Expected Number of Positive Counts, 1998): the same with the number
    of independent samples that has the observed variance between tasks.

    Args:
        values: One per problem, (P,), from 0 to 1.
        samples: Samples of all problems, which bound the effective number; None for one each.
        confidence: Share of such intervals that contain the true mean.

    Returns:
        None without problems, and for fewer than `FEWEST` with values between 0 and 1.
    """
    count = len(values)
    if not count:
        return None
    tail, total = (1 - confidence) / 2, math.fsum(values)
    if all(value in (0.0, 1.0) for value in values):
        low, high = _exact_bounds(total, count, tail)
        return Interval(low=low, high=high, method=Method.CLOPPER_PEARSON)
    if count < FEWEST:
        return None
    share = total / count
    variance = math.fsum((value - share) ** 2 for value in values) / (count - 1) / count
    most = float(max(samples or count, count))
    trials = most if variance == 0 else min(most, share * (1 - share) / variance)
    # Few tasks say little about the variance itself.
    trials *= (
        _student_quantile(1 - tail, max(most - 1, 4)) / _student_quantile(1 - tail, count - 1)
    ) ** 2
    low, high = _exact_bounds(share * trials, trials, tail)
    return Interval(low=low, high=high, method=Method.KORN_GRAUBARD)


def mean_interval(
    values: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Return the bootstrap interval of a mean over problems.

    The percentiles are those of Hesterberg's expanded interval (What Teachers Should Know About the
    Bootstrap, 2015). Plain percentiles are too narrow for few problems: by the factor
    sqrt((n - 1) / n), and because they use the normal quantile instead of Student's.

    Resampling draws these percentiles. Above `RESAMPLED` problems they are computed instead, by the
    expansion of Cornish and Fisher up to the skewness (Hall, The Bootstrap and Edgeworth Expansion,
    1992, section 2.5), unless the mean is still too skewed for that.

    Args:
        values: One per problem, (P,), in any order.
        confidence: Share of such intervals that contain the true mean.
        resamples: Number of bootstrap resamples.
        seed: The same values and seed give the same interval.

    Returns:
        None for fewer than `FEWEST` problems, and for equal values, which resampling cannot vary.

    Raises:
        ConfigurationError: The seed is not an integer of at least 0.
    """
    seed = checked_seed(seed)
    column = np.sort(np.asarray(values, dtype=np.float64))  # episodes finish in any order
    count = len(column)
    if count < FEWEST or (column == column[0]).all():
        return None
    tail = _expanded_tail((1 - confidence) / 2, count)
    if count > RESAMPLED and (found := _expansion(column, tail)) is not None:
        return Interval(low=found[0], high=found[1], method=Method.CORNISH_FISHER)
    low, high = np.quantile(_resampled_means(column, resamples, seed), (tail, 1 - tail))
    return Interval(low=float(low), high=float(high), method=Method.BOOTSTRAP)


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


def _expansion(column: NDArray[np.float64], tail: float) -> tuple[float, float] | None:
    """Return two percentiles of a resample's mean; None if it is not nearly normal."""
    count = len(column)
    with np.errstate(all="ignore"):  # a result that is not finite is none
        mean = column.mean()
        steps = column - mean
        error = np.sqrt((steps**2).mean() / count)
        skew = float((steps**3).mean() / count**2 / error**3)
        kurtosis = float((steps**4).mean() / count**3 / error**4)
    if not (abs(skew) <= _MAX_SKEW and kurtosis <= _MAX_SKEW**2):
        return None
    z = NormalDist().inv_cdf(1 - tail)
    shift = skew * (z * z - 1) / 6
    return float(mean + error * (shift - z)), float(mean + error * (shift + z))


def _expanded_tail(tail: float, count: int) -> float:
    """Return the percentile to use instead of `tail` for this many problems."""
    quantile = _student_quantile(1 - tail, count - 1) * math.sqrt(count / (count - 1))
    return NormalDist().cdf(-quantile)


def _student_quantile(share: float, freedom: float) -> float:
    """Return a quantile of Student's distribution.

    The Cornish-Fisher expansion of Abramowitz and Stegun, 26.7.5, is within 1% for at least 4
    degrees of freedom.
    """
    z, v = NormalDist().inv_cdf(share), freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def _exact_bounds(solved: float, count: float, tail: float) -> tuple[float, float]:
    """Return Clopper and Pearson's bounds of a share; the counts need not be whole."""
    failed = count - solved
    low = 0.0 if solved <= 0 else _beta_quantile(tail, solved, failed + 1)
    high = 1.0 if failed <= 0 else _beta_quantile(1 - tail, solved + 1, failed)
    return low, high


def _beta_quantile(share: float, a: float, b: float) -> float:
    """Return a quantile of the beta distribution, by bisection."""
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if _beta_share(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return middle


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function.

    The continued fraction is that of the Digital Library of Mathematical Functions, 8.17.22, by
    Lentz's method.
    """
    if x > (a + 1) / (a + b + 2):  # it converges fast below
        return 1 - _beta_share(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x or _TINY)
        + b * math.log1p(-x)
    )
    fraction, c, d = 1.0, 1.0, 0.0
    for n in range(1, _TERMS + int(math.sqrt(max(a, b)))):
        m = n // 2
        above = -(a + m) * (a + b + m) if n % 2 else m * (b - m)
        term = above * x / ((a + n - 1) * (a + n))
        d = 1 / ((1 + term * d) or _TINY)
        c = (1 + term / c) or _TINY
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front / (a * fraction)


def wilson_interval(solved: int, samples: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's score interval of one task's solve rate.

    Args:
        solved: Successes.
        samples: Trials; without any the interval is 0 to 1.
        confidence: Share of such intervals that contain the true rate.
    """
    if not samples:
        return Interval(low=0.0, high=1.0, method=Method.WILSON)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, weight = solved / samples, z * z / samples
    middle = rate + weight / 2
    spread = z * math.sqrt(rate * (1 - rate) / samples + weight / (4 * samples))
    # With no or all successes one bound is exact; rounding must not move it.
    low = 0.0 if solved == 0 else max(0.0, (middle - spread) / (1 + weight))
    high = 1.0 if solved == samples else min(1.0, (middle + spread) / (1 + weight))
    return Interval(low=low, high=high, method=Method.WILSON)


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


def pass_all_k(samples: int, solved: int, k: int) -> float:
    """Return the probability that all of `k` samples solve a task, known as pass^k.

    The unbiased estimator C(c, k) / C(n, k) of Yao et al., tau-bench (2024).

    Args:
        samples: Number drawn, n >= k.
        solved: Number that solved the task, c.
        k: At least 1.
    """
    return 1.0 - pass_at_k(samples, samples - solved, k)


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
