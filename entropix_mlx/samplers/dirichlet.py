"""Fitting a Dirichlet distribution to mean log probabilities, by maximum likelihood.

The fit satisfies ψ(αᵢ) − ψ(Σ α) = mean log pᵢ for each i (Minka, *Estimating a Dirichlet
distribution*, 2000). With s = ψ(Σ α), each αᵢ is ψ⁻¹(s + mean log pᵢ), so one number is sought.
"""

from __future__ import annotations

import math

import mlx.core as mx

SHIFT = 6
"""ψ and its slope ψ′ are computed this far to the right, where a few terms of a series suffice."""
EULER = 0.5772156649015329
NEWTON_STEPS = 5
LOWEST, HIGHEST = -20.0, math.log(1e4)
"""Of s: the sum of the αs lies between about 0.05 and 10,000."""
AT_ONCE = 48
ROUNDS = 3
SMALLEST = 1e-6


def digamma(x: mx.array) -> mx.array:
    """Return ψ(x) of positive numbers."""
    return _with_slope(x)[0]


def _with_slope(x: mx.array) -> tuple[mx.array, mx.array]:
    """Return ψ(x) and ψ′(x) of positive numbers.

    ψ(x) = ψ(x + 6) − Σ 1 / (x + n) over n from 0 to 5, and ψ′(x) = ψ′(x + 6) + Σ 1 / (x + n)².
    """
    below = 1.0 / (x[..., None] + mx.arange(SHIFT))
    y = 1.0 / (x + SHIFT)
    squared = y * y
    value = -mx.log(y) - y / 2 - squared * (1 / 12 - squared * (1 / 120 - squared / 252))
    slope = y * (1 + y / 2 + squared * (1 / 6 - squared * (1 / 30 - squared / 42)))
    return value - below.sum(axis=-1), slope + mx.square(below).sum(axis=-1)


def inverse_digamma(values: mx.array) -> mx.array:
    """Return the positive numbers whose ψ is given, by Newton's method from Minka's start."""
    near_pole = -1.0 / (mx.minimum(values, -2.0) + EULER)
    x = mx.where(values >= -2.22, mx.exp(values) + 0.5, near_pole)
    for _ in range(NEWTON_STEPS):
        value, slope = _with_slope(x)
        x = mx.maximum(x - (value - values) / slope, SMALLEST)
    return x


def fitted(mean_logs: mx.array) -> mx.array:
    """Return the parameters α `(rows, n)` that fit mean log probabilities `(rows, n)`.

    ψ(Σ αᵢ(s)) − s is positive for small s and changes its sign once, where the fit is. If the means
    hardly vary from one another's normalisation (Σ exp(mean log p) is almost 1, as where a single
    distribution was seen), α grows without limit: its sum ends at that of `HIGHEST`.
    """
    low = mx.full(mean_logs.shape[:1], LOWEST)
    step = mx.full(mean_logs.shape[:1], (HIGHEST - LOWEST) / AT_ONCE)
    inside = mx.arange(1, AT_ONCE + 1).astype(mx.float32)
    for _ in range(ROUNDS):
        tried = low[:, None] + step[:, None] * inside
        alphas = inverse_digamma(tried[:, :, None] + mean_logs[:, None, :])
        before = digamma(alphas.sum(axis=-1)) > tried
        count = mx.cumprod(before.astype(mx.float32), axis=-1).sum(axis=-1)
        low = low + step * mx.minimum(count, AT_ONCE - 1.0)
        step = step / AT_ONCE
    return inverse_digamma((low + step * AT_ONCE / 2)[:, None] + mean_logs)
