"""The temperature at which a distribution has a given entropy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .metrics.logits import LN_2

LOWEST, HIGHEST = 0.01, 10_000.0
"""Where no temperature between these gives the entropy, the nearer of them is taken."""
AT_ONCE = 64
ROUNDS = 3
"""Each round divides the interval by `AT_ONCE`; afterwards it is 0.006 % of the temperature."""


def entropy(gaps: mx.array) -> mx.array:
    """Return the entropy in nats `(…)` of the distribution of `(…, n)` gaps, over its n tokens."""
    weights = mx.power(0.5, gaps)
    total = weights.sum(axis=-1)
    return mx.log(total) + (weights * gaps).sum(axis=-1) / total * LN_2


def temperature_of_entropy(gaps: mx.array, target: mx.array) -> mx.array:
    """Return the temperatures `(rows,)` at which gaps `(rows, n)` have target entropies `(rows,)`.

    The entropy never falls while the temperature rises. So of many temperatures, as many as have
    too small an entropy lie below the one that is sought; between that one and its neighbour, many
    are tried again.
    """
    low = mx.full(target.shape, float(np.log(LOWEST)))
    step = mx.full(target.shape, float(np.log(HIGHEST / LOWEST)) / AT_ONCE)
    inside = mx.arange(1, AT_ONCE + 1).astype(mx.float32)
    for _ in range(ROUNDS):
        tried = low[:, None] + step[:, None] * inside
        found = entropy(gaps[:, None, :] / mx.exp(tried)[:, :, None])
        below = (found < target[:, None]).astype(mx.float32).sum(axis=-1)
        low = low + step * mx.minimum(below, AT_ONCE - 1.0)
        step = step / AT_ONCE
    return mx.exp(low + step * AT_ONCE / 2)
