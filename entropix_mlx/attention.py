"""Scaled dot-product attention that can also hand out its scores."""

from __future__ import annotations

from typing import Any

import mlx.core as mx


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
