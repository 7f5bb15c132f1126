"""Rotary position embeddings as layers of MLX."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..config import LlamaConfig
from ..rope_scaling import frequencies


class ScaledRoPE(nn.Module):
    """A rotary embedding with frequencies of its own."""

    def __init__(self, config: LlamaConfig) -> None:
        """Compute the frequencies of a configuration; see `rope_scaling.frequencies`."""
        super().__init__()
        self.head_dim = config.head_dim
        self.traditional = config.rope_traditional
        found = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.attention_factor = found.attention_factor
        # MLX divides by what it calls freqs. The underscore keeps the array out of the parameters.
        self._freqs = mx.array([1 / turn for turn in found.turns])

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Turn `(B, heads, L, head_dim)`, whose first position is `offset`."""
        if self.attention_factor != 1.0:
            x = x * self.attention_factor
        return mx.fast.rope(
            x,
            self.head_dim,
            traditional=self.traditional,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._freqs,
        )


def make_rope(config: LlamaConfig) -> nn.Module:
    """Return the rotary embedding of a model's attention.

    Raises:
        ArithmeticError, ValueError: as for `rope_scaling.frequencies`.
    """
    scaling = config.rope_scaling
    if scaling is None or scaling["rope_type"] in ("linear", "dynamic"):
        # MLX computes plain frequencies itself, so there is nothing to read from memory.
        scale = 1 / scaling["factor"] if scaling and scaling["rope_type"] == "linear" else 1.0
        return nn.RoPE(config.head_dim, config.rope_traditional, config.rope_theta, scale)
    return ScaledRoPE(config)
