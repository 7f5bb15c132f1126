"""The layout of a model's weights in memory: packed (quantized) or dense, and in which order.

On Metal they stay as they are stored. MLX's CPU backend is slow with packed weights, and multiplies
dense ones by a BLAS whose speed depends on their order in memory; see `input_major`.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..base import LanguageModel
from ..device import computes_in_float32, orders_weights_by_input, unpacks_weights
from ..memory import machine_memory

MEMORY_SHARE = 0.5
"""The share of the machine's memory that unpacked weights may take without being asked for."""


_DENSE = (nn.Linear, nn.Embedding, nn.AllToShardedLinear, nn.ShardedToAllLinear)
"""Layers whose weights are plain arrays `(outputs, inputs)`."""


class Precision(NamedTuple):
    """How most of a model's weights are stored."""

    dtype: str
    """The type of the weights that are not packed, as ``"bfloat16"``."""
    bits: int | None = None
    """Bits a weight where they are packed, else None."""
    group_size: int | None = None
    """Weights that share a scale where they are packed, else None."""

    def __str__(self) -> str:
        return self.dtype if self.bits is None else f"{self.bits} bits"

    def in_full(self) -> str:
        """Return it with the size of the groups: ``"4 bits in groups of 64"``."""
        return str(self) if self.bits is None else f"{self} in groups of {self.group_size}"


def precision(model: LanguageModel, dtype: mx.Dtype | None = None) -> Precision:
    """Return how most of a model's weights are stored.

    Args:
        model: packed layers must be quantized layers in it; its weights need not be loaded.
        dtype: of the weights that are not packed; None takes that of the model in memory.
    """
    dtype = dtype if dtype is not None else model.dtype
    dense = str(dtype).removeprefix("mlx.core.")
    weights: Counter[tuple[int, ...]] = Counter()
    for layer in model.modules():
        if "scales" in layer:
            weights[layer.bits, layer.group_size] += layer.weight.size * 32 // layer.bits
        elif "weight" in layer and layer.weight.ndim > 1:
            weights[()] += layer.weight.size
    return Precision(dense, *weights.most_common(1)[0][0])


def should_unpack(model: nn.Module) -> bool:
    """Return whether unpacking pays by default, and memory allows it."""
    return unpacks_weights() and dense_bytes(model) <= MEMORY_SHARE * machine_memory()


def arranged(layer: nn.Module, unpack: bool) -> nn.Module:
    """Return a layer in the form that the device computes fastest; its weights may still be lazy.

    Quantized weights become dense ones if `unpack` says so.
    """
    if computes_in_float32():
        layer.set_dtype(mx.float32)
    if unpack and isinstance(layer, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
        layer = _dense(layer)
    if orders_weights_by_input() and isinstance(layer, _DENSE):
        layer.weight = input_major(layer.weight)
    return layer


def input_major(weight: mx.array) -> mx.array:
    """Return a weight `(outputs, inputs)` that lies in memory input by input.

    A checkpoint stores a weight output by output, so ``x @ weight.T`` computes one dot product an
    output, which a BLAS that keeps the order of additions must sum one term after the other. Stored
    input by input, each input's products are added to all outputs at once, with vector
    instructions. With the BLAS of the mlx[cpu] wheel this makes decoding 1.5 times as fast.
    """
    return mx.contiguous(weight.T).T


def size_of(layer: nn.Module) -> int:
    """Return the number of elements in a layer's arrays, which need not have been read."""
    arrays: dict[str, mx.array] = dict(tree_flatten(layer.parameters()))
    return sum(array.size for array in arrays.values())


def dense_bytes(model: nn.Module) -> int:
    total = 0
    for _, layer in model.named_modules():
        if "weight" in layer:
            size = layer.weight.size
            # 3, 5 and 6 bits do not divide 32: numbers reach from one word into the next.
            numbers = size * 32 // layer.bits if "scales" in layer else size
            total += numbers * mx.float32.size
    return total


def unpacked(layer: nn.Module) -> mx.array:
    """Return the weight of a layer as a plain array, unpacked where it is quantized."""
    weight: mx.array = layer.weight
    if not isinstance(layer, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
        return weight
    return mx.dequantize(
        weight,
        layer.scales,
        layer.get("biases"),
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
    )


def _dense(layer: nn.QuantizedLinear | nn.QuantizedEmbedding) -> nn.Linear | nn.Embedding:
    if isinstance(layer, nn.QuantizedEmbedding):
        dense: nn.Linear | nn.Embedding = nn.Embedding(1, 1)
    else:
        dense = nn.Linear(1, 1, bias="bias" in layer)
        if "bias" in layer:
            dense.bias = layer.bias
    dense.weight = unpacked(layer)
    return dense
