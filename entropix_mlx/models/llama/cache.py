"""The KV cache of a layer: mlx-lm's for one text, and two more for rows that go through together.

A pass takes rows in groups, and a group has a cache:

    KVCache            one row, one text
    SharedPrefixCache  several rows that read one beginning and add a few tokens each: the rollouts
                       at a branch point, or one sample of a prompt that others share
    RowGroups          several groups, each with one of the two above; nothing is padded
    BlockCache         one row, several tokens, each of which is measured
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .attention import (
    AttentionQueries,
    KeysValues,
    RowScores,
    attend,
    attend_block,
    attend_shared,
    attend_with_scores,
)

Scores: TypeAlias = RowScores | tuple[RowScores, ...]
"""The attention scores of all rows in one layer, or those of each group, which differ in their
keys."""


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

    def commit(self, row: int, length: int, text: KVCache | SharedPrefixCache) -> None:
        """Append the first `length` tokens of one row's suffix to the cache of a text."""
        text = _own(text)
        keys, values = self.suffix.keys_and_values()
        one = slice(row, row + 1)
        text.update_and_fetch(keys[one, :, :length], values[one, :, :length])

    def arrays(self) -> list[mx.array]:
        """Return the keys and values of the suffixes."""
        return arrays_of(self.suffix)

    def share(self, step: int, rows: int) -> SharedPrefixCache:
        """Return the cache of rows that go on from here, of which there must be one."""
        return SharedPrefixCache([*self.prefixes, self.suffix], step)


class BlockCache:
    """The cache of one text for a run of tokens, every one of which is measured."""

    def __init__(self, cache: KVCache | SharedPrefixCache) -> None:
        """Wrap a layer's cache, which is updated as without; of rows that share, one row's."""
        self.cache = cache

    @property
    def offset(self) -> int:
        """Number of tokens before the next one."""
        return int(self.cache.offset)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, with_scores: bool
    ) -> tuple[mx.array, AttentionQueries | None]:
        """Return the outputs, and what each token looked at if asked for.

        Args: as for `attend_cached`, with one row.
        """
        keys, values = self.cache.update_and_fetch(keys, values)
        if isinstance(self.cache, SharedPrefixCache):
            pieces = [*self.cache.shared(), KeysValues(keys, values)]
            output = attend_block(queries, pieces, scale)
            if with_scores:
                keys = mx.concatenate([piece.keys for piece in pieces], axis=2)
        else:
            mask = "causal" if queries.shape[2] > 1 else None
            output = attend(queries, keys, values, scale, mask)
        return output, AttentionQueries(queries * scale, keys) if with_scores else None

    def attend_rows(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, with_scores: bool
    ) -> tuple[mx.array, AttentionQueries | None]:
        """Do the same where the tokens are rows: arrays `(length, heads, 1, head_dim)`."""
        queries, keys, values = (array.swapaxes(0, 2) for array in (queries, keys, values))
        output, looks = self.attend(queries, keys, values, scale, with_scores)
        return output.swapaxes(0, 2), looks


class RowGroups:
    """Groups of rows that take one token each: every group attends to what it has cached.

    The rows of a `BlockCache` group are tokens that follow one another in one text.
    """

    def __init__(
        self,
        groups: Sequence[KVCache | SharedPrefixCache | BlockCache],
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
    ) -> tuple[mx.array, tuple[mx.array | AttentionQueries, ...] | None]:
        """Return the outputs of all rows, and each group's scores if asked for."""
        parts = [
            _attend_group(cache, (queries[rows], keys[rows], values[rows]), scale, with_scores)
            for cache, rows in self._groups
        ]
        outputs = mx.concatenate([output for output, _ in parts])
        scores = tuple(scores for _, scores in parts if scores is not None)
        return outputs, scores if with_scores else None


LayerCache: TypeAlias = KVCache | SharedPrefixCache | RowGroups | BlockCache


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
        with_scores: whether to return the last query's scores; of a `BlockCache`, every query's.
    """
    if isinstance(cache, RowGroups | BlockCache):
        return cache.attend(queries, keys, values, scale, with_scores)
    if isinstance(cache, SharedPrefixCache):
        return _attend_group(cache, (queries, keys, values), scale, with_scores)
    keys, values = cache.update_and_fetch(keys, values)
    if with_scores:
        return attend_with_scores(queries, keys, values, scale, mask)
    return attend(queries, keys, values, scale, mask), None


def _attend_group(
    cache: KVCache | SharedPrefixCache | BlockCache,
    arrays: tuple[mx.array, mx.array, mx.array],
    scale: float,
    with_scores: bool,
) -> tuple[mx.array, mx.array | AttentionQueries | None]:
    """Do for the queries, keys and values of one group what `attend_cached` does."""
    if isinstance(cache, BlockCache):
        return cache.attend_rows(*arrays, scale, with_scores)
    if isinstance(cache, SharedPrefixCache):
        suffix = cache.update_and_fetch(*arrays[1:])
        output, scores = attend_shared(arrays[0], cache.shared(), suffix, scale)
        return output, scores if with_scores else None
    keys, values = cache.update_and_fetch(*arrays[1:])
    if with_scores:
        return attend_with_scores(arrays[0], keys, values, scale)
    return attend(arrays[0], keys, values, scale), None


class TextCache(Protocol):
    """What the decode core knows of a cache: that of a layer, or of a whole model.

    mlx-lm's `KVCache` has the first two members; `arrays_of`, `share` and `anchor` add the others.
    """

    @property
    def offset(self) -> int:
        """Number of tokens before the next one."""

    def trim(self, count: int) -> Any:
        """Take the last tokens of every row away, or more of them where it cannot be so many."""


class RowsCache(TextCache, Protocol):
    """The cache of rows that go on from one text, which they only read."""

    def of_rows(self, rows: Sequence[int]) -> RowsCache:
        """Return the cache of some of the rows."""

    def commit(self, row: int, length: int, text: Any) -> None:
        """Append the first `length` tokens of one row to the cache of the text."""

    def arrays(self) -> list[mx.array]:
        """Return what only these rows have, for MLX to compute."""

    def share(self, step: int, rows: int) -> RowsCache:
        """Return the cache of rows that go on from here; growing by `step` tokens."""


def arrays_of(layer: Any) -> list[mx.array]:
    """Return the arrays that only this cache has, for MLX to compute."""
    if isinstance(layer, KVCache):
        return [layer.keys, layer.values] if layer.offset else []
    arrays: list[mx.array] = layer.arrays()
    return arrays


def share(layer: Any, step: int, rows: int = 1) -> RowsCache:
    """Return the cache of rows that go on from a text, whose cache must not change meanwhile.

    Args:
        layer: of the text.
        step: tokens by which the memory of the rows grows.
        rows: how many there will be.
    """
    if not hasattr(layer, "share"):  # mlx-lm's own
        return SharedPrefixCache([layer], step)
    shared: RowsCache = layer.share(step, rows)
    return shared


def takes_blocks(layer: Any) -> bool:
    """Tell whether a cache can go back to any place behind the first token of a pass."""
    return bool(getattr(layer, "takes_blocks", True))


def anchor(layer: Any) -> None:
    """Have a cache that cannot be cut anywhere remember this place; others need not."""
    if hasattr(layer, "anchor"):
        layer.anchor()


def hold(layer: Any) -> None:
    """Have a cache that cannot be cut anywhere remember this place until it is back there."""
    if hasattr(layer, "hold"):
        layer.hold()


def copied(layer: Any, length: int) -> Any:
    """Return a cache of its own with the first tokens of a layer's; at most `length` of them."""
    return layer.copy(length) if hasattr(layer, "copy") else own_copy(layer, length)


def own_copy(layer: KVCache | SharedPrefixCache, length: int) -> KVCache:
    """Return the first tokens of a layer's cache in one piece, at most `length` of them."""
    pieces = [*layer.prefixes, layer.suffix] if isinstance(layer, SharedPrefixCache) else [layer]
    whole, left = KVCache(), length
    for piece in pieces:
        count = min(left, int(piece.offset))
        if count:
            keys, values = piece.keys_and_values()
            whole.update_and_fetch(keys[..., :count, :], values[..., :count, :])
            left -= count
    return whole


def _own(layer: KVCache | SharedPrefixCache) -> KVCache:
    """Return the part of a layer's cache that only this text has."""
    return layer.suffix if isinstance(layer, SharedPrefixCache) else layer


def trim(cache: Sequence[TextCache], length: int) -> None:
    """Shorten a cache to at most `length` tokens, the same in all layers.

    An interrupt in the middle of a forward pass leaves layers with different numbers of tokens:
    those below have the pass's tokens already, those above do not. Then all are shortened to the
    shortest.
    """
    length = min(length, *(layer.offset for layer in cache))
    for layer in cache:
        layer.trim(layer.offset - length)
