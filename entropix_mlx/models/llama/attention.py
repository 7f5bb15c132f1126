"""Scaled dot-product attention that can also return its scores, and that shares a prefix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx


class KeysValues(NamedTuple):
    """Cached keys and values: `(batch, kv_heads, length, head_dim)` each."""

    keys: mx.array
    values: mx.array


class Masked(NamedTuple):
    """Attention scores of which some are hidden from the query."""

    scores: mx.array
    """`(batch, heads, keys)`; −∞ where a key is hidden."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.scores.shape

    @property
    def size(self) -> int:
        return self.scores.size

    def part(self, first: int, end: int) -> Masked:
        """Return the scores of some of the queries, which are the first axis."""
        return Masked(self.scores[first:end])


class AttentionQueries(NamedTuple):
    """Deferred attention of a block of tokens in one layer: each one's query, and all keys.

    Scores are computed from these on demand, because those of a long text would fill the memory.
    """

    queries: mx.array
    """`(1, heads, length, head_dim)`, multiplied by the scale: those of the last `length` keys."""
    keys: mx.array
    """`(1, kv_heads, keys, head_dim)`"""
    first: int = 0
    """The index of the first token among those of the pass."""
    gather: Callable[[AttentionQueries, mx.array], mx.array] | None = None
    """Given these queries and their scores `(heads, …)`, returns the scores of all heads, where
    other machines compute some of them."""
    other_heads: int = 0
    """Heads that other machines compute."""

    @property
    def heads(self) -> int:
        return int(self.queries.shape[1]) + self.other_heads

    @property
    def length(self) -> int:
        return int(self.queries.shape[2])

    def part(self, first: int, end: int) -> AttentionQueries:
        """Return the queries of some of the tokens, with the keys up to the last of them."""
        later = self.length - end
        keys = self.keys[:, :, : self.keys.shape[2] - later]
        return self._replace(
            queries=self.queries[:, :, first:end], keys=keys, first=self.first + first
        )

    def key_counts(self) -> list[int]:
        """Return how many keys each token can see: its own is the last of them."""
        keys = int(self.keys.shape[2])
        return list(range(keys - self.length + 1, keys + 1))

    def scores(self) -> mx.array:
        """Return the scores before softmax `(length, heads, keys)`, −∞ for keys that come later."""
        _, heads, length, head_dim = self.queries.shape
        kv_heads, keys = self.keys.shape[1:3]
        # As in attend_with_scores, the queries are grouped by their key head.
        grouped = self.queries.reshape(kv_heads, heads // kv_heads * length, head_dim)
        by_head = (grouped @ self.keys[0].swapaxes(-1, -2)).reshape(heads, length, keys)
        if self.gather is not None:
            by_head = self.gather(self, by_head)
        later = mx.arange(keys) >= mx.array(self.key_counts())[:, None]
        return mx.where(later[:, None], -math.inf, by_head.swapaxes(0, 1))


RowScores: TypeAlias = mx.array | Masked | AttentionQueries
"""Attention scores `(rows, heads, keys)` of one group of rows in one layer; deferred where the rows
are tokens of one text."""


def attend(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any = None
) -> mx.array:
    """Return the attention output `(batch, heads, length, head_dim)`, by MLX's fused kernel.

    Args:
        queries: `(batch, heads, length, head_dim)`.
        keys: `(batch, kv_heads, keys, head_dim)`; heads are a multiple of kv_heads.
        values: as keys.
        scale: factor on the dot products, 1/√head_dim.
        mask: None, ``"causal"``, or an array that MLX's kernel takes.
    """
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)


def attend_with_scores(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any = None
) -> tuple[mx.array, mx.array]:
    """Return the output as `attend` does, and the last query's scores `(batch, heads, keys)`.

    The scores are the scaled dot products before softmax. With a single query, as in decoding, the
    output is computed from the same scores. With several, as in prefill, the output comes from the
    fused kernel, and the scores of the last query alone are computed beside it.

    Args and shapes: as for `attend`.
    """
    batch, heads, length, head_dim = queries.shape
    kv_heads = keys.shape[1]
    # Grouped-query attention: heads // kv_heads queries share a key head. Reshaping the queries to
    # (batch, kv_heads, group, head_dim) multiplies each group by its key head; no key is repeated.
    last = queries[:, :, -1].reshape(batch, kv_heads, heads // kv_heads, head_dim)
    scores = (last * scale) @ keys.swapaxes(-1, -2)
    if length > 1:
        output = attend(queries, keys, values, scale, mask)
    else:
        weights = mx.softmax(scores, axis=-1, precise=True)
        output = (weights @ values).reshape(batch, heads, 1, head_dim)
    return output, scores.reshape(batch, heads, -1)


def attend_block(queries: mx.array, pieces: Sequence[KeysValues], scale: float) -> mx.array:
    """Return the output `(1, heads, length, head_dim)` of a block of tokens after a shared prefix.

    It equals that of `attend` on the joined pieces with a causal mask, and copies none of them.

    Args:
        queries: `(1, heads, length, head_dim)`, those of the last `length` keys.
        pieces: all keys and values, in order, `(1, kv_heads, n, head_dim)` each; those of the
            queries are in the last one.
        scale: factor on the dot products, 1/√head_dim.
    """
    _, heads, length, head_dim = queries.shape
    kv_heads = pieces[0].keys.shape[1]
    # 1. As in attend_with_scores, the queries are grouped by their key head: (group · length) rows.
    grouped = (queries * scale).reshape(1, kv_heads, heads // kv_heads * length, head_dim)
    # 2. The scores of all pieces are joined, as a single cache would have them.
    scores = mx.concatenate([grouped @ piece.keys.swapaxes(-1, -2) for piece in pieces], axis=-1)
    # 3. Token i of the block is key n − length + i of n: the keys after it are hidden.
    keys = scores.shape[-1]
    later = mx.arange(keys) > mx.arange(keys - length, keys)[:, None]
    scores = scores.reshape(1, heads, length, keys)
    weights = mx.softmax(mx.where(later, -math.inf, scores), axis=-1, precise=True)
    # 4. Each piece adds the values that its own columns of the weights select.
    weights = weights.reshape((*grouped.shape[:3], keys))
    output, start = mx.zeros_like(grouped), 0
    for piece in pieces:
        end = start + piece.keys.shape[2]
        output = output + weights[..., start:end] @ piece.values
        start = end
    return output.reshape(queries.shape)


def attend_shared(
    queries: mx.array, prefixes: Sequence[KeysValues], suffix: KeysValues, scale: float
) -> tuple[mx.array, mx.array]:
    """Return the output and scores of several rows that share prefixes, one query each.

    The keys and values of the prefixes are stored once for all rows, and neither copied nor
    repeated. For two rows, of which each has added three tokens::

                      prefix, stored once         suffix, row by row
                      p0  p1  p2  p3  …  p99      s0  s1  s2
        row 0      ┌──────────────────────────┐ ┌───────────┐
                   │                          │ │ a0  a1  a2│
        row 1      │      one product with    │ ├───────────┤
                   │  the queries of both     │ │ b0  b1  b2│
                   └──────────────────────────┘ └───────────┘
                   └──────────── one softmax a row ─────────┘

    Args:
        queries: `(rows, heads, 1, head_dim)`.
        prefixes: the texts before all rows, in order, with a batch of one each: `(1, kv_heads, n,
            head_dim)`. There are two where an answer to a shared prompt forks: the prompt, and the
            answer so far.
        suffix: the tokens of each row: `(rows, kv_heads, m, head_dim)`.
        scale: factor on the dot products, 1/√head_dim.

    Returns:
        The output, shaped as the queries, and the scores `(rows, heads, all keys)`.
    """
    rows, heads, _, head_dim = queries.shape
    kv_heads = suffix.keys.shape[1]

    def fold(x: mx.array) -> mx.array:
        """Return `(rows, kv_heads, group, n)` as `(1, kv_heads, rows · group, n)`."""
        return x.swapaxes(0, 1).reshape(1, kv_heads, -1, x.shape[-1])

    def unfold(x: mx.array) -> mx.array:
        return x.reshape(kv_heads, rows, -1, x.shape[-1]).swapaxes(0, 1)

    # As in attend_with_scores, the queries are grouped by their key head.
    grouped = (queries * scale).reshape(rows, kv_heads, heads // kv_heads, head_dim)
    # 1. Over a prefix, the rows' queries are folded into one axis, as if they were further queries
    #    of a single sequence: one matrix product reads the prefix's keys once.
    folded = fold(grouped)
    over_prefixes = [unfold(folded @ prefix.keys.swapaxes(-1, -2)) for prefix in prefixes]
    # 2. Over the suffix, each row's queries meet its own keys: a batched product.
    over_suffix = grouped @ suffix.keys.swapaxes(-1, -2)
    # 3. The scores of all parts are joined for the softmax, as a single cache would have them.
    scores = mx.concatenate([*over_prefixes, over_suffix], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    # 4. The output is the sum of the weighted values of each prefix (folded again) and the suffix.
    output, start = None, 0
    for prefix in prefixes:
        end = start + prefix.keys.shape[2]
        part = unfold(fold(weights[..., start:end]) @ prefix.values)
        output = part if output is None else output + part
        start = end
    part = weights[..., start:] @ suffix.values
    output = part if output is None else output + part
    return output.reshape(queries.shape), scores.reshape(rows, heads, -1)
