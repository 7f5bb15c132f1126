"""Thresholds of the decision tree, solved from what the tokens of a model measured.

A profile states `targets`, the share of tokens that each strategy should get. `solve` puts the
thresholds where the joint distribution of entropy, varentropy and margin gives each its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .profile import Profile
from .sections import Targets

Floats = npt.NDArray[np.float64]
WARMEST = {"logits": 0.4, "attention": 0.1}
"""The adaptive strategy raises the temperature by this share of its base where entropy +
varentropy of the logits, and of the attention, are at their 90 % quantile. The published slopes
are for models with measurements a fifth as large; on a small model, they would raise the
temperature of every token."""
WARMEST_AT = 0.9
"""The quantile for `WARMEST`."""
INTERVENTIONS_OFF = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
THINK_FROM = 0.6
"""`think` applies above this quantile of the entropy only."""
CHAOS_FROM = 0.85
"""This quantile of the entropy separates `branch`, below it, from `resample`, above it."""


def fitted(base: Profile, tokens: Mapping[str, Floats]) -> Profile:
    """Return a profile with the thresholds, and the slopes of `adaptive`, that fit some tokens.

    Args:
        base: the profile that is changed, and whose targets hold.
        tokens: `(tokens,)` each: ``entropy``, ``varentropy``, ``margin`` as in `Metrics`, and
            ``attention``, the sum of its entropy and varentropy, NaN where it was not measured.
    """
    thresholds = solve(tokens["entropy"], tokens["varentropy"], tokens["margin"], base.targets)
    uncertain = float(np.quantile(tokens["entropy"] + tokens["varentropy"], WARMEST_AT))
    scattered = float(np.quantile(tokens["attention"], WARMEST_AT))
    slopes = {
        "temperature_logits": WARMEST["logits"] / max(uncertain, 1e-6),
        "min_p_slope": WARMEST["logits"] / max(uncertain, 1e-6),
    }
    if not math.isnan(scattered):  # attention was measured
        slopes["temperature_attention"] = WARMEST["attention"] / max(scattered, 1e-6)
    return base.replace(
        {
            "thresholds": {name: _short(value) for name, value in thresholds.items()},
            "adaptive": {name: _short(value) for name, value in slopes.items()},
        }
    )


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
    """Return the same quantile of both, such that a share of the positions lies below both."""
    ranks = [
        values.argsort().argsort() / max(1, len(values) - 1) for values in (entropy, varentropy)
    ]
    level = np.quantile(np.maximum(*ranks), share)
    return float(np.quantile(entropy, level)), float(np.quantile(varentropy, level))


def _cut(values: Floats, count: int) -> float:
    """Return a value below which `count` of the values lie, or all if there are fewer."""
    ordered = np.sort(values)
    if not len(ordered):
        return -math.inf
    if count >= len(ordered):
        return math.inf
    return float(ordered[count] if count == 0 else (ordered[count - 1] + ordered[count]) / 2)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
