"""How well a score tells right answers from wrong ones: AUROC, and risk against coverage."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .statistics import LEVEL, Floats, Interval, normal_quantile

Bools = npt.NDArray[np.bool_]


class Auroc(NamedTuple):
    """The probability that a right answer scores higher than a wrong one, ties counting half."""

    value: float
    interval: Interval
    variance: float


def auroc(scores: Floats, right: Bools, level: float = LEVEL) -> Auroc:
    """Return the AUROC with DeLong's interval (Biometrics 44, 1988).

    The value is NaN where there are no right answers, or no wrong ones.
    """
    positive, negative = scores[right], scores[~right]
    m, n = len(positive), len(negative)
    if not m or not n:
        return Auroc(math.nan, Interval(math.nan, math.nan), math.nan)
    ranks, among_positive, among_negative = map(midranks, (scores, positive, negative))
    # Placements: the share of the other kind that each answer beats.
    placed_positive = (ranks[right] - among_positive) / n
    placed_negative = 1 - (ranks[~right] - among_negative) / m
    value = float(placed_positive.mean())
    variance = _variance(placed_positive) / m + _variance(placed_negative) / n
    return _with_interval(value, variance, level)


def stratified_auroc(
    scores: Floats, right: Bools, strata: Sequence[Hashable], level: float = LEVEL
) -> Auroc:
    """Return the AUROC of pairs within a stratum: easy strata against hard ones do not count.

    It is the mean of the strata's own, each weighted with its number of pairs.
    """
    value = variance = pairs = 0.0
    kinds = np.array([str(stratum) for stratum in strata])
    for stratum in np.unique(kinds):
        within = kinds == stratum
        own = auroc(scores[within], right[within], level)
        if math.isnan(own.value):
            continue
        positives = int(right[within].sum())
        weight = positives * (int(within.sum()) - positives)
        value += weight * own.value
        variance += weight * weight * own.variance
        pairs += weight
    if not pairs:
        return Auroc(math.nan, Interval(math.nan, math.nan), math.nan)
    return _with_interval(value / pairs, variance / pairs**2, level)


def midranks(values: Floats) -> Floats:
    """Return the ranks of some values from 1; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


class Curve(NamedTuple):
    """What happens when the answers with the highest scores are given, and the others withheld."""

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
        """Return the accuracy of the least share of answers that reaches a coverage."""
        place = int(np.searchsorted(self.coverage, coverage - 1e-12))
        return float(1 - self.risk[min(place, len(self.risk) - 1)])

    def coverage_at(self, risk: float) -> float:
        """Return the highest coverage whose risk is at most `risk`; 0 if there is none."""
        fitting = self.coverage[self.risk <= risk]
        return float(fitting.max()) if len(fitting) else 0.0


def risk_coverage(scores: Floats, right: Bools) -> Curve:
    """Return the risk–coverage curve of a score; answers of the same score are given together."""
    order = np.argsort(-scores, kind="stable")
    ordered, wrong = scores[order], (~right[order]).cumsum()
    given = np.arange(1, len(scores) + 1)
    ends = np.append(ordered[1:] != ordered[:-1], True) if len(scores) else np.zeros(0, bool)
    return Curve(given[ends] / max(1, len(scores)), wrong[ends] / given[ends], ordered[ends])


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _with_interval(value: float, variance: float, level: float) -> Auroc:
    half = normal_quantile(level) * math.sqrt(variance)
    return Auroc(value, Interval(max(0.0, value - half), min(1.0, value + half)), variance)
