"""The most probable tokens, in order, without sorting the vocabulary."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np

BLOCK = 16
"""Tokens in a block of the vocabulary."""


class Candidates(NamedTuple):
    """The most probable tokens of each sequence, best first: `(batch, count)` each."""

    tokens: mx.array
    gaps: mx.array


def most_probable(gaps: mx.array, count: int) -> Candidates:
    """Return the `count` tokens of smallest gap, in order.

    1. The vocabulary is cut into blocks of `BLOCK` tokens, and the smallest gap of each is found.
    2. Only the `count` blocks with the smallest minima are kept. No better token can be elsewhere:
       each of those blocks holds one that is at least as good as all of another block.
    3. The tokens of these blocks, and those left over by the cutting, are sorted.
    """
    batch, vocab = gaps.shape
    count = min(count, vocab)
    blocks = vocab // BLOCK
    if blocks <= count:
        tokens = mx.argsort(gaps, axis=-1)[:, :count]
        return Candidates(tokens, mx.take_along_axis(gaps, tokens, axis=-1))
    minima = _in_blocks(gaps).min(axis=-1)
    best = mx.argpartition(minima, kth=count - 1, axis=-1)[:, :count, None]

    def kept(array: mx.array) -> mx.array:
        inside = mx.take_along_axis(_in_blocks(array), best, axis=1).reshape(batch, -1)
        rest = mx.broadcast_to(array[:, blocks * BLOCK :], (batch, vocab % BLOCK))
        return mx.concatenate([inside, rest], axis=-1) if vocab % BLOCK else inside

    near = kept(gaps)
    order = mx.argsort(near, axis=-1)[:, :count]
    return Candidates(
        mx.take_along_axis(kept(_ids(vocab)), order, axis=-1),
        mx.take_along_axis(near, order, axis=-1),
    )


def _in_blocks(array: mx.array) -> mx.array:
    """Return a view of `(batch, vocab)` numbers as `(batch, blocks, BLOCK)`."""
    batch, vocab = array.shape
    return array[:, : vocab // BLOCK * BLOCK].reshape(batch, -1, BLOCK)


@lru_cache(maxsize=4)
def _ids(vocab: int) -> mx.array:
    """Return all token ids, `(1, vocab)`."""
    return mx.array(np.arange(vocab, dtype=np.uint32)[None])
