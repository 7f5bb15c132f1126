"""KV caches of one sequence and of a batch of rows: lists of mlx-lm's caches, one object a layer.

`LanguageModel.make_cache` makes the cache of one sequence. `merge` puts sequences into a batch,
whose rows are padded on the left to one length; the other functions add rows to it, drop and copy
rows, take one out, and take tokens back. A batch of one row is the cache of a sequence as it is, so
that one sequence alone needs no padding and no mask.

A function that returns a cache may have changed the one it was given, which must not be used again;
`copy`, `extract` and `fork` leave it as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache

Cache = list[Any]  # mlx-lm's caches, one object a layer


def can_merge(cache: Cache) -> bool:
    """Return whether sequences with such caches can be rows of a batch: quantized and chunked
    caches of mlx-lm cannot."""
    return all(hasattr(layer, "merge") for layer in _leaves(cache))


def merge(caches: Sequence[Cache]) -> Cache:
    """Return the batch of the sequences with these caches, in order; they are not used again."""
    if len(caches) == 1:
        return caches[0]
    return [type(layers[0]).merge(list(layers)) for layers in zip(*caches, strict=True)]


def extend(batch: Cache, other: Cache) -> Cache:
    """Return the batch with the rows of another one after its own."""
    batch, other = _padded(batch), _padded(other)
    for layer, others in zip(batch, other, strict=True):
        layer.extend(others)
    return batch


def keep(batch: Cache, rows: Sequence[int]) -> Cache:
    """Return the batch with these of its rows, in this order; a row may come several times."""
    if len(rows) == 1:
        return extract(batch, rows[0])
    batch = _padded(batch)
    for layer in batch:
        layer.filter(mx.array(list(rows)))
    return batch


def extract(batch: Cache, row: int) -> Cache:
    """Return the cache of one row, as of a sequence that was never in a batch."""
    return [_extracted(layer, row) for layer in batch]


def fork(cache: Cache, count: int) -> Cache:
    """Return a batch of so many rows, each of them a copy of a sequence."""
    return merge([copy(cache) for _ in range(count)])


def copy(cache: Cache) -> Cache:
    """Return a copy that later passes do not change; no array is copied before one is written."""
    return deepcopy(cache)


def can_trim(cache: Cache, tokens: int = 1) -> bool:
    """Return whether the last tokens can be taken back: not from recurrent layers, nor from a
    sliding window that has been filled."""
    return not tokens or all(_can_trim(layer, tokens) for layer in _leaves(cache))


def can_take_back(cache: Cache, tokens: int = 1) -> bool:
    """Return whether so many tokens that are yet to come could be taken back again: a sliding
    window must not be full by then."""
    for layer in _leaves(cache):
        held = getattr(layer, "_offset", getattr(layer, "offset", 0))
        window = getattr(layer, "max_size", None)
        if not _can_trim(layer, tokens) or (window is not None and held + tokens >= window):
            return False
    return True


def trim(cache: Cache, tokens: int) -> None:
    """Take the last tokens of every row back. Raises `ValueError` if a layer cannot; see
    `can_trim`."""
    if not can_trim(cache, tokens):
        raise ValueError(f"this cache cannot take {tokens} tokens back")
    for layer in cache if tokens else ():
        layer.trim(tokens)


def arrays(cache: Cache) -> list[mx.array]:
    """Return all arrays of a cache, to be evaluated with the pass that wrote them: a recurrent
    layer's state could else be computed only in the thread that queued it."""
    states: dict[str, Any] = dict(tree_flatten([layer.state for layer in cache]))
    return [state for state in states.values() if isinstance(state, mx.array)]


def _leaves(cache: Sequence[Any]) -> Iterator[Any]:
    for layer in cache:
        if isinstance(layer, CacheList):
            yield from _leaves(layer.caches)
        else:
            yield layer


def _padded(cache: Cache) -> Cache:
    """Return the batch of a cache, which may be that of one sequence."""
    padded = all(hasattr(layer, "extend") for layer in _leaves(cache))
    return cache if padded else [type(layer).merge([layer]) for layer in cache]


def _extracted(layer: Any, row: int) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*(_extracted(part, row) for part in layer.caches))
    if isinstance(layer, ArraysCache):  # whose own `extract` wants every state to be there
        alone = deepcopy(layer)
        alone.filter(mx.array([row]))
        return alone
    return layer.extract(row) if hasattr(layer, "extract") else deepcopy(layer)


def _can_trim(layer: Any, tokens: int) -> bool:
    if isinstance(layer, ChunkedKVCache) and layer.start_position:
        return False
    return bool(layer.is_trimmable())
