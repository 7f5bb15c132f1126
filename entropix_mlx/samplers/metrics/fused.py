"""Several results as one array: with few kernels where they are compiled, plainly where not.

A GPU spends microseconds on starting a kernel, however little it computes. `mx.compile` makes one
kernel of a chain of elementwise operations, but fuses neither a concatenation nor a view with them,
and no two chains that end in a reduction each. So `summed_together` computes three sums of `x`::

    x                    (…, m)       expand_dims: a view, before anything is computed
    a(x)  b(x)  c(x)     (…, 1, m)    elementwise terms, not yet kernels of their own
    index                (3, 1)       0, 1, 2
    where(index < 1, a, where(index < 2, b, c))
                         (…, 3, m)    still elementwise: one kernel computes all terms
    .sum(axis=-1)        (…, 3)       one reduction: the second and last kernel

Concatenated sums would be three kernels, three reductions and three copies. `selected` packs small
results in the same way: the index chooses a column, and no copy is a kernel of its own.

Without compilation each ``where`` is a kernel over the whole array, so there `concatenated` serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

Terms = Callable[..., Sequence[mx.array]]
"""Elementwise functions of some arrays that broadcast with each other."""


def concatenated(columns: Sequence[mx.array]) -> mx.array:
    """Return one float32 array `(…, n)` of n arrays `(…, 1)`."""
    return mx.concatenate([column.astype(mx.float32) for column in columns], axis=-1)


def selected(columns: Sequence[mx.array]) -> mx.array:
    """Return what `concatenated` does, as one kernel where it is compiled."""
    return _select(columns, mx.array(list(range(len(columns)))))


def summed_together(terms: Terms, *arrays: mx.array) -> mx.array:
    """Return the sums `(…, n)` of n terms of arrays `(…, m)`, as two kernels where compiled."""
    # The new axis comes before the terms are computed: a view between them would end the kernel.
    parts = terms(*(mx.expand_dims(array, -2) for array in arrays))
    return _select(parts, mx.array([[index] for index in range(len(parts))])).sum(axis=-1)


def columns_of(packed: mx.array) -> list[mx.array]:
    """Return the columns `(…, 1)` of an array `(…, n)`, as views."""
    return [packed[..., column : column + 1] for column in range(packed.shape[-1])]


def _select(parts: Sequence[mx.array], index: mx.array, first: int = 0) -> mx.array:
    """Return `parts[i − first]` where the index is i, by halving: MLX fuses no deep chains."""
    if len(parts) == 1:
        return parts[0].astype(mx.float32)
    half = len(parts) // 2
    low, high = parts[:half], parts[half:]
    return mx.where(
        index < first + half, _select(low, index, first), _select(high, index, first + half)
    )
