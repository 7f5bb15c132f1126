"""Undoing the order that Meta and llama.cpp give to the rows of the query and key projections.

Their rotary embedding turns neighbours, Hugging Face's turns the two halves of a head. So the rows
of a head come in the order 0, half, 1, half + 1, …
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..errors import WeightsError
from .checkpoint import Tensor


def in_halves(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors, those of queries and keys with their rows in halves.

    Raises:
        WeightsError: the rows are not those of so many heads.
    """
    heads = {
        ".q_proj.": config["num_attention_heads"],
        ".k_proj.": config["num_key_value_heads"],
    }
    return {
        name: next(
            (_reordered(name, tensor, count) for part, count in heads.items() if part in name),
            tensor,
        )
        for name, tensor in tensors.items()
    }


def _reordered(name: str, tensor: Tensor, heads: int) -> Tensor:
    if tensor.shape[0] % (2 * heads):
        raise WeightsError(f"{tensor.file}: {name} has {tensor.shape[0]} rows for {heads} heads")

    def read() -> mx.array:
        pairs = tensor.read().reshape(heads, -1, 2, *tensor.shape[1:])
        return pairs.swapaxes(1, 2).reshape(tensor.shape)

    return tensor._replace(read=read)
