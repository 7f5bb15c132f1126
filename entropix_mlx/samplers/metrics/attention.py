"""Metrics of attention: how spread each head's weights are, and how far the heads agree.

They come from *scores*, the scaled dot products of a query with keys, before softmax. In a layer
there are three forms of them (`RowScores`): an array where the query can see all keys, `Masked`
where some are hidden, and `AttentionQueries` where the queries are consecutive tokens of one text.
All three end in `_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ...models.llama.attention import AttentionQueries, Masked, RowScores
from .fused import columns_of, concatenated, selected, summed_together
from .logits import Moments, moment_terms, to_gaps

LAYER_SCORES = 2**17
"""Scores of layers that are measured together: several arrays of that size are in memory then."""
RUN_SCORES = 2**21  # the same of tokens in a row
_BY_HEADS = np.array([1, 1, 0, 1 / 2, 0])
_BY_HEADS_AND_KEYS = np.array([0, 0, 1, 0, 1])
"""What turns each sum of `_over_heads` into a metric: it is divided by the heads, or also by the
keys. Agreement is a mean over heads and keys; total variation is half the sum over the keys."""


class AttentionKernels(NamedTuple):
    """The two halves of `_metrics`, compiled or not; the slices between them depend on lengths.

    The number of keys grows with every token: compiled for one shape, the halves serve all.
    """

    over_keys: Callable[[mx.array], tuple[mx.array, Any]]
    """Takes the scores, and returns an array as large as they are and some sums over the keys."""
    split: Callable[[Any], Sequence[mx.array]]
    """Returns those sums as columns `(…, heads, 1)`; the last is Σ |score|."""
    over_heads: Callable[..., mx.array]
    """Takes that array, the columns, and `each_head` and `factors` as `_over_heads` does."""


def _plain_over_keys(scores: mx.array) -> tuple[mx.array, list[mx.array]]:
    scores = scores.astype(mx.float32)
    gaps = to_gaps(scores)
    weights = mx.power(0.5, gaps)
    total = weights.sum(axis=-1, keepdims=True)
    probabilities = weights / total
    entropy = mx.log2(total) + (probabilities * gaps).sum(axis=-1, keepdims=True)
    magnitude = mx.abs(scores).sum(axis=-1, keepdims=True)
    return probabilities, [entropy, magnitude]


def _plain_over_heads(
    probabilities: mx.array, columns: Sequence[mx.array], *rest: mx.array
) -> mx.array:
    return _over_heads(concatenated, probabilities, *columns, *rest)


def _fused_over_keys(scores: mx.array) -> tuple[mx.array, mx.array]:
    scores = scores.astype(mx.float32)
    gaps = to_gaps(scores)
    return gaps, summed_together(_terms, gaps, scores)


def _terms(gaps: mx.array, scores: mx.array) -> list[mx.array]:
    return [*moment_terms(mx.power(0.5, gaps), gaps), mx.abs(scores)]


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
    """Return the five metrics `(…, 5)` of `(…, heads, keys)` attention weights.

    Their entropy and Σ |score| over the keys are `(…, heads, 1)`; `each_head` is 1 / heads, and the
    `factors` `(…, 5)` are those of `_factors`.
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
    return AttentionKernels(
        _for_any_length(_fused_over_keys), columns_of, _for_any_length(_fused_over_heads)
    )


def _for_any_length(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `(…, heads, keys)` and more, compiled once for all shapes.

    One head or one key needs no broadcasting. A graph that was traced with it has none, and with
    more of them it would read and write beside its arrays: such shapes are not compiled.
    """
    compiled = mx.compile(function, shapeless=True)

    def call(first: mx.array, *rest: Any) -> Any:
        return (function if 1 in first.shape[-2:] else compiled)(first, *rest)

    return call


def measure_attention(
    layers: Sequence[RowScores], kernels: AttentionKernels = PLAIN_ATTENTION
) -> mx.array:
    """Return the attention metrics `(rows, 5)` of one group of rows, each the mean of the layers'.

    In the order of `Metrics`: entropy, varentropy, agreement, divergence, interaction strength.
    There is at least one layer.
    """
    runs = [layer for layer in layers if isinstance(layer, AttentionQueries)]
    if runs:
        return _measure_runs(runs, kernels)
    measured = list(
        _by_layer([layer for layer in layers if not isinstance(layer, AttentionQueries)], kernels)
    )
    if len(layers) == 1:
        return measured[0].squeeze(0)
    return mx.concatenate(measured).mean(axis=0)


def _by_layer(layers: Sequence[mx.array | Masked], kernels: AttentionKernels) -> Iterator[mx.array]:
    """Yield the metrics `(layers, rows, 5)` of as many layers of one shape as fit together."""
    for _, group in groupby(layers, key=lambda layer: (type(layer), layer.shape)):
        members = list(group)
        yield from (_masked(layer, kernels)[None] for layer in members if isinstance(layer, Masked))
        alike = [layer for layer in members if not isinstance(layer, Masked)]
        most = max(1, LAYER_SCORES // members[0].size)
        for first in range(0, len(alike), most):
            together = alike[first : first + most]
            scores = mx.stack(together) if len(together) > 1 else together[0][None]
            heads, keys = scores.shape[-2:]
            yield _metrics(scores, _factors(heads, keys), kernels)


def _masked(layer: Masked, kernels: AttentionKernels) -> mx.array:
    """Return the metrics `(rows, 5)` of one layer, as if its hidden keys were not there."""
    heads = layer.shape[-2]
    visible = (layer.scores > -mx.inf).any(axis=-2).sum(axis=-1, keepdims=True)
    factors = mx.array(_BY_HEADS / heads) + mx.array(_BY_HEADS_AND_KEYS / heads) / visible
    return _metrics(layer.scores, factors, kernels, hidden=True)


def _measure_runs(layers: Sequence[AttentionQueries], kernels: AttentionKernels) -> mx.array:
    """Return the metrics `(length, 5)` of tokens that follow one another, part by part."""
    first = layers[0]
    tokens = max(1, RUN_SCORES // (first.heads * first.keys.shape[2]))
    parts = []
    for begin in range(0, first.length, tokens):
        end = min(begin + tokens, first.length)
        measured = [_measure_run(layer.part(begin, end), kernels) for layer in layers]
        parts.append(measured[0] if len(measured) == 1 else mx.stack(measured).mean(axis=0))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _measure_run(run: AttentionQueries, kernels: AttentionKernels) -> mx.array:
    return _metrics(run.scores(), _factors(run.heads, run.key_counts()), kernels, hidden=True)


def _factors(heads: int, keys: int | Sequence[int]) -> mx.array:
    """Return the factors `(5,)` of a number of keys, or `(…, 5)` of several numbers."""
    by_keys = np.asarray(keys)[..., None]
    return mx.array(_BY_HEADS / heads + _BY_HEADS_AND_KEYS / heads / by_keys)


def _metrics(
    scores: mx.array, factors: mx.array, kernels: AttentionKernels, hidden: bool = False
) -> mx.array:
    """Return the five metrics `(…, 5)` of `(…, heads, keys)` scores.

    Where keys may be hidden from the query, their scores are −∞.
    """
    keyed, sums = kernels.over_keys(scores)
    columns = kernels.split(sums)
    if hidden:  # Σ |score| must leave out their −∞
        seen = mx.where(mx.isneginf(scores), 0.0, mx.abs(scores.astype(mx.float32)))
        columns = [*columns[:-1], seen.sum(axis=-1, keepdims=True)]
    return kernels.over_heads(keyed, columns, mx.array(1 / scores.shape[-2]), factors)
