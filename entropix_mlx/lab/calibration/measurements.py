"""What is recorded of measured positions: shares, quantiles, and what measurements tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import numpy.typing as npt

from ...samplers.draw import uniforms
from ...step import (
    NOT_OF_THE_MODEL,
    Metrics,
    Step,
    Strategy,
)
from ..evaluation.statistics import bootstrap_mean
from .thresholds import Floats

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Those of each measurement that a calibrated profile records, for people to read."""
DIGITS = 4
"""Decimals of shares, and of what interventions did, in a profile's record."""


def strategy_rates(steps: Sequence[Step]) -> dict[str, float]:
    """Return which share of steps each strategy has; `think` includes inserted tokens."""
    counts = Counter(step.strategy for step in steps)
    shares = {str(s): counts[s] / max(1, len(steps)) for s in Strategy if s is not Strategy.SAMPLE}
    return {name: round(share, DIGITS) for name, share in shares.items()}


def disagreement_auroc(steps: Sequence[Step], seed: int) -> dict[str, float]:
    """Return the AUROC of each measurement for "a draw at temperature 1 is not the top token".

    The draw is made here, with the probability of the top token, which each step lists first.

    Args:
        steps: with `top_logprobs`; inserted tokens do not count.
        seed: of these draws.
    """
    free = [step for step in steps if step.origin not in NOT_OF_THE_MODEL]
    top = np.array([math.exp(step.top_logprobs[0].logprob) for step in free])
    drawn = np.array([uniforms(seed, number, 1)[0][0] for number in range(len(free))])
    return {
        name: round(_auroc(np.array([step.metrics[name] for step in free]), drawn > top), 3)
        for name in Metrics._fields
        if not any(math.isnan(step.metrics[name]) for step in free)  # not measured
    }


def quantiles(steps: Sequence[Step], name: str) -> list[float]:
    """Return the quantiles of a measurement, without inserted tokens."""
    values = [step.metrics[name] for step in steps if step.origin not in NOT_OF_THE_MODEL]
    return [short(float(value)) for value in np.quantile(values, QUANTILES)]


def mean_and_interval(values: Sequence[float]) -> list[float]:
    """Return a mean and the ends of its 95 % bootstrap interval, as a profile records them."""
    return [round(value, DIGITS) for value in (fmean(values), *bootstrap_mean(values))]


def short(value: float) -> float:
    """Return a number rounded to four digits, so that a profile is easy to read."""
    return float(f"{value:.4g}")


def _auroc(scores: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a positive scores higher than a negative; ties count half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    # Mann and Whitney's U statistic: ranks among the positives themselves are taken off.
    wins = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(wins / positives / negatives)
