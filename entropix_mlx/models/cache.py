"""The KV cache of a layer: mlx-lm's for a text, and one for branches that share a text so far."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from .attention import KeysValues


class SharedPrefixCache:
    """The cache of several branches in one layer: a prefix that they share, and a suffix of each.

    The prefix is the cache of the text so far, and is only read until a branch is committed. All
    suffixes have the same number of tokens, so one array holds them, with a row a branch.
    """

    def __init__(self, prefix: KVCache, length: int) -> None:
        """Begin with empty suffixes.

        Args:
            prefix: must not change while the branches are decoded.
            length: tokens that a suffix is expected to hold; it may hold more.
        """
        self._prefix = prefix
        self._suffix = KVCache()
        self._suffix.step = length

    @property
    def offset(self) -> int:
        """Number of tokens before the next one, the same for all branches."""
        return int(self._prefix.offset + self._suffix.offset)

    def prefix(self) -> KeysValues:
        """Return the shared part, with a batch of one."""
        return KeysValues(*self._prefix.keys_and_values())

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> KeysValues:
        """Add `(branches, kv_heads, n, head_dim)` to the suffixes and return all of those."""
        return KeysValues(*self._suffix.update_and_fetch(keys, values))

    def commit(self, branch: int, length: int) -> None:
        """Append the first `length` tokens of one branch to the prefix."""
        keys, values = self._suffix.keys_and_values()
        rows = slice(branch, branch + 1)
        self._prefix.update_and_fetch(keys[rows, :, :length], values[rows, :, :length])


LayerCache = KVCache | SharedPrefixCache


def trim(cache: Sequence[KVCache], length: int) -> None:
    """Shorten a cache to at most `length` tokens, and to the same number in all layers.

    An interrupt in the middle of a forward pass leaves layers with different numbers of tokens:
    those below have the pass's tokens already, those above do not. Then all are shortened to the
    shortest.
    """
    length = min(length, *(layer.offset for layer in cache))
    for layer in cache:
        layer.trim(layer.offset - length)
