"""Solving thresholds: where the decision tree must split so that each strategy gets its share."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...profiles.sections import Targets

Floats = npt.NDArray[np.float64]

THINK_FROM = 0.6
"""`think` applies above this quantile of the entropy only."""
CHAOS_FROM = 0.85
"""This quantile of the entropy separates `branch`, below it, from `resample`, above it."""
BISECTIONS = 40
"""Halvings of the interval from 0 to 1; so many leave an error of 1e-12."""


def solve(
    entropy: Floats, varentropy: Floats, margin: Floats, targets: Targets
) -> dict[str, float]:
    """Return the thresholds that give each strategy its share of some positions.

    The decision tree takes the first of its rows that fits a position. So the rows are solved in
    their order, each on the positions that the rows before it leave.

    Args:
        entropy: `(positions,)`, bits; likewise the others.
        varentropy: bits².
        margin: difference of the two highest probabilities.
        targets: the shares.

    Returns:
        The thresholds, by the names of their fields.
    """
    count = len(entropy)
    # Each row below is a region of the (entropy, varentropy) plane; `left` are the positions that
    # no row has taken so far.
    low_entropy, low_varentropy = _low_corner(entropy, varentropy, targets.argmax)
    left = ~((entropy < low_entropy) & (varentropy < low_varentropy))
    lost_from = float(np.quantile(entropy, THINK_FROM))
    lost = left & (entropy > lost_from)
    lost_below = _cut(varentropy[lost], round(targets.think * count))
    left &= ~(lost & (varentropy < lost_below))
    chaos_from = float(np.quantile(entropy, CHAOS_FROM))
    close = float(np.median(margin[left])) if left.any() else 1.0
    fork = left & (entropy < chaos_from) & (margin < close)
    chaos = left & (entropy > chaos_from)
    return {
        "low_entropy": low_entropy,
        "low_varentropy": low_varentropy,
        "think_min_entropy": lost_from,
        "think_max_varentropy": lost_below,
        "branch_max_entropy": chaos_from,
        "branch_min_varentropy": -_cut(-varentropy[fork], round(targets.branch * count)),
        "branch_max_margin": close,
        "resample_min_entropy": chaos_from,
        "resample_min_varentropy": -_cut(-varentropy[chaos], round(targets.resample * count)),
    }


def _low_corner(entropy: Floats, varentropy: Floats, share: float) -> tuple[float, float]:
    """Return an entropy and a varentropy such that a share of the positions lies below both.

    Both are the same quantile of their measurement, which is found by bisection.
    """
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        bounds = np.quantile(entropy, middle), np.quantile(varentropy, middle)
        held = np.mean((entropy < bounds[0]) & (varentropy < bounds[1]))
        low, high = (middle, high) if held < share else (low, middle)
    return float(np.quantile(entropy, high)), float(np.quantile(varentropy, high))


def _cut(values: Floats, count: int) -> float:
    """Return a value below which `count` of the values lie, or all if there are fewer."""
    ordered = np.sort(values)
    if not len(ordered):
        return -math.inf
    if count >= len(ordered):
        return math.inf
    return float(ordered[count] if count == 0 else (ordered[count - 1] + ordered[count]) / 2)
