"""The KV cache of a layer: mlx-lm's for one text, and three more for passes of several rows.

A pass takes rows in groups, and a group has a cache:

    KVCache            one row, one text
    SharedPrefixCache  several rows that read one beginning and add a few tokens each: the branches
                       of a fork, or one answer to a prompt that others share
    BlockCache         one text that a block of tokens goes on, each of which is measured
    RowGroups          several groups, each with one of the three above; nothing is padded
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
            prefixes: the texts before all rows, in order. They must not change while the rows are
                decoded.
            step: tokens by which the memory of the suffixes grows.
        """
        self.prefixes = tuple(piece for piece in prefixes if piece.offset)
        self.suffix = KVCache()
        self.suffix.step = step

    @property
    def offset(self) -> int:
        return int(self.suffix.offset + sum(piece.offset for piece in self.prefixes))

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, with_scores: bool
    ) -> tuple[mx.array, mx.array | None]:
        """As `attend_cached`, with one token a row."""
        suffix = KeysValues(*self.suffix.update_and_fetch(keys, values))
        output, scores = attend_shared(queries, self._shared(), suffix, scale)
        return output, scores if with_scores else None

    def extended(self, keys: mx.array, values: mx.array) -> list[KeysValues]:
        """Add the keys and values of a block to the only row; return those of all its tokens."""
        return [*self._shared(), KeysValues(*self.suffix.update_and_fetch(keys, values))]

    def _shared(self) -> list[KeysValues]:
        return [KeysValues(*piece.keys_and_values()) for piece in self.prefixes]

    def trim(self, count: int) -> None:
        self.suffix.trim(count)

    def of_rows(self, rows: Sequence[int]) -> SharedPrefixCache:
        part = type(self)(self.prefixes, self.suffix.step)
        if self.suffix.offset:
            keys, values = self.suffix.keys_and_values()
            index = mx.array(list(rows))
            part.suffix.update_and_fetch(keys[index], values[index])
        return part

    def commit(self, row: int, length: int, text: KVCache | SharedPrefixCache) -> None:
        """Append the first `length` tokens of one row's suffix to the cache of a text."""
        own = text.suffix if isinstance(text, SharedPrefixCache) else text
        keys, values = self.suffix.keys_and_values()
        one = slice(row, row + 1)
        own.update_and_fetch(keys[one, :, :length], values[one, :, :length])

    def arrays(self) -> list[mx.array]:
        return arrays_of(self.suffix)

    def share(self, step: int, rows: int) -> SharedPrefixCache:
        return type(self)([*self.prefixes, self.suffix], step)


class BlockCache:
    """The cache of one text for a block of tokens, every one of which is measured."""

    def __init__(self, cache: KVCache | SharedPrefixCache) -> None:
        """Wrap a layer's cache, which is updated as without; of rows that share, one row's."""
        self.cache = cache

    @property
    def offset(self) -> int:
        return int(self.cache.offset)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, with_scores: bool
    ) -> tuple[mx.array, AttentionQueries | None]:
        """As `attend_cached`, with one row of several tokens."""
        if isinstance(self.cache, SharedPrefixCache):
            pieces = self.cache.extended(keys, values)
            output = attend_block(queries, pieces, scale)
            if with_scores:
                keys = mx.concatenate([piece.keys for piece in pieces], axis=2)
        else:
            keys, values = self.cache.update_and_fetch(keys, values)
            mask = "causal" if queries.shape[2] > 1 else None
            output = attend(queries, keys, values, scale, mask)
        return output, AttentionQueries(queries * scale, keys) if with_scores else None

    def attend_rows(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, with_scores: bool
    ) -> tuple[mx.array, AttentionQueries | None]:
        """Do the same where the tokens are rows: arrays `(length, heads, 1, head_dim)`."""
        queries, keys, values = (array.swapaxes(0, 2) for array in (queries, keys, values))
        output, deferred = self.attend(queries, keys, values, scale, with_scores)
        return output.swapaxes(0, 2), deferred


class RowGroups:
    """Groups of rows that take one token each: every group attends to its own cache.

    The rows of a `BlockCache` group are tokens that follow one another in one text.
    """

    def __init__(
        self,
        groups: Sequence[KVCache | SharedPrefixCache | BlockCache],
        sizes: Sequence[int],
        offsets: mx.array,
    ) -> None:
        """Combine the caches of one layer, one for each group of so many rows.

        `offsets` are the `(rows,)` tokens before the next one; one array serves every layer.
        """
        ends = list(accumulate(sizes))
        self._groups = [
            (cache, slice(end - size, end))
            for cache, size, end in zip(groups, sizes, ends, strict=True)
        ]
        self.offset = offsets

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, with_scores: bool
    ) -> tuple[mx.array, tuple[RowScores, ...] | None]:
        """As `attend_cached`; the scores are those of each group."""
        outputs: list[mx.array] = []
        all_scores: list[Any] = []
        for cache, rows in self._groups:
            arrays = queries[rows], keys[rows], values[rows]
            attended: tuple[mx.array, Any]
            if isinstance(cache, BlockCache):
                attended = cache.attend_rows(*arrays, scale, with_scores)
            else:
                attended = attend_cached(cache, *arrays, scale, None, with_scores)
            output, scores = attended
            outputs.append(output)
            all_scores.append(scores)
        return mx.concatenate(outputs), tuple(all_scores) if with_scores else None


LayerCache: TypeAlias = KVCache | SharedPrefixCache | BlockCache | RowGroups


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
        queries: `(rows, heads, length, head_dim)`; the length is 1 but for a `KVCache` and a
            `BlockCache`.
        keys: `(rows, kv_heads, length, head_dim)`; values alike.
        values: see keys.
        scale: factor on the dot products, 1/√head_dim.
        mask: None or ``"causal"``, for a `KVCache`.
        with_scores: whether to return the last query's scores, or a `BlockCache`'s of every query,
            as `Scores`.
    """
    if not isinstance(cache, KVCache):
        return cache.attend(queries, keys, values, scale, with_scores)
    keys, values = cache.update_and_fetch(keys, values)
    if with_scores:
        return attend_with_scores(queries, keys, values, scale, mask)
    return attend(queries, keys, values, scale, mask), None


class TextCache(Protocol):
    """The cache of a layer, or of a whole model, as the decode core sees it.

    mlx-lm's `KVCache` has the first two members; `arrays_of`, `share` and `anchor` add the others.
    """

    @property
    def offset(self) -> int:
        """Number of tokens before the next one."""

    def trim(self, count: int) -> Any:
        """Remove the last tokens of every row, or more of them where it cannot be so many."""


class RowsCache(TextCache, Protocol):
    """The cache of rows that go on from one text, which they only read."""

    def of_rows(self, rows: Sequence[int]) -> RowsCache:
        """Return the cache of some of the rows."""

    def commit(self, row: int, length: int, text: Any) -> None:
        """Append the first `length` tokens of one row to the cache of the text."""

    def arrays(self) -> list[mx.array]:
        """Return the arrays of these rows alone, for MLX to compute."""

    def share(self, step: int, rows: int) -> RowsCache:
        """Return the cache of rows that go on from here; growing by `step` tokens."""


def arrays_of(layer: Any) -> list[mx.array]:
    """Return the arrays of this cache alone, for MLX to compute."""
    if isinstance(layer, KVCache):
        return [layer.keys, layer.values] if layer.offset else []
    arrays: list[mx.array] = layer.arrays()
    return arrays


def share(layer: Any, step: int, rows: int = 1) -> RowsCache:
    """Return the cache of rows that go on from a text, whose cache must not change meanwhile."""
    if not hasattr(layer, "share"):  # mlx-lm's own
        return SharedPrefixCache([layer], step)
    shared: RowsCache = layer.share(step, rows)
    return shared


def takes_blocks(layer: Any) -> bool:
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
    """Return a cache of its own with at most the first `length` tokens of a layer's."""
    return layer.copy(length) if hasattr(layer, "copy") else copy_into(KVCache(), layer, length)


def copy_into(whole: KVCache, layer: KVCache | SharedPrefixCache, length: int) -> KVCache:
    """Append at most the first `length` tokens of a layer's cache to one that has none."""
    pieces = [*layer.prefixes, layer.suffix] if isinstance(layer, SharedPrefixCache) else [layer]
    for piece in pieces:
        count = min(length - whole.offset, int(piece.offset))
        if count:
            keys, values = piece.keys_and_values()
            whole.update_and_fetch(keys[..., :count, :], values[..., :count, :])
    return whole


def trim(cache: Sequence[TextCache], length: int) -> None:
    """Shorten a cache to at most `length` tokens, the same in all layers.

    An interrupt in the middle of a forward pass leaves layers with different numbers of tokens:
    those below have the pass's tokens already, those above do not. Then all are shortened to the
    shortest.
    """
    length = min(length, *(layer.offset for layer in cache))
    for layer in cache:
        layer.trim(layer.offset - length)
