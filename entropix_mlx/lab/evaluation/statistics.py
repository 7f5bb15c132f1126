"""Intervals, tests, and how well scores separate: NumPy and the standard library only.

Every function says where its formula is from; tests compare them with SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
CONFIDENCE = 0.95
"""The level of every interval."""
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
RESAMPLES = 10_000
"""Of a bootstrap."""
CURVE_RESAMPLES = 1000
"""Where each of them is sorted."""
_DRAWN_AT_ONCE = 2**21
"""Counts of answers in resamples, 16 MB of them."""


class Interval(NamedTuple):
    """Bounds at the level `CONFIDENCE`."""

    low: float
    high: float


def wilson(right: int, n: int) -> Interval:
    """Return Wilson's score interval of a share (J. Am. Stat. Assoc. 22, 1927)."""
    if not n:
        return Interval(0.0, 1.0)
    share = right / n
    scale = 1 + Z * Z / n
    middle = (share + Z * Z / (2 * n)) / scale
    half = Z / scale * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return the probability of at most `k` of `n` where each has the probability `p`."""
    if k >= n or p <= 0:
        return 1.0
    if k < 0 or p >= 1:
        return 0.0
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    taken = np.arange(k + 1)
    choose = log_factorials[n] - log_factorials[taken] - log_factorials[n - taken]
    logs = choose + taken * math.log(p) + (n - taken) * math.log1p(-p)
    return float(min(1.0, math.fsum(np.exp(logs))))


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the exact sign test; ties are left out beforehand.

    With one answer to a question it is McNemar's exact test: wins and losses are the questions that
    only one of two arms has right (Psychometrika 12, 1947).
    """
    n = wins + losses
    return min(1.0, 2 * binomial_cdf(min(wins, losses), n, 0.5)) if n else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for there being several (Scand. J. Stat. 6, 1979)."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, scaled))
    return [float(p) for p in adjusted]


def bootstrap_mean(values: Sequence[float]) -> Interval:
    """Return the percentile bootstrap interval of a mean; one value a question, resampled."""
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return Interval(math.nan, math.nan)
    # Differences take few values: how often each is drawn says all, and needs no index a question.
    distinct, counts = np.unique(data, return_counts=True)
    source = np.random.default_rng(0)
    drawn = source.multinomial(len(data), counts / len(data), size=RESAMPLES)
    low, high = np.quantile(
        drawn @ distinct / len(data), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    )
    return Interval(float(low), float(high))


class Auroc(NamedTuple):
    """The probability that a right answer scores higher than a wrong one, ties counting half."""

    value: float
    interval: Interval
    variance: float


def auroc(scores: Floats, right: Bools, less: Floats | None = None) -> Auroc:
    """Return the AUROC with DeLong's interval (Biometrics 44, 1988).

    The value is NaN where there are no right answers, or no wrong ones.

    Args:
        scores, right: of each answer.
        less: another score of the same answers, whose AUROC is taken from it; the interval is that
            of the paired difference.
    """
    m = int(right.sum())
    n = len(right) - m
    if not m or not n:
        return _UNKNOWN
    placed_positive, placed_negative = _placements(scores, right)
    if less is not None:
        other_positive, other_negative = _placements(less, right)
        placed_positive = placed_positive - other_positive
        placed_negative = placed_negative - other_negative
    value = float(placed_positive.mean())
    variance = _variance(placed_positive) / m + _variance(placed_negative) / n
    return _with_interval(value, variance, -1.0 if less is not None else 0.0)


def _placements(scores: Floats, right: Bools) -> tuple[Floats, Floats]:
    """Return the share of wrong answers that each right one beats, and of right ones that each
    wrong one loses to."""
    positive, negative = scores[right], scores[~right]
    ranks, among_positive, among_negative = map(_midranks, (scores, positive, negative))
    placed_positive = (ranks[right] - among_positive) / len(negative)
    return placed_positive, 1 - (ranks[~right] - among_negative) / len(positive)


def stratified_auroc(
    scores: Floats, right: Bools, strata: Sequence[Hashable], less: Floats | None = None
) -> Auroc:
    """Return the AUROC of pairs within a stratum: easy strata against hard ones do not count.

    It is the mean of the strata's own, each weighted with its number of pairs; `less` is as for
    `auroc`.
    """
    value = variance = pairs = 0.0
    kinds = np.array([str(stratum) for stratum in strata])
    for stratum in np.unique(kinds):
        within = kinds == stratum
        own = auroc(scores[within], right[within], None if less is None else less[within])
        if math.isnan(own.value):
            continue
        positives = int(right[within].sum())
        weight = positives * (int(within.sum()) - positives)
        value += weight * own.value
        variance += weight * weight * own.variance
        pairs += weight
    if not pairs:
        return _UNKNOWN
    return _with_interval(value / pairs, variance / pairs**2, -1.0 if less is not None else 0.0)


class Estimate(NamedTuple):
    """A number and its interval; NaN where it is unknown."""

    value: float
    interval: Interval


def rejection_ratio(scores: Floats, right: Bools) -> Estimate:
    """Return the prediction rejection ratio with its bootstrap interval (arXiv 2406.15627).

    It is the mean accuracy of the surest 1, 2, … n answers, where 0 is that of a random order and
    1 that of the best one; of answers with the same score it is the mean over their orders. NaN
    where all answers are right, or all are wrong.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    value = float(_ratios(np.ones((1, len(scores))), right[order], begins)[0])
    if math.isnan(value):
        return Estimate(math.nan, Interval(math.nan, math.nan))
    source = np.random.default_rng(0)
    shares = np.full(len(scores), 1 / len(scores))
    block = max(1, _DRAWN_AT_ONCE // len(scores))
    drawn = [
        _ratios(source.multinomial(len(scores), shares, size=size), right[order], begins)
        for size in [block] * (CURVE_RESAMPLES // block) + [CURVE_RESAMPLES % block]
    ]
    low, high = np.nanquantile(np.concatenate(drawn), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, Interval(float(low), float(high)))


def _ratios(counts: npt.NDArray[Any], right: Bools, begins: npt.NDArray[np.intp]) -> Floats:
    """Return the ratio of each sample, given how often it has each answer, `(samples, answers)`.

    Args:
        counts: the surest answers first.
        right: of each answer.
        begins: the first of each group of answers with the same score.
    """
    n = int(counts[0].sum())
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, n + 1)))
    size = np.add.reduceat(counts, begins, axis=1).astype(np.int64)
    hits = np.add.reduceat(counts * right, begins, axis=1)
    before, after = size.cumsum(axis=1) - size, size.cumsum(axis=1)
    share = hits / np.maximum(size, 1)
    # Behind `before` answers, of which c are right, the j-th of a group makes the accuracy
    # (c + j · share) / (before + j) = share + (c − before · share) / (before + j).
    ahead = hits.cumsum(axis=1) - hits - before * share
    total = (hits + ahead * (harmonic[after] - harmonic[before])).sum(axis=1)
    every = hits.sum(axis=1).astype(np.int64)  # in a random order, the accuracy is every / n
    best = every * (harmonic[n] - harmonic[every])
    ratios: Floats = np.full(len(total), math.nan)
    np.divide(total - every, best, out=ratios, where=best > 0)
    return ratios


class Curve(NamedTuple):
    """Risk over coverage: the answers with the highest scores are given, the others withheld."""

    coverage: Floats
    """Shares of answers that are given, ascending; one for each distinct score."""
    risk: Floats
    """The share of them that is wrong."""
    thresholds: Floats
    """The lowest score that is given."""

    @property
    def area(self) -> float:
        """The mean risk over all coverages, a lower one being better."""
        widths = np.diff(self.coverage, prepend=0.0)
        return float((widths * self.risk).sum())

    def accuracy_at(self, coverage: float) -> float:
        place = int(np.searchsorted(self.coverage, coverage - 1e-12))
        return float(1 - self.risk[min(place, len(self.risk) - 1)])


def risk_coverage(scores: Floats, right: Bools) -> Curve:
    """Return the risk–coverage curve of a score; answers of the same score are given together."""
    order = np.argsort(-scores, kind="stable")
    ordered, wrong = scores[order], (~right[order]).cumsum()
    given = np.arange(1, len(scores) + 1)
    ends = np.append(ordered[1:] != ordered[:-1], True) if len(scores) else np.zeros(0, bool)
    return Curve(given[ends] / max(1, len(scores)), wrong[ends] / given[ends], ordered[ends])


def _midranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _with_interval(value: float, variance: float, least: float) -> Auroc:
    half = Z * math.sqrt(variance)
    return Auroc(value, Interval(max(least, value - half), min(1.0, value + half)), variance)


_UNKNOWN = Auroc(math.nan, Interval(math.nan, math.nan), math.nan)
