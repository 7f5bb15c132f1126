"""Metrics of one position of several rows: of its logits, and of its attention.

Both are computed from *gaps*: by how many bits a logit, or an attention score, lies below the
highest one. A relative probability is 2^−gap: bits need no conversion and, on MLX's CPU backend, a
power of a constant is three times faster than ``exp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..models.device import compiles
from ..step import Metrics

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
SMALLEST = 2.0**-126  # the smallest normal float32
LARGEST_GAP = 256.0  # bits. 2^−256 is 0 in float32, and 0 · 256 is 0 where 0 · ∞ would be NaN.
FORBIDDEN_GAP = 2.0**50  # of a token that is not allowed: 2^−gap is 0 at any temperature
MIN_TEMPERATURE = 1e-6  # what is divided by for a temperature of 0: the most probable token
BLOCK = 16  # tokens in a block of the vocabulary, see `most_probable`
_SECOND = mx.array([[[False]], [[True]]])  # for two sums over the same axis in one kernel
_A_KEY = mx.array([False, False, True, False, True])  # attention metrics that are means over keys
_FIRST, _LAST = mx.array([[True, False, False]]), mx.array([[False, False, True]])
SCORES_AT_ONCE = 2**17  # scores of layers that are measured together


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
    return mx.power(0.5, gaps / mx.maximum(temperature[:, None], MIN_TEMPERATURE))


def most_probable(gaps: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return the `count` tokens of smallest gap, the smallest first, and their gaps; both are
    `(rows, count)`. The vocabulary is not sorted.

    1. The vocabulary is cut into blocks of `BLOCK` tokens, and the smallest gap of each is found.
    2. Only the `count` blocks with the smallest minima are searched. No better token can be
       elsewhere: each of those blocks holds one that is at least as good as all of another block.
    3. The tokens of these blocks, and those left over by the cutting, are sorted.
    """
    rows, vocab = gaps.shape
    count = min(count, vocab)
    blocks = vocab // BLOCK
    if blocks <= count:
        tokens = mx.argsort(gaps, axis=-1)[:, :count]
        return tokens, mx.take_along_axis(gaps, tokens, axis=-1)
    minima = _in_blocks(gaps).min(axis=-1)
    best = mx.argpartition(minima, kth=count - 1, axis=-1)[:, :count, None]

    def searched(array: mx.array) -> mx.array:
        inside = mx.take_along_axis(_in_blocks(array), best, axis=1).reshape(rows, -1)
        rest = mx.broadcast_to(array[:, blocks * BLOCK :], (rows, vocab % BLOCK))
        return mx.concatenate([inside, rest], axis=-1) if vocab % BLOCK else inside

    near = searched(gaps)
    order = mx.argsort(near, axis=-1)[:, :count]
    tokens = mx.take_along_axis(searched(_ids(vocab)), order, axis=-1)
    return tokens, mx.take_along_axis(near, order, axis=-1)


def _in_blocks(array: mx.array) -> mx.array:
    rows, vocab = array.shape
    blocks = vocab // BLOCK
    return array[:, : blocks * BLOCK].reshape(rows, blocks, BLOCK)


def _ids(vocab: int) -> mx.array:
    return mx.array(np.arange(vocab, dtype=np.uint32)[None])


class Measured(NamedTuple):
    """What is known about one position of each row, before anything is decided."""

    values: mx.array  # `(rows, 8)`: the metrics, in the order of `Metrics`
    gaps: mx.array  # `(rows, vocab)`: the model's own
    top_surprise: mx.array  # `(rows, 1)`: −log2 of the model's highest probability, in bits
    drawn_from: mx.array
    """`(rows, vocab)`: `gaps`, unless penalties or a constraint change them. Filters act on these;
    thresholds are compared with `metrics`."""
    ranked: tuple[mx.array, mx.array] | None = None  # `most_probable` of `gaps`, if asked for
    chance: mx.array | None = None  # `(rows or 1,)`: uniforms in [0, 1), if they are asked for

    @property
    def metrics(self) -> Metrics[mx.array]:
        return Metrics(*(self.values[:, index] for index in range(len(Metrics._fields))))

    def logprob(self, tokens: mx.array) -> mx.array:
        """Return the model's natural log probabilities, at temperature 1, of `(rows, n)` tokens."""
        gaps = mx.take_along_axis(self.gaps, tokens, axis=-1)
        return (gaps + self.top_surprise) * -LN_2


def measure(logits: mx.array, attention: mx.array, ranks: int = 0) -> Measured:
    """Measure `(rows, vocab)` logits; `attention` are their metrics `(rows, 5)`.

    With w = 2^−gap and Z = Σ w, a surprise −log2 p is gap + log2 Z, so the entropy is log2 Z plus
    the mean gap, and the varentropy is the variance of the gap. `ranks` tokens are put in order.
    """
    gaps = to_gaps(logits)
    ranked = most_probable(gaps, ranks) if ranks else None
    top = ranked[0][:, :1] if ranked else gaps.argmin(axis=-1, keepdims=True)
    weights = mx.power(0.5, gaps)
    # Beside the 1 of the most probable token a tail of 1e-20 would vanish, and with it all of a
    # small entropy: the tail is summed by itself.
    rest = mx.where(_ids(gaps.shape[-1]) == top, 0.0, weights)
    sums = (rest * mx.where(_SECOND, gaps, 1.0)).sum(axis=-1, keepdims=True)  # of w and of w · gap
    tail, weighted = (part.squeeze(0) for part in mx.split(sums, 2))
    in_bits = mx.where(_FIRST[:, :2], mx.log1p(tail) * LOG2_E, weighted / (tail + 1))
    top_surprise, mean_gap = mx.split(in_bits, 2, axis=-1)
    squares = (weights * mx.square(gaps - mean_gap)).sum(axis=-1, keepdims=True)
    if ranked and ranked[1].shape[-1] > 1:
        second = mx.power(0.5, ranked[1][:, 1:2])
    else:
        second = rest.max(axis=-1, keepdims=True)
    highest = mx.power(0.5, top_surprise)
    own = mx.where(_FIRST, top_surprise + mean_gap, mx.where(_LAST, 1 - second, squares) * highest)
    values = mx.concatenate([own, attention], axis=-1)
    return Measured(values, gaps, top_surprise, gaps, ranked)


def measure_attention(layers: Sequence[mx.array]) -> mx.array:
    """Return the attention metrics `(rows, 5)`, each the mean over the layers.

    In the order of `Metrics`: entropy, varentropy, agreement, divergence, interaction strength.

    Args:
        layers: of each measured layer, the scores `(rows, heads, keys)` before softmax, −∞ where a
            key is hidden from the row. There is at least one layer.
    """
    measured = []
    for _, group in groupby(layers, key=lambda layer: layer.shape):
        alike = list(group)
        most = max(1, SCORES_AT_ONCE // alike[0].size)
        for first in range(0, len(alike), most):
            scores = mx.stack(alike[first : first + most])
            count = scores.shape[-2]
            each_head = mx.array(1 / count)
            heads = mx.array([-count, count, 1.0, 2.0 * count, 1.0])
            # One head or one key needs no broadcasting. A graph that was traced with it has none,
            # and with more of them it would read and write beside its arrays.
            fused = compiles() and 1 not in scores.shape[-2:]
            of_keys = _compiled_sums() if fused else attention_sums
            columns = _compiled_columns() if fused else _attention_columns
            measured.append(columns(of_keys(scores, each_head), heads))
    return measured[0].squeeze(0) if len(layers) == 1 else mx.concatenate(measured).mean(axis=0)


def attention_sums(
    scores: mx.array, each_head: mx.array
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Return what needs the keys of scores `(…, heads, keys)`; hidden keys do not count.

    `each_head` is 1 / heads: the number of heads must not be a part of a graph for all shapes.

    Returns:
        Of the heads, the negative sum of their entropies, that of their squared differences from
        the mean, and the distance of their probabilities from the mean, `(…, 1)` each; the number
        of visible keys of all heads and the sum of their magnitudes, `(2, …, 1)`.
    """
    probabilities = mx.softmax(scores, axis=-1)
    highest = probabilities.max(axis=-1, keepdims=True)
    # Logarithms of ratios to the highest: of nearly equal probabilities they are small and exact.
    ratios = mx.log2(mx.maximum(probabilities / highest, SMALLEST))
    negentropy = (probabilities * ratios).sum(axis=-1, keepdims=True) + mx.log2(highest)
    total = negentropy.sum(axis=-2, keepdims=True)
    spread = mx.square(negentropy - total * each_head).sum(axis=-2)
    mean = probabilities.sum(axis=-2, keepdims=True) * each_head
    distance = mx.abs(probabilities - mean).sum(axis=(-2, -1), keepdims=True)
    counted = mx.where(_SECOND[..., None, None], mx.abs(scores), 1.0)
    of_keys = mx.where(scores > -mx.inf, counted, 0.0).sum(axis=(-2, -1), keepdims=True)
    return total.squeeze(-2), spread, distance.squeeze(-2), of_keys.squeeze(-2)


def _attention_columns(
    sums: tuple[mx.array, mx.array, mx.array, mx.array], heads: mx.array
) -> mx.array:
    """Return the five metrics `(…, 5)` of `attention_sums`; `heads` are what divides each."""
    negentropy, spread, distance, of_keys = sums
    visible, magnitude = (part.squeeze(0) for part in mx.split(of_keys, 2))
    columns = mx.concatenate([negentropy, spread, distance, distance, magnitude], axis=-1)
    return columns / mx.where(_A_KEY, visible, heads)


@lru_cache(maxsize=1)
def _compiled_sums() -> Callable[..., Any]:
    return mx.compile(attention_sums, shapeless=True)


@lru_cache(maxsize=1)
def _compiled_columns() -> Callable[..., Any]:
    return mx.compile(_attention_columns)
