"""Statistics of a stream of numbers in bounded memory."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

EXACT_VALUES: Final = 2048
"""Number of distinct values kept exactly; beyond that, buckets are 2% wide."""
_LOG_GROWTH: Final = math.log(1.02)
_TINY: Final = 1e-9
"""Magnitudes below this fall into the bucket of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of values between edges."""

    edges: tuple[float, ...]
    """Bin edges, one more than counts, ascending; the last bin includes its upper edge."""
    counts: tuple[int, ...]


class Moments:
    """Streaming count, total, extremes, mean and standard deviation."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._mean = 0.0
        self._squares = 0.0

    def extend(self, values: Iterable[float]) -> None:
        """Add numbers in their order."""
        count, total, mean, squares = self.count, self.total, self._mean, self._squares
        low, high = self.minimum, self.maximum
        for value in values:
            count += 1
            total += value
            if value < low:
                low = value
            if value > high:
                high = value
            step = value - mean  # Welford: sums of squares cancel badly
            mean += step / count
            squares += step * (value - mean)
        self.count, self.total, self._mean, self._squares = count, total, mean, squares
        self.minimum, self.maximum = low, high

    @property
    def mean(self) -> float:
        """Arithmetic mean; 0 without values."""
        return self.total / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """Population standard deviation (divided by the count); 0 without values."""
        return math.sqrt(max(0.0, self._squares) / self.count) if self.count else 0.0


class Distribution(Moments):
    """Moments plus percentiles and a histogram.

    Percentiles are exact for up to `EXACT_VALUES` distinct values (always the case for turn
    counts); beyond that they are within 1% of the value.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: Counter[float] = Counter()
        self._is_exact = True

    def extend(self, values: Iterable[float]) -> None:
        """Add numbers in their order; non-finite numbers are ignored."""
        finite = list(filter(math.isfinite, values))
        super().extend(finite)
        self._values.update(finite if self._is_exact else map(_bucket, finite))
        if self._is_exact and len(self._values) > EXACT_VALUES:
            self._coarsen()

    def percentile(self, percent: float) -> float:
        """Return the smallest value that at least `percent` of the values do not exceed.

        Args:
            percent: From 0 to 100.
        """
        rank = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for value in sorted(self._values):
            seen += self._values[value]
            if seen >= rank:
                return min(max(value, self.minimum), self.maximum)
        return 0.0

    def histogram(self, *, bins: int = 20) -> Histogram:
        """Return counts in bins of equal width; integers get one bin each if they fit."""
        if not self.count:
            return Histogram(edges=(0.0, 1.0), counts=(0,))
        edges = self._edges(bins)
        counts = [0] * (len(edges) - 1)
        low, width = edges[0], (edges[-1] - edges[0]) / len(counts)
        for value, number in self._values.items():
            index = int((value - low) / width)
            counts[min(max(index, 0), len(counts) - 1)] += number
        return Histogram(edges=tuple(edges), counts=tuple(counts))

    def _edges(self, bins: int) -> Sequence[float]:
        low, high = self.minimum, self.maximum
        whole = self._is_exact and all(float(value).is_integer() for value in self._values)
        if whole and high - low < bins:
            return [low - 0.5 + n for n in range(int(high - low) + 2)]
        if low == high:
            return [low - 0.5, high + 0.5]
        return [*(low + (high - low) * n / bins for n in range(bins)), high]

    def _coarsen(self) -> None:
        fine, self._values, self._is_exact = self._values, Counter(), False
        for value, number in fine.items():
            self._values[_bucket(value)] += number


def _bucket(value: float) -> float:
    """Return the middle of the value's bucket."""
    if abs(value) < _TINY:
        return 0.0
    index = math.floor(math.log(abs(value)) / _LOG_GROWTH)
    return math.copysign(_middle(index), value)


@lru_cache(4096)
def _middle(index: int) -> float:
    return math.exp((index + 0.5) * _LOG_GROWTH)
