"""Attention scores of several layers, and scores of which some are masked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import mlx.core as mx

from ...models.llama.attention import Masked

SCORES_AT_ONCE = 2**17
"""Attention scores that are measured together: several arrays of that size are in memory then."""


def at_once(layers: Sequence[mx.array | Masked]) -> Iterator[mx.array | Masked]:
    """Yield the scores of layers stacked, as many of one shape as are to be measured together."""
    for _, run in groupby(layers, key=lambda layer: (type(layer), layer.shape)):
        members = list(run)
        yield from (layer for layer in members if isinstance(layer, Masked))
        alike = [layer for layer in members if not isinstance(layer, Masked)]
        most = max(1, SCORES_AT_ONCE // members[0].size)
        for first in range(0, len(alike), most):
            group = alike[first : first + most]
            yield mx.stack(group) if len(group) > 1 else group[0][None]


def masked_metrics(masked: Masked) -> mx.array:
    """Return the five attention measurements `(batch, 5)`, as if the masked keys were not there.

    In the order of `Metrics`: entropy, varentropy, agreement, divergence, interaction strength.
    """
    scores = masked.scores.astype(mx.float32)
    seen = scores > -mx.inf
    probabilities = mx.softmax(scores, axis=-1)
    bits = mx.where(probabilities > 0, mx.log2(mx.maximum(probabilities, 1e-38)), 0.0)
    entropy = -(probabilities * bits).sum(axis=-1)  # (batch, heads)
    distance = mx.abs(probabilities - probabilities.mean(axis=-2, keepdims=True)).sum(axis=-1)
    keys = seen.any(axis=-2).sum(axis=-1)
    magnitude = mx.where(seen, mx.abs(scores), 0.0).sum(axis=(-2, -1))
    found = [
        entropy.mean(axis=-1),
        entropy.var(axis=-1),
        distance.mean(axis=-1) / keys,
        distance.mean(axis=-1) / 2,
        magnitude / seen.sum(axis=(-2, -1)),
    ]
    return mx.stack(found, axis=-1)
