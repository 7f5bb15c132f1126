"""Intervals and how well scores separate right from wrong; SciPy's where it has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import EntropixError

try:
    from scipy import stats
except ImportError as error:
    raise EntropixError("evaluations need SciPy: pip install '.[eval]' in the clone") from error

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
RESAMPLES = 5_000
RANK_RESAMPLES = 500
"""Where each resample is sorted."""


class Interval(NamedTuple):
    """Bounds at 95 %; NaN where too few values are known."""

    low: float
    high: float


UNKNOWN = Interval(math.nan, math.nan)


def wilson(right: int, n: int) -> Interval:
    """Return Wilson's score interval of a share."""
    if not n:
        return Interval(0.0, 1.0)
    found = stats.binomtest(right, n).proportion_ci(method="wilson")
    return Interval(float(found.low), float(found.high))


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the exact sign test, which is McNemar's for two arms."""
    n = wins + losses
    return float(stats.binomtest(wins, n).pvalue) if n else 1.0


def bootstrap_mean(values: Sequence[float]) -> Interval:
    """Return the percentile bootstrap interval of a mean; one value a question."""
    return _bootstrap([np.asarray(values, dtype=np.float64)], np.mean, RESAMPLES)


class Auroc(NamedTuple):
    """The probability that a right answer scores higher than a wrong one, ties counting half."""

    value: float
    interval: Interval


def auroc(scores: Floats, right: Bools) -> Auroc:
    """Return the AUROC; NaN where there are no right answers, or no wrong ones."""
    positive, negative = scores[right], scores[~right]
    if not len(positive) or not len(negative):
        return Auroc(math.nan, UNKNOWN)
    interval = _bootstrap([positive, negative], _area, RANK_RESAMPLES)
    return Auroc(float(_area(positive, negative)), interval)


def auroc_within(scores: Floats, right: Bools, levels: Sequence[str]) -> float:
    """Return the AUROC over pairs of the same level: easy ones against hard ones do not count."""
    total = pairs = 0.0
    names = np.array(levels)
    for level in np.unique(names):
        positive, negative = scores[right & (names == level)], scores[~right & (names == level)]
        weight = len(positive) * len(negative)
        if weight:
            total += weight * float(_area(positive, negative))
            pairs += weight
    return total / pairs if pairs else math.nan


def _area(positive: Floats, negative: Floats, axis: int = -1) -> Floats:
    """Return Mann and Whitney's U as a share of all pairs."""
    count, others = positive.shape[axis], negative.shape[axis]
    ranks = stats.rankdata(np.concatenate([positive, negative], axis=axis), axis=axis)
    own = np.take(ranks, range(count), axis=axis).sum(axis=axis)
    area: Floats = (own - count * (count + 1) / 2) / (count * others)
    return area


def _bootstrap(samples: Sequence[Floats], statistic: Callable[..., Floats], n: int) -> Interval:
    if min(map(len, samples)) < 2:
        return UNKNOWN
    found = stats.bootstrap(
        tuple(samples), statistic, n_resamples=n, method="percentile", vectorized=True, rng=0
    ).confidence_interval
    return Interval(float(found.low), float(found.high))
