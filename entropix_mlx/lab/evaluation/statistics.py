"""Intervals and tests for shares: NumPy and the standard library only.

Every function says where its formula is from; tests compare them with SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LEVEL = 0.95
"""Of every interval, unless the caller says otherwise."""
RESAMPLES = 10_000
"""Of a bootstrap, unless the caller says otherwise."""
_BISECTIONS = 60


class Interval(NamedTuple):
    """Bounds between which a value lies, at the level that was asked for."""

    low: float
    high: float


def wilson(right: int, n: int, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval of a share (J. Am. Stat. Assoc. 22, 1927)."""
    if not n:
        return Interval(0.0, 1.0)
    z = normal_quantile(level)
    share = right / n
    scale = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def clopper_pearson_upper(errors: int, n: int, level: float) -> float:
    """Return the exact upper bound of a share that holds with a probability of `level`.

    It is the share p at which so few errors have a probability of 1 − `level`
    (Biometrika 26, 1934).
    """
    if errors >= n:
        return 1.0
    low, high = errors / n, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(errors, n, middle) > 1 - level else (low, middle)
    return high


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return the probability of at most `k` of `n` where each has the probability `p`."""
    if k >= n or p <= 0:
        return 1.0
    if k < 0 or p >= 1:
        return 0.0
    taken = np.arange(k + 1)
    logs = _log_choose(n)[: k + 1] + taken * math.log(p) + (n - taken) * math.log1p(-p)
    return float(min(1.0, math.fsum(np.exp(logs))))


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the exact sign test; ties are left out beforehand.

    With one answer to a question it is McNemar's exact test: wins and losses are the questions that
    only one of two arms has right (Psychometrika 12, 1947).
    """
    n = wins + losses
    if not n:
        return 1.0
    tail = binomial_cdf(min(wins, losses), n, 0.5)
    return min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for there being several (Scand. J. Stat. 6, 1979)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def bootstrap_mean(
    values: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap interval of a mean.

    Args:
        values: one a question, such as the difference between two arms: questions are resampled.
        level: of the interval.
        resamples: how often.
        seed: of the resampling.
    """
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return Interval(math.nan, math.nan)
    # Differences take few values: how often each is drawn says all, and needs no index a question.
    distinct, counts = np.unique(data, return_counts=True)
    source = np.random.default_rng(seed)
    drawn = source.multinomial(len(data), counts / len(data), size=resamples)
    low, high = np.quantile(drawn @ distinct / len(data), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def wasserstein(first: Sequence[float], second: Sequence[float]) -> float:
    """Return how far one sample's values must be moved on average to become the other's.

    It is the area between the two distribution functions (Vallender, Theory Probab. Appl. 18,
    1974), in the unit of the values; NaN where a sample is empty.
    """
    if not len(first) or not len(second):
        return math.nan
    ours, theirs = np.sort(np.asarray(first)), np.sort(np.asarray(second))
    values = np.sort(np.concatenate([ours, theirs]))
    gap = np.searchsorted(ours, values[:-1], "right") / len(ours)
    gap -= np.searchsorted(theirs, values[:-1], "right") / len(theirs)
    return float(np.abs(gap) @ np.diff(values))


def normal_quantile(level: float) -> float:
    """Return z such that a standard normal value lies in ±z with the probability `level`."""
    return NormalDist().inv_cdf((1 + level) / 2)


def _log_choose(n: int) -> Floats:
    """Return the logarithms of all binomial coefficients of `n`."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    chosen: Floats = logs[n] - logs - logs[::-1]
    return chosen
