"""The KV cache of a layer: mlx-lm's for one text, and two more for rows that go through together.

A pass takes rows in groups, and a group has a cache:

    KVCache            one row, one text
    SharedPrefixCache  several rows that read one beginning and add a few tokens each: the rollouts
                       at a branch point, or one sample of a prompt that others share
    RowGroups          several groups, each with one of the two above; nothing is padded
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .attention import KeysValues, attend, attend_shared, attend_with_scores

Scores: TypeAlias = mx.array | tuple[mx.array, ...]
"""Attention scores `(rows, heads, keys)`, or those of each group, which differ in their keys."""


class SharedPrefixCache:
    """Rows that share a beginning, which they only read, and have a suffix each.

    All suffixes have the same number of tokens, so one array holds them, a row each.
    """

    def __init__(self, prefixes: Sequence[KVCache], step: int) -> None:
        """Begin with empty suffixes.

        Args:
            prefixes: what all rows follow, in pieces, the first one first; each of one text. They
                must not change while the rows are decoded.
            step: tokens by which the memory of the suffixes grows.
        """
        self.prefixes = tuple(piece for piece in prefixes if piece.offset)
        self.suffix = KVCache()
        self.suffix.step = step

    @property
    def offset(self) -> int:
        """Number of tokens before the next one, the same for all rows."""
        return int(self.suffix.offset + sum(piece.offset for piece in self.prefixes))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> KeysValues:
        """Add `(rows, kv_heads, n, head_dim)` to the suffixes and return all of those."""
        return KeysValues(*self.suffix.update_and_fetch(keys, values))

    def shared(self) -> list[KeysValues]:
        """Return the shared pieces, with a batch of one each."""
        return [KeysValues(*piece.keys_and_values()) for piece in self.prefixes]

    def trim(self, count: int) -> None:
        """Take the last tokens of every suffix away."""
        self.suffix.trim(count)

    def of_rows(self, rows: Sequence[int]) -> SharedPrefixCache:
        """Return the cache of some of the rows; their suffixes are copied."""
        part = SharedPrefixCache(self.prefixes, self.suffix.step)
        if self.suffix.offset:
            keys, values = self.suffix.keys_and_values()
            index = mx.array(list(rows))
            part.suffix.update_and_fetch(keys[index], values[index])
        return part

    def commit(self, row: int, length: int, text: KVCache) -> None:
        """Append the first `length` tokens of one row's suffix to the cache of a text."""
        keys, values = self.suffix.keys_and_values()
        one = slice(row, row + 1)
        text.update_and_fetch(keys[one, :, :length], values[one, :, :length])


class RowGroups:
    """Groups of rows that take one token each: every group attends to what it has cached."""

    def __init__(
        self,
        groups: Sequence[KVCache | SharedPrefixCache],
        sizes: Sequence[int],
        offsets: mx.array,
    ) -> None:
        """Combine the caches of one layer.

        Args:
            groups: one cache a group.
            sizes: rows of each group.
            offsets: `(rows,)` tokens before the next one; the same array serves every layer.
        """
        ends = list(accumulate(sizes))
        self._groups = [
            (cache, slice(end - size, end))
            for cache, size, end in zip(groups, sizes, ends, strict=True)
        ]
        self.offset = offsets

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, with_scores: bool
    ) -> tuple[mx.array, tuple[mx.array, ...] | None]:
        """Return the outputs of all rows, and each group's scores if asked for."""
        parts = [
            attend_cached(
                cache, queries[rows], keys[rows], values[rows], scale, with_scores=with_scores
            )
            for cache, rows in self._groups
        ]
        outputs = mx.concatenate([output for output, _ in parts])
        scores = tuple(scores for _, scores in parts if isinstance(scores, mx.array))
        return outputs, scores if with_scores else None


LayerCache: TypeAlias = KVCache | SharedPrefixCache | RowGroups


def attend_cached(
    cache: LayerCache,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: Any = None,
    with_scores: bool = False,
) -> tuple[mx.array, Scores | None]:
    """Add keys and values to a layer's cache and attend to all that it holds.

    Args:
        cache: updated in place.
        queries: `(rows, heads, length, head_dim)`; rows that share a prefix have length 1.
        keys: `(rows, kv_heads, length, head_dim)`; values alike.
        values: see keys.
        scale: factor on the dot products, 1/√head_dim.
        mask: None or ``"causal"``.
        with_scores: whether to return the last query's scores.
    """
    if isinstance(cache, RowGroups):
        return cache.attend(queries, keys, values, scale, with_scores)
    if isinstance(cache, SharedPrefixCache):
        suffix = cache.update_and_fetch(keys, values)
        output, scores = attend_shared(queries, cache.shared(), suffix, scale)
        return output, scores if with_scores else None
    keys, values = cache.update_and_fetch(keys, values)
    if with_scores:
        return attend_with_scores(queries, keys, values, scale, mask)
    return attend(queries, keys, values, scale, mask), None


def trim(cache: Sequence[KVCache | SharedPrefixCache], length: int) -> None:
    """Shorten a cache to at most `length` tokens, the same in all layers.

    An interrupt in the middle of a forward pass leaves layers with different numbers of tokens:
    those below have the pass's tokens already, those above do not. Then all are shortened to the
    shortest.
    """
    length = min(length, *(layer.offset for layer in cache))
    for layer in cache:
        layer.trim(layer.offset - length)
