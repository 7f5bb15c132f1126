"""Metrics of logits: entropy, varentropy and margin; and the most probable tokens, in order.

Everything is computed from *gaps*: by how many bits a token's logit lies below the highest one. A
gap is never negative, and the relative probability of a token is 2^−gap. Base 2 gives bits without
conversions and, on MLX's CPU backend, a power of a constant is three times faster than ``exp``.
Functions that take `LogitKernels` can be compiled with `FUSED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ...step import Metrics
from .fused import columns_of, concatenated, selected, summed_together

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
LARGEST_GAP = 256.0  # bits. 2^−256 is 0 in float32, and 0 · 256 is 0 where 0 · ∞ would be NaN.
FORBIDDEN_GAP = 2.0**50  # exact in float32
"""Of a token that a constraint does not allow: 2^−gap is 0 at any temperature."""
MIN_TEMPERATURE = 1e-6
"""A temperature of 0 means the most probable token; dividing by this does just that."""
BLOCK = 16  # tokens in a block of the vocabulary, see `most_probable`


def numbers(array: mx.array) -> Any:
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


class Candidates(NamedTuple):
    """The most probable tokens of each sequence, best first: `(batch, count)` each."""

    tokens: mx.array
    gaps: mx.array


def most_probable(gaps: mx.array, count: int) -> Candidates:
    """Return the `count` tokens of smallest gap, in order, without sorting the vocabulary.

    1. The vocabulary is cut into blocks of `BLOCK` tokens, and the smallest gap of each is found.
    2. Only the `count` blocks with the smallest minima are searched. No better token can be
       elsewhere: each of those blocks holds one that is at least as good as all of another block.
    3. The tokens of these blocks, and those left over by the cutting, are sorted.
    """
    batch, vocab = gaps.shape
    count = min(count, vocab)
    blocks = vocab // BLOCK
    if blocks <= count:
        tokens = mx.argsort(gaps, axis=-1)[:, :count]
        return Candidates(tokens, mx.take_along_axis(gaps, tokens, axis=-1))
    minima = _in_blocks(gaps).min(axis=-1)
    best = mx.argpartition(minima, kth=count - 1, axis=-1)[:, :count, None]

    def searched(array: mx.array) -> mx.array:
        inside = mx.take_along_axis(_in_blocks(array), best, axis=1).reshape(batch, -1)
        rest = mx.broadcast_to(array[:, blocks * BLOCK :], (batch, vocab % BLOCK))
        return mx.concatenate([inside, rest], axis=-1) if vocab % BLOCK else inside

    near = searched(gaps)
    order = mx.argsort(near, axis=-1)[:, :count]
    return Candidates(
        mx.take_along_axis(searched(_ids(vocab)), order, axis=-1),
        mx.take_along_axis(near, order, axis=-1),
    )


def _in_blocks(array: mx.array) -> mx.array:
    """Return a view of `(batch, vocab)` numbers as `(batch, blocks, BLOCK)`."""
    batch, vocab = array.shape
    return array[:, : vocab // BLOCK * BLOCK].reshape(batch, -1, BLOCK)


@lru_cache(maxsize=4)
def _ids(vocab: int) -> mx.array:
    return mx.array(np.arange(vocab, dtype=np.uint32)[None])


class Moments(NamedTuple):
    """Sums over the relative probabilities 2^−gap of a distribution: `(…, 1)` each."""

    total: mx.array  # Σ 2^−gap
    top_surprise: mx.array  # −log2 of the highest probability, in bits
    mean_gap: mx.array  # expected gap, in bits

    @property
    def entropy(self) -> mx.array:
        """Bits. A surprise −log2 p is the gap plus the top surprise; this is the expected one."""
        return self.top_surprise + self.mean_gap

    @classmethod
    def of(cls, tail: mx.array, gaps: mx.array) -> Moments:
        """Return the moments of Σ 2^−gap over all but a most probable token, and Σ 2^−gap · gap.

        Beside the 1 of that token a tail of 1e-20 would vanish, and with it all of a small entropy.
        """
        total = tail + 1
        return cls(total, mx.log1p(tail) * LOG2_E, gaps / total)


def _rest(weights: mx.array, top: mx.array) -> mx.array:
    return mx.put_along_axis(weights, top, mx.array(0.0), axis=-1)


def _moments_of_rest(rest: mx.array, weights: mx.array, gaps: mx.array) -> Moments:
    tail = rest.sum(axis=-1, keepdims=True)
    return Moments.of(tail, (weights * gaps).sum(axis=-1, keepdims=True))


def _sums_by_index(weights: mx.array, gaps: mx.array, rest: mx.array) -> tuple[Moments, mx.array]:
    return _moments_of_rest(rest, weights, gaps), gaps.sum(axis=-1, keepdims=True)


def _sums_by_gap(weights: mx.array, gaps: mx.array, rest: mx.array) -> tuple[Moments, mx.array]:
    """Return the same without an index: all sums at once, then all moments at once."""
    below, of_gaps, ties, total = columns_of(summed_together(_logit_terms, weights, gaps))
    return Moments(*columns_of(selected(Moments.of(below + (ties - 1), of_gaps)))), total


def _logit_terms(weights: mx.array, gaps: mx.array) -> list[mx.array]:
    return [*moment_terms(weights, gaps), gaps]


def moment_terms(weights: mx.array, gaps: mx.array) -> list[mx.array]:
    """Return what is summed where no index is known: tokens of gap 0 are counted, not summed."""
    return [weights * mx.sign(gaps), weights * gaps, gaps == 0]


class LogitKernels(NamedTuple):
    """How several results are computed: `PLAIN` one by one, `FUSED` for `mx.compile`."""

    columns: Callable[[Sequence[mx.array]], mx.array]
    sums: Callable[[mx.array, mx.array, mx.array], tuple[Moments, mx.array]]
    """Takes the relative probabilities, the gaps, and the former with 0 for a most probable token,
    and returns the moments and Σ gap."""


PLAIN = LogitKernels(concatenated, _sums_by_index)
FUSED = LogitKernels(selected, _sums_by_gap)


class Spread(NamedTuple):
    """How `(…, n)` probabilities are spread: `(…, 1)` each. MLX computes only what is used."""

    entropy: mx.array  # bits
    varentropy: mx.array  # bits²
    margin: mx.array  # probability of the first minus that of the second
    top_surprise: mx.array  # −log2 of the highest probability, in bits
    gap_sum: mx.array  # Σ gap, in bits


def spread(
    gaps: mx.array, ranked: Candidates | None = None, kernels: LogitKernels = PLAIN
) -> Spread:
    """Return the entropy, varentropy and margin of `(…, n)` gaps.

    With w = 2^−gap and Z = Σ w, a surprise −log2 p is gap + log2 Z, so the entropy is log2 Z plus
    the mean gap, and the varentropy is the variance of the gap. `ranked` are the most probable
    tokens, if they are known already.
    """
    weights = mx.power(0.5, gaps)
    top = ranked.tokens[..., :1] if ranked else gaps.argmin(axis=-1, keepdims=True)
    rest = _rest(weights, top)
    moments, gap_sum = kernels.sums(weights, gaps, rest)
    squares = (weights * mx.square(gaps - moments.mean_gap)).sum(axis=-1, keepdims=True)
    if ranked and ranked.tokens.shape[-1] > 1:
        second = mx.take_along_axis(weights, ranked.tokens[..., 1:2], axis=-1)
    else:
        second = rest.max(axis=-1, keepdims=True)
    return Spread(
        entropy=moments.entropy,
        varentropy=squares / moments.total,
        margin=(1 - second) / moments.total,
        top_surprise=moments.top_surprise,
        gap_sum=gap_sum,
    )


def self_certainty(gap_sum: float, top_surprise: float, vocab: int) -> float:
    """Return the KL divergence of a uniform distribution from the prediction, in nats:
    Σ 1/n · ln (1/n ÷ p), where −log2 p is a gap plus the top surprise."""
    return (gap_sum / vocab + top_surprise) * LN_2 - math.log(vocab)


class Odds(NamedTuple):
    """A distribution over the vocabulary."""

    gaps: mx.array  # `(batch, vocab)`, the smallest of them 0
    top_surprise: mx.array  # `(batch, 1)`
    ranked: Candidates | None = None  # the most probable tokens, if they were asked for

    @classmethod
    def of(cls, logits: mx.array, ranks: int = 0) -> Odds:
        gaps = to_gaps(logits)
        total = mx.power(0.5, gaps).sum(axis=-1, keepdims=True)
        return cls(gaps, mx.log2(total), most_probable(gaps, ranks) if ranks else None)


class Measured(NamedTuple):
    """What is known about one position of each sequence, before anything is decided."""

    gaps: mx.array  # `(batch, vocab)`
    top_surprise: mx.array  # `(batch, 1)`
    values: mx.array  # `(batch, 8)`: the metrics, in the order of `Metrics`
    gap_sum: mx.array  # `(batch, 1)`, in bits
    ranked: Candidates | None = None  # the most probable tokens, if they were asked for
    changed: Odds | None = None  # what is drawn from, if not the distribution that was measured
    chance: mx.array | None = None  # `(batch or 1,)`: uniforms in [0, 1), if they are asked for

    @property
    def odds(self) -> Odds:
        """What is drawn from. Filters act on it; thresholds are compared with `metrics`."""
        return self.changed or Odds(self.gaps, self.top_surprise, self.ranked)

    @property
    def metrics(self) -> Metrics[mx.array]:
        return Metrics(*(self.values[:, index] for index in range(len(Metrics._fields))))


def measure_logits(
    logits: mx.array, attention: mx.array, ranks: int = 0, kernels: LogitKernels = PLAIN
) -> Measured:
    """Measure `(batch, vocab)` logits, ranking some tokens; `attention` are its `(batch, 5)`
    metrics."""
    gaps = to_gaps(logits)
    ranked = most_probable(gaps, ranks) if ranks else None
    found = spread(gaps, ranked, kernels)
    values = kernels.columns([*found[:3], *columns_of(attention)])
    return Measured(gaps, found.top_surprise, values, found.gap_sum, ranked)
