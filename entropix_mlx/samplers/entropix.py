"""The entropix sampler: the decision tree of a profile, as a few small arrays on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import NonFiniteLogitsError
from ..profiles.profile import REFERENCE, Profile
from ..profiles.sections import UNFORKED_ARGMAX
from ..profiles.tree import TREE_SAMPLER, Affine, TreeRow, table
from ..step import Decision, Metrics, Strategy
from .base import CODE, PARAMETERS, Drawing, Plan, Sampler
from .draw import uniforms
from .metrics import Measured, measure_attention
from .position import sample


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    """Build the sampler of a profile; given parameters replace the profile's base parameters."""
    profile = profile.replace({"base": given})
    rows = table(profile)
    argmax = profile.branch.unforked == UNFORKED_ARGMAX
    return Sampler(
        name=name,
        profile=profile,
        rule=_plan,
        numbers=_packed(rows),
        drawing=Drawing(
            max_top_k=max(_highest_top_k(row) for row in rows),
            needs_order=True,
            draws=profile.adaptive.candidates,
            surest=Strategy.BRANCH if argmax else Strategy.ARGMAX,
        ),
    )


def _highest_top_k(row: TreeRow) -> int:
    """Return a bound on a row's top-k: agreement is at most 1, interaction strength unbounded."""
    highest = row.top_k.constant
    for name, slope in row.top_k.slopes.items():
        if slope > 0:
            highest += slope if name == "agreement" else math.inf
    return math.floor(min(row.top_k.high, max(row.top_k.low, highest)))


def _packed(rows: list[TreeRow]) -> tuple[mx.array, mx.array]:
    """Return the decision tree as two arrays, so that one gather fetches the row that fits.

    Bounds `(rows, 2, metrics)`: a row fits where all metrics lie above the first and, negated,
    above the second. Parameters `(rows, parameters · (metrics + 3))`: of each field of a `Plan`, in
    order, slopes, constant, low, high.
    """
    names = Metrics._fields
    unbounded = (-math.inf, math.inf)
    pairs = [[row.bounds.get(name, unbounded) for name in names] for row in rows]
    bounds = [[[low for low, _ in row], [-high for _, high in row]] for row in pairs]
    codes = (Affine(CODE[row.strategy]) for row in rows)
    packed = [
        [*chain.from_iterable(map(_coefficients, (code, *row[2:])))]
        for code, row in zip(codes, rows, strict=True)
    ]
    return mx.array(bounds), mx.array(packed)  # neither is left to be computed by a thread


def _coefficients(parameter: Affine) -> list[float]:
    slopes = [parameter.slopes.get(name, 0.0) for name in Metrics._fields]
    return [*slopes, parameter.constant, parameter.low, parameter.high]


def _plan(measured: Measured, tree: tuple[mx.array, mx.array]) -> Plan:
    """Decide for each row.

    1. Every row is compared with the metrics at once; the first that fits is taken. The last fits.
    2. Its packed numbers are fetched, and cut into `(rows, parameters, metrics + 3)`.
    3. Each parameter is constant + Σ slope · metric, clipped. The strategy is one of them, a
       constant: its code.
    """
    bounds, rows = tree
    values = measured.values[:, None]  # (rows, 1, metrics)
    signed = values[:, None] * mx.array([[1.0], [-1.0]])  # (rows, 1, 2, metrics)
    row = (signed > bounds).all(axis=(-2, -1)).argmax(axis=-1)
    chosen = rows[row].reshape(-1, PARAMETERS, rows.shape[-1] // PARAMETERS)
    slopes, constant, low, high = mx.split(chosen, [-3, -2, -1], axis=-1)
    result = constant + (slopes * values).sum(axis=-1, keepdims=True)
    result = mx.clip(result, low, high)
    return Plan(*(result[:, i, 0] for i in range(PARAMETERS)))


def decide(
    logits: Any,
    attention_scores: Any,
    profile: str | Path | Profile = REFERENCE,
    just_inserted: bool = False,
) -> Decision:
    """Return what a profile decides for one position, without a model.

    Args:
        logits: `(vocab,)` numbers: a list, a NumPy array or an MLX array.
        attention_scores: `(heads, keys)` scaled dot products of the last query, before softmax.
        profile: a profile, its name or its file.
        just_inserted: whether the thinking text was inserted just before this position.

    Raises:
        NonFiniteLogitsError: the logits hold NaN or +∞, or nothing but −∞.
        ProfileError: no such profile, or a bad one.
        ValueError: the arrays have another number of dimensions, or none in one.
    """
    z, scores = _to_numpy(logits), _to_numpy(attention_scores)
    if z.ndim != 1 or scores.ndim != 2 or not z.size or not scores.size:
        raise ValueError(
            "decide() takes logits (vocab,) and attention_scores (heads, keys),"
            f" not shapes {z.shape} and {scores.shape}"
        )
    if not np.isfinite(z.max()):
        raise NonFiniteLogitsError("the logits hold NaN or infinity: nothing can be decided")
    # Softmax ignores a shift; made in float64, it keeps small differences between large logits.
    centred = mx.array((z - z.max()).astype(np.float32))
    attention = mx.array(scores.astype(np.float32))[None]
    sampler = build(TREE_SAMPLER, Profile.load(profile), {})
    randomness = mx.array([uniforms(0, 0, sampler.draws)])
    (row,) = sample(sampler, centred[None], measure_attention([attention]), randomness).read()
    strategy = row.strategy.sampled() if just_inserted else row.strategy
    return Decision(strategy, row.temperature, row.top_p, row.top_k, row.min_p, row.metrics)


def _to_numpy(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(values, mx.array):  # NumPy has no bfloat16
        values = values.astype(mx.float32)
    return np.array(values, dtype=np.float64)
