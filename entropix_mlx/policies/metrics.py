"""Measurements: entropy and varentropy of the logits, and how the attention heads agree.

Everything is computed from *gaps*: by how many bits a token's logit lies below the highest one.
A gap is what logits mean (softmax ignores a constant added to all of them), it is never negative,
and the relative probability of a token is simply 2^−gap. Base 2 gives bits without conversions and,
on MLX's CPU backend, a power of a constant is three times faster than ``exp``.

Pure functions of arrays, in float32, on whatever device MLX runs on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ..step import Metrics

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
LARGEST_GAP = 256.0
"""Bits. 2^−256 is 0 in float32, and 0 · 256 is 0 where 0 · ∞ would be NaN."""
SCORES_AT_ONCE = 2**17
"""Attention scores that are measured together: several arrays of that size are in memory then."""
MIN_TEMPERATURE = 1e-6
"""A temperature of 0 means the most probable token; dividing by this does just that."""


def numbers(array: mx.array) -> Any:
    """Return an array as lists of numbers, waiting for it if it must be computed."""
    return array.tolist()


def to_gaps(logits: mx.array) -> mx.array:
    """Return the gaps of `(…, n)` logits, in bits, as float32; the highest logit has gap 0.

    A logit of −∞ gets `LARGEST_GAP`; NaN or +∞ anywhere in a row makes the row's gaps NaN.
    """
    logits = logits.astype(mx.float32)
    highest = logits.max(axis=-1, keepdims=True)
    return mx.minimum((highest - logits) * LOG2_E, LARGEST_GAP)


def relative_probability(gaps: mx.array, temperature: mx.array) -> mx.array:
    """Return p / max p of `(batch, n)` gaps, tempered by `(batch,)` temperatures."""
    return mx.power(2.0, gaps * (-1 / mx.maximum(temperature, MIN_TEMPERATURE))[:, None])


class Spread(NamedTuple):
    """How `(…, n)` probabilities are spread: `(…)` each."""

    entropy: mx.array
    """Bits."""
    varentropy: mx.array
    """Bits²."""
    margin: mx.array
    """Probability of the first minus that of the second."""
    top_surprise: mx.array
    """−log2 of the highest probability, in bits: any token's surprise is this plus its gap."""
    probabilities: mx.array
    """`(…, n)`; computed only if it is used."""


class Measured(NamedTuple):
    """What is known about one position of each sequence, before anything is decided."""

    gaps: mx.array
    """`(batch, vocab)`"""
    top_surprise: mx.array
    """`(batch,)`"""
    metrics: Metrics[mx.array]


def spread(gaps: mx.array) -> Spread:
    """Return the entropy, varentropy and margin of `(…, n)` gaps.

    With w = 2^−gap and Z = Σ w, a surprise −log2 p is gap + log2 Z, so H is log2 Z plus the mean
    gap, and V is the variance of the gap. The top token (gap 0, w = 1) is left out of the sums and
    added by hand: beside its 1 a tail of 1e-20 would vanish, and with it all of a small H.
    """
    top = gaps.argmin(axis=-1, keepdims=True)
    weights = mx.power(0.5, gaps)
    tail = mx.put_along_axis(weights, top, mx.array(0.0), axis=-1)
    tail_mass = tail.sum(axis=-1)
    total = 1 + tail_mass
    mean = (tail * gaps).sum(axis=-1) / total
    top_surprise = mx.log1p(tail_mass) * LOG2_E
    squares = (tail * mx.square(gaps - mean[..., None])).sum(axis=-1)
    return Spread(
        entropy=top_surprise + mean,
        varentropy=(squares + mx.square(mean)) / total,
        margin=(1 - tail.max(axis=-1)) / total,
        top_surprise=top_surprise,
        probabilities=weights / total[..., None],
    )


def attention_metrics(scores: mx.array) -> mx.array:
    """Return the five attention measurements `(5, …)` of `(…, heads, keys)` scores.

    `scores` are the scaled dot products of the last query, before softmax, over existing keys.
    In the order of `Metrics`: entropy, varentropy, agreement, divergence, interaction strength.
    """
    scores = scores.astype(mx.float32)
    by_head = spread(to_gaps(scores))
    weights = by_head.probabilities
    deviation = mx.abs(weights - weights.mean(axis=-2, keepdims=True)).mean(axis=(-2, -1))
    return mx.stack(
        [
            by_head.entropy.mean(axis=-1),
            by_head.entropy.var(axis=-1),
            deviation,
            # Total variation is half the summed deviation: the mean one times half the keys.
            deviation * (scores.shape[-1] / 2),
            mx.abs(scores).mean(axis=(-2, -1)),
        ]
    )


def measure(logits: mx.array, scores: Sequence[mx.array]) -> Measured:
    """Measure one position of each sequence in a batch.

    Args:
        logits: `(batch, vocab)`.
        scores: one `(batch, heads, keys)` array for each measured layer, at least one. An attention
            measurement is the mean of the layers'.
    """
    gaps = to_gaps(logits)
    of_logits = spread(gaps)
    of_attention = attention_of_layers(scores)
    return Measured(gaps, of_logits.top_surprise, Metrics(*of_logits[:3], *of_attention))


def attention_of_layers(scores: Sequence[mx.array]) -> mx.array:
    """Return the attention measurements `(5, batch)`: the means of the layers'."""
    layers = list(scores)
    at_once = max(1, SCORES_AT_ONCE // layers[0].size)
    groups = [layers[first : first + at_once] for first in range(0, len(layers), at_once)]
    by_layer = [attention_metrics(mx.stack(group)) for group in groups]
    return mx.concatenate(by_layer, axis=1).mean(axis=1)
