"""The cache of a rollout of a tapped model: it shares the keys of the text, and copies the rest."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, create_attention_mask


class ForkedKVCache:
    """A cache that goes on from another one, whose keys and values it reads and does not copy.

    To a layer of mlx-lm it is a `KVCache`, or a `QuantizedKVCache` where it goes on from one. The
    keys that a layer is given are put together for each call, so a pass needs the memory of one
    layer's cache more, and not that of all layers.
    """

    def __init__(self, prefix: Any, step: int) -> None:
        """Begin after what the prefix holds.

        Args:
            prefix: it must not change while this cache is used.
            step: tokens by which the memory of what follows grows.
        """
        self.prefix = prefix
        self.start = int(prefix.offset)
        self.own = (
            QuantizedKVCache(prefix.group_size, prefix.bits)
            if hasattr(prefix, "bits")
            else KVCache()
        )
        self.own.step = step

    @property
    def offset(self) -> int:
        """Number of tokens before the next one."""
        return int(self.start + self.own.offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Add keys and values, and return all of them."""
        self.own.update_and_fetch(keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        """Return the keys and values of the prefix and of what follows it."""
        if not self.own.offset:
            return tuple(self.prefix.keys_and_values())
        if not self.start:
            return tuple(self.own.keys_and_values())
        pairs = zip(self.prefix.keys_and_values(), self.own.keys_and_values(), strict=True)
        keys, values = (tree_map(_joined, before, after) for before, after in pairs)
        return keys, values

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        """Return the mask of a pass, as mlx-lm's caches do."""
        return create_attention_mask(*arguments, offset=self.offset, **options)

    def trim(self, count: int) -> int:
        """Take the last tokens away, at most those that follow the prefix."""
        return int(self.own.trim(count))

    @property
    def keys(self) -> Any:
        """The array that the keys of what follows are written to; some layers replace it."""
        return self.own.keys

    @keys.setter
    def keys(self, keys: Any) -> None:
        self.own.keys = keys

    @property
    def values(self) -> Any:
        """As `keys`."""
        return self.own.values

    @values.setter
    def values(self, values: Any) -> None:
        self.own.values = values

    def __getattr__(self, name: str) -> Any:
        """Return anything else that a layer asks for, such as the `bits` of a quantized cache."""
        if name == "own":  # not there yet while a copy is made
            raise AttributeError(name)
        return getattr(self.own, name)


CUTTABLE = (KVCache, QuantizedKVCache, ForkedKVCache)
"""Caches that hold one entry a token, and so can be cut anywhere."""


def forked(cache: Any, step: int) -> Any:
    """Return a layer's cache for a rollout that goes on from a text.

    Args:
        cache: the text's; it must not change while the rollout is followed.
        step: tokens by which the memory of a rollout grows.
    """
    if type(cache) in CUTTABLE:
        return ForkedKVCache(cache, step)
    if isinstance(cache, CacheList):
        return CacheList(*(forked(part, step) for part in cache.caches))
    # The arrays are shared until one side writes to its own.
    return copy.deepcopy(cache)


def adopt(cache: Any, branch: Any) -> None:
    """Have a text's cache go on to where a rollout of it is."""
    if isinstance(branch, ForkedKVCache):
        if branch.own.offset:
            _append(cache, branch.own)
    elif isinstance(cache, CacheList):
        for part, of_rollout in zip(cache.caches, branch.caches, strict=True):
            adopt(part, of_rollout)
    else:
        cache.__dict__ = copy.deepcopy(branch.__dict__)


def _append(cache: Any, following: Any) -> None:
    """Append what a rollout has cached; quantized numbers are taken over as they are."""
    keys, values = following.keys_and_values()
    if not isinstance(following, QuantizedKVCache):
        cache.update_and_fetch(keys, values)
        return
    holder = cache.own if isinstance(cache, ForkedKVCache) else cache
    if holder.offset:
        before = holder.keys_and_values()
        keys, values = (
            tree_map(_joined, old, new) for old, new in zip(before, (keys, values), strict=True)
        )
    holder.keys, holder.values = keys, values
    holder.offset += following.offset


def _joined(before: mx.array, after: mx.array) -> mx.array:
    return mx.concatenate([before, after], axis=-2)
