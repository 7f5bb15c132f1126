"""Undoing the order that Meta and llama.cpp give to the rows of the query and key projections.

The rotary embedding turns pairs of a head's numbers. Meta pairs neighbours: 0 with 1, 2 with 3.
Hugging Face, and this package, pair the halves: of 8 numbers, 0 with 4, 1 with 5. Both compute the
same if the rows that make the numbers are ordered accordingly: Meta's rows are Hugging Face's in
the order 0, 4, 1, 5, 2, 6, 3, 7.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..errors import WeightsError
from .checkpoint import Cut, Tensor


def in_halves(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors, the rows of queries and keys in Hugging Face's order.

    Raises:
        WeightsError: a projection has a number of rows that its heads cannot share.
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

    of_head = tensor.shape[0] // heads

    def ordered(stored: mx.array) -> mx.array:
        # (head, pair, which of the two) → (head, which of the two, pair)
        pairs = stored.reshape(-1, of_head // 2, 2, *stored.shape[1:])
        return pairs.swapaxes(1, 2).reshape(stored.shape)

    def read_part(cut: Cut) -> mx.array:
        if cut.axis or cut.start % of_head or cut.stop % of_head:
            raise ValueError(f"{name} is split between heads only, not at rows {cut}")
        return ordered(tensor.part(cut).read())

    return tensor._replace(read=lambda: ordered(tensor.read()), read_part=read_part)
