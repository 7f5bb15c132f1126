"""Scaled dot-product attention that can also hand out its scores, and that shares a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx


class KeysValues(NamedTuple):
    """Cached keys and values: `(batch, kv_heads, length, head_dim)` each."""

    keys: mx.array
    values: mx.array


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

    The scores are the scaled dot products before softmax. A single query, as in decoding, needs
    q·k only once for both; of several, as in prefill, only the last one's scores are computed, and
    the output comes from the fused kernel.
    """
    batch, heads, length, head_dim = queries.shape
    kv_heads = keys.shape[1]
    # Grouped-query attention: the queries are grouped by their key head, no key is repeated.
    last = queries[:, :, -1].reshape(batch, kv_heads, heads // kv_heads, head_dim)
    scores = (last * scale) @ keys.swapaxes(-1, -2)
    if length > 1:
        output = attend(queries, keys, values, scale, mask)
    else:
        weights = mx.softmax(scores, axis=-1, precise=True)
        output = (weights @ values).reshape(batch, heads, 1, head_dim)
    return output, scores.reshape(batch, heads, -1)


def attend_shared(
    queries: mx.array, prefixes: Sequence[KeysValues], suffix: KeysValues, scale: float
) -> tuple[mx.array, mx.array]:
    """Return the output and scores of several rows that share prefixes, one query each.

    The rows are folded into the query axis over a prefix, so that its keys are read once for all
    rows and never copied; one softmax goes over all parts.

        keys      | first prefix | second prefix | suffix of each row |
        scores    |   folded     |    folded     |     row by row     |   one softmax over the line
        output  =     folded     +    folded     +     row by row

    Args:
        queries: `(rows, heads, 1, head_dim)`.
        prefixes: what all rows follow, in order, with a batch of one each.
        suffix: what each row adds, with a batch of rows.
        scale: factor on the dot products, 1/√head_dim.

    Returns:
        The output, shaped as the queries, and the scores `(rows, heads, all keys)`.
    """
    rows, heads, _, head_dim = queries.shape
    kv_heads = suffix.keys.shape[1]

    def fold(x: mx.array) -> mx.array:
        """From `(rows, kv_heads, group, n)` to `(1, kv_heads, rows · group, n)`."""
        return x.swapaxes(0, 1).reshape(1, kv_heads, -1, x.shape[-1])

    def unfold(x: mx.array) -> mx.array:
        return x.reshape(kv_heads, rows, -1, x.shape[-1]).swapaxes(0, 1)

    grouped = (queries * scale).reshape(rows, kv_heads, heads // kv_heads, head_dim)
    folded = fold(grouped)
    over_prefixes = [unfold(folded @ prefix.keys.swapaxes(-1, -2)) for prefix in prefixes]
    over_suffix = grouped @ suffix.keys.swapaxes(-1, -2)
    scores = mx.concatenate([*over_prefixes, over_suffix], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    output, start = None, 0
    for prefix in prefixes:
        end = start + prefix.keys.shape[2]
        part = unfold(fold(weights[..., start:end]) @ prefix.values)
        output = part if output is None else output + part
        start = end
    part = weights[..., start:] @ suffix.values
    output = part if output is None else output + part
    return output.reshape(queries.shape), scores.reshape(rows, heads, -1)
