"""Measurements: entropy and varentropy of the logits, and how the attention heads agree.

Everything is computed from *gaps*: by how many bits a token's logit lies below the highest one.
A gap is what logits mean (softmax ignores a constant added to all of them), it is never negative,
and the relative probability of a token is simply 2^−gap. Base 2 gives bits without conversions and,
on MLX's CPU backend, a power of a constant is three times faster than ``exp``.

Pure functions of arrays, in float32, on whatever device MLX runs on. Those that take a `Packing`
can be compiled with `FUSED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import mlx.core as mx

from ...models.llama.attention import Masked
from ...step import Metrics
from ..ranking import Candidates, most_probable
from .attention import at_once, masked_metrics
from .fused import (
    columns_of,
    concatenated,
    selected,
    summed_together,
)

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
LARGEST_GAP = 256.0
"""Bits. 2^−256 is 0 in float32, and 0 · 256 is 0 where 0 · ∞ would be NaN."""
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
    return mx.power(0.5, gaps / mx.maximum(temperature, MIN_TEMPERATURE)[:, None])


class Moments(NamedTuple):
    """What the relative probabilities 2^−gap of a distribution add up to: `(…, 1)` each."""

    total: mx.array
    """Σ 2^−gap."""
    top_surprise: mx.array
    """−log2 of the highest probability, in bits."""
    mean_gap: mx.array
    """Expected gap, in bits."""

    @property
    def entropy(self) -> mx.array:
        """Bits. A surprise −log2 p is the gap plus the top surprise; this is the expected one."""
        return self.top_surprise + self.mean_gap

    @classmethod
    def of(cls, tail: mx.array, gaps: mx.array) -> Moments:
        """Return the moments of two sums.

        Args:
            tail: Σ 2^−gap over all but one of the most probable. It is summed apart: beside the 1
                of that one a tail of 1e-20 would vanish, and with it all of a small entropy.
            gaps: Σ 2^−gap · gap.
        """
        total = tail + 1
        return cls(total, mx.log1p(tail) * LOG2_E, gaps / total)


def _moments_by_index(weights: mx.array, gaps: mx.array, top: mx.array) -> Moments:
    """Return the moments, given the index `(…, 1)` of a most probable token."""
    tail = mx.put_along_axis(weights, top, mx.array(0.0), axis=-1).sum(axis=-1, keepdims=True)
    return Moments.of(tail, (weights * gaps).sum(axis=-1, keepdims=True))


def _moments_by_gap(weights: mx.array, gaps: mx.array, top: mx.array) -> Moments:
    """Return the moments without that index: all sums at once, then all moments at once."""
    below, of_gaps, ties = columns_of(summed_together(_terms, weights, gaps))
    return Moments(*columns_of(selected(Moments.of(below + (ties - 1), of_gaps))))


def _terms(weights: mx.array, gaps: mx.array) -> list[mx.array]:
    """Return what is summed where no index is known: tokens of gap 0 are counted, not summed."""
    return [weights * mx.sign(gaps), weights * gaps, gaps == 0]


class Packing(NamedTuple):
    """How several results are computed: `PLAIN` one by one, `FUSED` for `mx.compile`."""

    columns: Callable[[Sequence[mx.array]], mx.array]
    moments: Callable[[mx.array, mx.array, mx.array], Moments]


PLAIN = Packing(concatenated, _moments_by_index)
FUSED = Packing(selected, _moments_by_gap)


class Spread(NamedTuple):
    """How `(…, n)` probabilities are spread: `(…, 1)` each. MLX computes only what is used."""

    entropy: mx.array
    """Bits."""
    varentropy: mx.array
    """Bits²."""
    margin: mx.array
    """Probability of the first minus that of the second."""
    top_surprise: mx.array
    """−log2 of the highest probability, in bits: any token's surprise is this plus its gap."""


def spread(gaps: mx.array, ranked: Candidates | None = None, packing: Packing = PLAIN) -> Spread:
    """Return the entropy, varentropy and margin of `(…, n)` gaps.

    With w = 2^−gap and Z = Σ w, a surprise −log2 p is gap + log2 Z, so the entropy is log2 Z plus
    the mean gap, and the varentropy is the variance of the gap.

    Args:
        gaps: at least one.
        ranked: the most probable tokens, if they are known already.
        packing: how to sum and to pack.
    """
    weights = mx.power(0.5, gaps)
    top = ranked.tokens[..., :1] if ranked else gaps.argmin(axis=-1, keepdims=True)
    moments = packing.moments(weights, gaps, top)
    squares = (weights * mx.square(gaps - moments.mean_gap)).sum(axis=-1, keepdims=True)
    if ranked and ranked.tokens.shape[-1] > 1:
        second = mx.take_along_axis(weights, ranked.tokens[..., 1:2], axis=-1)
    else:
        second = mx.put_along_axis(weights, top, mx.array(0.0), axis=-1).max(axis=-1, keepdims=True)
    return Spread(
        entropy=moments.entropy,
        varentropy=squares / moments.total,
        margin=(1 - second) / moments.total,
        top_surprise=moments.top_surprise,
    )


class Odds(NamedTuple):
    """A distribution over the vocabulary."""

    gaps: mx.array
    """`(batch, vocab)`, the smallest of them 0."""
    top_surprise: mx.array
    """`(batch, 1)`"""
    ranked: Candidates | None = None
    """The most probable tokens, if they were asked for."""

    @classmethod
    def of(cls, logits: mx.array, ranks: int = 0) -> Odds:
        """Return the distribution of `(batch, vocab)` logits, with so many tokens ranked."""
        gaps = to_gaps(logits)
        total = mx.power(0.5, gaps).sum(axis=-1, keepdims=True)
        return cls(gaps, mx.log2(total), most_probable(gaps, ranks) if ranks else None)


class Measured(NamedTuple):
    """What is known about one position of each sequence, before anything is decided."""

    gaps: mx.array
    """`(batch, vocab)`"""
    top_surprise: mx.array
    """`(batch, 1)`"""
    values: mx.array
    """`(batch, 8)`: the measurements, in the order of `Metrics`."""
    ranked: Candidates | None = None
    """The most probable tokens, if they were asked for."""
    changed: Odds | None = None
    """What is drawn from, where it is not the distribution that was measured."""
    chance: mx.array | None = None
    """`(batch or 1,)`: uniforms in [0, 1), for a sampler that asks for them."""

    @property
    def odds(self) -> Odds:
        """What is drawn from. Filters act on it; thresholds are compared with `metrics`."""
        return self.changed or Odds(self.gaps, self.top_surprise, self.ranked)

    @property
    def metrics(self) -> Metrics[mx.array]:
        """The measurements by name, `(batch,)` each."""
        return Metrics(*(self.values[:, index] for index in range(len(Metrics._fields))))


class AttentionKernels(NamedTuple):
    """The two halves of the measurements of attention, compiled or not.

    The number of keys grows with every token, so neither may depend on any length: compiled for
    one shape, they serve all. A slice does depend on one: what lies between the halves is slices.
    """

    over_keys: Callable[[mx.array], tuple[mx.array, Any]]
    """Takes the scores, and returns an array as large as they are and some sums over the keys."""
    split: Callable[[Any], Sequence[mx.array]]
    """Returns those sums as columns `(…, heads, 1)`."""
    over_heads: Callable[..., mx.array]
    """Takes that array, the columns, and `each_head` and `factors` as `_over_heads` does."""


def _plain_over_keys(scores: mx.array) -> tuple[mx.array, list[mx.array]]:
    scores = scores.astype(mx.float32)
    gaps = to_gaps(scores)
    weights = mx.power(0.5, gaps)
    moments = _moments_by_index(weights, gaps, gaps.argmin(axis=-1, keepdims=True))
    magnitude = mx.abs(scores).sum(axis=-1, keepdims=True)
    return weights / moments.total, [moments.entropy, magnitude]


def _plain_over_heads(
    probabilities: mx.array, columns: Sequence[mx.array], *rest: mx.array
) -> mx.array:
    return _over_heads(concatenated, probabilities, *columns, *rest)


def _fused_over_keys(scores: mx.array) -> tuple[mx.array, mx.array]:
    scores = scores.astype(mx.float32)
    gaps = to_gaps(scores)
    return gaps, summed_together(_attention_terms, gaps, scores)


def _attention_terms(gaps: mx.array, scores: mx.array) -> list[mx.array]:
    return [*_terms(mx.power(0.5, gaps), gaps), mx.abs(scores)]


def _fused_over_heads(gaps: mx.array, columns: Sequence[mx.array], *rest: mx.array) -> mx.array:
    below, of_gaps, ties, magnitude = columns
    entropy = Moments.of(below + (ties - 1), of_gaps).entropy
    probabilities = mx.power(0.5, gaps) / (below + ties)
    return _over_heads(selected, probabilities, entropy, magnitude, *rest)


def _over_heads(
    pack: Callable[[Sequence[mx.array]], mx.array],
    probabilities: mx.array,
    entropy: mx.array,
    magnitude: mx.array,
    each_head: mx.array,
    factors: mx.array,
) -> mx.array:
    """Return the five measurements `(…, 5)` of `(…, heads, keys)` probabilities.

    Args:
        pack: makes one array of columns.
        probabilities: the attention weights.
        entropy: their entropy `(…, heads, 1)`.
        magnitude: Σ |score| over the keys `(…, heads, 1)`.
        each_head: 1 / heads, the factor of a mean over the heads.
        factors: `(5,)`, what turns each sum into a measurement.
    """
    mean = probabilities.sum(axis=-2, keepdims=True) * each_head
    distance = mx.abs(probabilities - mean).sum(axis=(-2, -1), keepdims=True).squeeze(-1)
    summed = entropy.sum(axis=-2, keepdims=True)
    squares = mx.square(entropy - summed * each_head).sum(axis=-2)
    sums = [summed.squeeze(-2), squares, distance, distance, magnitude.sum(axis=-2)]
    return pack(sums) * factors


PLAIN_ATTENTION = AttentionKernels(_plain_over_keys, list, _plain_over_heads)


@lru_cache(maxsize=1)
def compiled_attention() -> AttentionKernels:
    """Return the kernels that `mx.compile` makes, one for all shapes each."""
    return AttentionKernels(
        mx.compile(_fused_over_keys, shapeless=True),
        columns_of,
        mx.compile(_fused_over_heads, shapeless=True),
    )


def attention_metrics(
    scores: mx.array | Masked, kernels: AttentionKernels = PLAIN_ATTENTION
) -> mx.array:
    """Return the five attention measurements `(…, 5)` of `(…, heads, keys)` scores.

    `scores` are the scaled dot products of the last query, before softmax, over existing keys.
    In the order of `Metrics`: entropy, varentropy, agreement, divergence, interaction strength.
    """
    if isinstance(scores, Masked):
        return masked_metrics(scores)[None]
    heads, keys = scores.shape[-2:]
    keyed, sums = kernels.over_keys(scores)
    each = 1 / heads
    # Agreement is a mean over heads and keys; total variation is half the sum over the keys.
    factors = mx.array([each, each, each / keys, each / 2, each / keys])
    return kernels.over_heads(keyed, kernels.split(sums), mx.array(each), factors)


def measure_attention(
    scores: Sequence[mx.array | Masked], kernels: AttentionKernels = PLAIN_ATTENTION
) -> mx.array:
    """Return the attention measurements `(batch, 5)`, each the mean of the layers'.

    Args:
        scores: one `(batch, heads, keys)` array for each measured layer, at least one.
        kernels: what computes them.
    """
    layers = list(scores)
    by_layer = [attention_metrics(group, kernels) for group in at_once(layers)]
    if len(layers) == 1:
        return by_layer[0].squeeze(0)
    return mx.concatenate(by_layer).mean(axis=0)


def measure_logits(
    logits: mx.array, attention: mx.array, ranks: int = 0, packing: Packing = PLAIN
) -> Measured:
    """Measure `(batch, vocab)` logits, and put the `(batch, 5)` attention measurements beside.

    Args:
        logits: `(batch, vocab)`.
        attention: from `measure_attention`.
        ranks: how many of the most probable tokens will be needed, in order.
        packing: how to sum and to pack.
    """
    gaps = to_gaps(logits)
    ranked = most_probable(gaps, ranks) if ranks else None
    found = spread(gaps, ranked, packing)
    values = packing.columns([*found[:3], *columns_of(attention)])
    return Measured(gaps, found.top_surprise, values, ranked)


def measure(logits: mx.array, scores: Sequence[mx.array], ranks: int = 0) -> Measured:
    """Measure one position of each sequence in a batch.

    Args:
        logits: `(batch, vocab)`.
        scores: one `(batch, heads, keys)` array for each measured layer, at least one. An attention
            measurement is the mean of the layers'.
        ranks: how many of the most probable tokens will be needed, in order.
    """
    return measure_logits(logits, measure_attention(scores), ranks)
