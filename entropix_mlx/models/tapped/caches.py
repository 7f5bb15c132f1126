"""The cache of one text in a tapped model, and how tokens are removed: by cutting or by snapshots.

A `KVCache` holds an entry a token and can be cut anywhere. The state of a recurrent layer is the
whole past in a few arrays, and a full rotating buffer has overwritten what it would need. So before
each pass that may be taken back, a snapshot is taken: references to the arrays as they are. Nothing
is copied then, because MLX's arrays share their memory until one of them is written to, and what is
restored is exactly what was there.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import (
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    create_attention_mask,
)

T = TypeVar("T")

ANCHORS = 3
"""Places of a text that are remembered for good, the newest ones: where its answers began."""


class KVPacking(NamedTuple):
    """The quantization of keys and values."""

    bits: int
    group_size: int
    start: int
    """Tokens after which they are."""


class History:
    """The caches of one text in all layers of a model of mlx-lm."""

    def __init__(
        self,
        caches: Sequence[Any],
        length: int = 0,
        *,
        every: bool = False,
        packing: KVPacking | None = None,
    ) -> None:
        """Take over the caches.

        Args:
            caches: mlx-lm's, as a model's ``make_cache`` returns them.
            length: number of tokens in them.
            every: remember every place from here on, as branches need: any of their tokens may be
                the last accepted one.
            packing: how to quantize keys and values; None leaves them as they are.
        """
        self._packing = packing
        self.caches = list(caches)
        self.length = length
        self._every = every
        self._start = length
        self._anchors: deque[int] = deque(maxlen=ANCHORS)
        self._held: int | None = None
        self._places = {length: [_saved(cache) for cache in self.caches]}

    def advance(self, tokens: int, run: Callable[[list[Any]], T]) -> T:
        """Run a pass that adds tokens to the caches; where it fails, nothing is added."""
        self._remember(tokens)
        try:
            result = run(self.caches)
        except BaseException:
            self._restore(self.length)
            raise
        self.length += tokens
        if self._packing is not None:
            self._pack(self._packing)
        return result

    def restore(self, caches: Sequence[Any], length: int) -> None:
        """Go on from the caches of another text, or from nothing where that must be cut."""
        self.caches, self.length = list(caches), length
        self.anchor()

    def rewind(self, length: int) -> None:
        """Keep at most the first `length` tokens, or fewer where no such place is remembered."""
        if length >= self.length:
            return
        length = max(length, self._start)
        count = self.length - length
        if all(_can_be_cut(cache, count) for cache in self.caches):
            for cache in self.caches:
                _cut(cache, count)
        else:
            length = max(place for place in self._places if place <= length)
            self._restore(length)
        self.length = length
        self._places = {at: saved for at, saved in self._places.items() if at <= length}
        self._anchors = deque((at for at in self._anchors if at <= length), maxlen=ANCHORS)
        if self._held is not None and self._held >= length:
            self._held = None

    @property
    def takes_blocks(self) -> bool:
        if self._packing is not None and any(type(cache) is KVCache for cache in self.caches):
            return False  # a pass may be the one after which they are quantized
        return all(_takes_blocks(cache) for cache in self.caches)

    def anchor(self) -> None:
        if self.length not in self._anchors:
            self._anchors.append(self.length)
            self._places[self.length] = [_saved(cache) for cache in self.caches]

    def hold(self) -> None:
        """Remember this place until `rewind` has returned to it; where one is held, keep that."""
        if self._held is None:
            self._held = self.length
            self._places[self.length] = [_saved(cache) for cache in self.caches]

    def fork(self, step: int) -> History:
        """Return the history of a branch that goes on from here."""
        return History([forked(cache, step) for cache in self.caches], self.length, every=True)

    def copy(self, length: int) -> History:
        own = History(copy.deepcopy(self.caches), self.length, packing=self._packing)
        own._places = dict(self._places)
        own._anchors = deque(self._anchors, maxlen=ANCHORS)
        own._start = self._start
        own.rewind(length)
        return own

    def adopt(self, branch: History, tokens: int) -> None:
        branch.rewind(self.length + tokens)
        for cache, following in zip(self.caches, branch.caches, strict=True):
            adopt(cache, following)
        self.length += tokens
        if self._every:
            self._remember(0)

    def arrays(self) -> list[mx.array]:
        return [array for cache in self.caches for array in _arrays(cache)]

    def _pack(self, packing: KVPacking) -> None:
        """Quantize the caches that are long enough, as mlx-lm does after each of its passes."""
        for place, cache in enumerate(self.caches):
            if type(cache) is KVCache and cache.offset >= packing.start:
                self.caches[place] = cache.to_quantized(packing.group_size, packing.bits)

    def _remember(self, ahead: int) -> None:
        """Take a snapshot before a pass; forget those that nobody can ask for any more."""
        if not self._every:
            kept = {self._start, self._held, *self._anchors}
            self._places = {at: saved for at, saved in self._places.items() if at in kept}
        if self.length not in self._places:
            most = None if self._every else ahead
            self._places[self.length] = [_saved(cache, most) for cache in self.caches]

    def _restore(self, length: int) -> None:
        for cache, saved in zip(self.caches, self._places[length], strict=True):
            _put_back(cache, saved)


def _saved(cache: Any, ahead: int | None = None) -> Any:
    """Return a snapshot of a layer's cache: its length if it can be cut, else its arrays.

    `ahead` tokens are added before it may be put back; None stands for any number.
    """
    if type(cache) in CUTTABLE:
        return int(cache.offset)
    if isinstance(cache, CacheList):
        return [_saved(part, ahead) for part in cache.caches]
    rotates = type(cache) is RotatingKVCache
    if rotates and ahead is not None and cache.offset + ahead < cache.max_size:
        return int(cache.offset)  # nothing is overwritten yet
    return _handles(cache.__dict__)


def _put_back(cache: Any, saved: Any) -> None:
    if isinstance(saved, int):
        cache.trim(cache.offset - saved)
    elif isinstance(cache, CacheList):
        for part, of_part in zip(cache.caches, saved, strict=True):
            _put_back(part, of_part)
    else:
        cache.__dict__ = _handles(saved)


def _handles(value: Any) -> Any:
    """Return a copy of nested containers whose arrays share the memory of the originals."""
    if isinstance(value, mx.array):
        return mx.array(value)
    if isinstance(value, dict):
        return {key: _handles(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_handles(item) for item in value)
    return value


def _takes_blocks(cache: Any) -> bool:
    if isinstance(cache, CacheList):
        return all(map(_takes_blocks, cache.caches))
    # (mlx-lm hides the tokens that `keep` keeps from all but the first tokens of a pass.)
    return type(cache) in CUTTABLE or (type(cache) is RotatingKVCache and cache.keep == 0)


def _can_be_cut(cache: Any, count: int) -> bool:
    if isinstance(cache, CacheList):
        return all(_can_be_cut(part, count) for part in cache.caches)
    if type(cache) is RotatingKVCache:
        return bool(cache.offset < cache.max_size) or _spare(cache) >= count
    return type(cache) in CUTTABLE


def _spare(cache: RotatingKVCache) -> int:
    """Return how many tokens a rotating buffer can lose at its end and still fill its window.

    A pass of several tokens puts the buffer in order, and keeps what the first of them looks back
    on: then it holds more than a window, until the next pass shortens it.
    """
    held = int(cache.keys.shape[2])
    if cache._idx != held:
        return 0
    return held if held == cache.offset else held - int(cache.max_size)


def _cut(cache: Any, count: int) -> None:
    if isinstance(cache, CacheList):
        for part in cache.caches:
            _cut(part, count)
        return
    rotated = type(cache) is RotatingKVCache and cache.offset >= cache.max_size
    cache.trim(count)
    if rotated:  # it takes the length of its arrays for the number of tokens in them
        cache.keys, cache.values = (a[..., : cache._idx, :] for a in (cache.keys, cache.values))


def _arrays(value: Any) -> list[mx.array]:
    if isinstance(value, mx.array):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dict__"):
        value = [item for name, item in vars(value).items() if name != "prefix"]
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _arrays(item)]
    return []


class Histories:
    """The cache of a text of a tapped model, or of rows that go on from one: a history each."""

    def __init__(self, rows: Sequence[History]) -> None:
        self.rows = list(rows)

    @property
    def offset(self) -> int:
        return min(row.length for row in self.rows)

    @property
    def takes_blocks(self) -> bool:
        return all(row.takes_blocks for row in self.rows)

    def trim(self, count: int) -> None:
        """Remove the last tokens of every row, or more of them; see `offset`."""
        length = self.offset - count
        for row in self.rows:
            row.rewind(length)

    def of_rows(self, rows: Sequence[int]) -> Histories:
        return type(self)([self.rows[row] for row in rows])

    def commit(self, row: int, length: int, text: Histories) -> None:
        text.rows[0].adopt(self.rows[row], length)

    def share(self, step: int, rows: int) -> Histories:
        return type(self)([self.rows[0].fork(step) for _ in range(rows)])

    def copy(self, length: int) -> Histories:
        return type(self)([self.rows[0].copy(length)])

    def arrays(self) -> list[mx.array]:
        return [array for row in self.rows for array in row.arrays()]

    def anchor(self) -> None:
        for row in self.rows:
            row.anchor()

    def hold(self) -> None:
        """Remember the place before a side text, until `trim` has returned to it."""
        for row in self.rows:
            row.hold()


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
        return int(self.start + self.own.offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        self.own.update_and_fetch(keys, values)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        if not self.own.offset:
            return tuple(self.prefix.keys_and_values())
        if not self.start:
            return tuple(self.own.keys_and_values())
        pairs = zip(self.prefix.keys_and_values(), self.own.keys_and_values(), strict=True)
        keys, values = (tree_map(_joined, before, after) for before, after in pairs)
        return keys, values

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        return create_attention_mask(*arguments, offset=self.offset, **options)

    def trim(self, count: int) -> int:
        """Remove the last tokens, at most those that follow the prefix."""
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
    """Return the cache of a branch that goes on from a text's, which must not change meanwhile."""
    if type(cache) in CUTTABLE:
        return ForkedKVCache(cache, step)
    if isinstance(cache, CacheList):
        return CacheList(*(forked(part, step) for part in cache.caches))
    # The arrays are shared until one side writes to its own.
    return copy.deepcopy(cache)


def adopt(cache: Any, branch: Any) -> None:
    """Extend the cache of a text to the end of one of its branches."""
    if isinstance(branch, ForkedKVCache):
        if branch.own.offset:
            _append(cache, branch.own)
    elif isinstance(cache, CacheList):
        for part, of_branch in zip(cache.caches, branch.caches, strict=True):
            adopt(part, of_branch)
    else:
        cache.__dict__ = copy.deepcopy(branch.__dict__)


def _append(cache: Any, following: Any) -> None:
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
