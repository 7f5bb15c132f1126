"""The attention measurements of several tokens in a row, each over the keys that it could see."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ...models.llama.attention import AttentionQueries
from .logits import PLAIN_ATTENTION, AttentionKernels

SCORES_AT_ONCE = 2**21
"""Attention scores that are measured together: several arrays of that size are in memory then."""


def measure_looks(
    layers: Sequence[AttentionQueries], kernels: AttentionKernels = PLAIN_ATTENTION
) -> mx.array:
    """Return the attention measurements `(length, 5)` of each token, the mean of the layers'.

    Args:
        layers: the looks of each measured layer, at least one.
        kernels: what computes them.
    """
    first = layers[0]
    tokens = max(1, SCORES_AT_ONCE // (first.heads * first.keys.shape[2]))
    parts = []
    for begin in range(0, first.length, tokens):
        end = min(begin + tokens, first.length)
        by_layer = [_measured(looks.part(begin, end), kernels) for looks in layers]
        parts.append(by_layer[0] if len(by_layer) == 1 else mx.stack(by_layer).mean(axis=0))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _measured(looks: AttentionQueries, kernels: AttentionKernels) -> mx.array:
    """Return the five measurements of one layer, as `attention_metrics` does for one query."""
    scores = looks.scores()
    keyed, sums = kernels.over_keys(scores)
    # The sum of |score| comes last; it must leave out the −∞ of keys that come later.
    seen = mx.where(mx.isneginf(scores), 0.0, mx.abs(scores.astype(mx.float32)))
    columns = [*kernels.split(sums)[:-1], seen.sum(axis=-1, keepdims=True)]
    each = 1 / looks.heads
    factors = [[each, each, each / n, each / 2, each / n] for n in looks.key_counts()]
    return kernels.over_heads(keyed, columns, mx.array(each), mx.array(factors))
