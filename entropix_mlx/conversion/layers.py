"""Converting one layer at a time.

A layer's tensors are read, unpacked and cast as the recipe says, checked for NaN and infinity, and
then packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..checkpoints.checkpoint import Tensor
from ..errors import WeightsError
from ..models.llama.model import Model
from .recipe import Recipe

Parts = dict[str, mx.array]
"""A layer's arrays by the ending of their names: ``weight``, ``bias``, ``scales``, ``biases``."""


class Quantization(NamedTuple):
    """The packing of quantized weights: the arguments of `mx.quantize`."""

    group_size: int
    bits: int
    mode: str


class Layer(NamedTuple):
    """A layer in a checkpoint, and how its weights are packed there and in the new folder."""

    name: str
    tensors: dict[str, Tensor]
    """By the ending of their names, as in `Parts`."""
    stored: Quantization | None
    """How the weights are packed in the checkpoint; None if they are not."""
    wanted: Quantization | None
    """How they will be packed in the new folder; None if they will not be."""


def plan_layers(model: Model, tensors: dict[str, Tensor], recipe: Recipe) -> list[Layer]:
    """Return a model's layers in the order of their files, with the packing that each will have.

    A layer whose width is no multiple of the group size stays unpacked.
    """
    modules = dict(model.named_modules())
    grouped: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, ending = key.rpartition(".")
        grouped.setdefault(name, {})[ending] = tensor
    layers = []
    for name, parts in grouped.items():
        stored = quantization_of(modules[name])
        wanted = None if recipe.dequantize else stored
        if recipe.bits is not None:
            shape = parts["weight"].shape
            width = parts["scales"].shape[-1] * stored.group_size if stored else shape[-1]
            fits = len(shape) == 2 and width % recipe.group_size == 0
            wanted = Quantization(recipe.group_size, recipe.bits, "affine") if fits else None
        layers.append(Layer(name, parts, stored, wanted))
    return layers


def quantization_of(module: nn.Module) -> Quantization | None:
    """Return how a layer's weights are packed; None if they are not."""
    if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
        return Quantization(module.group_size, module.bits, module.mode)
    return None


def blank_arrays(layer: Layer, recipe: Recipe) -> Parts:
    """Return arrays, by their full names, of the shapes and types that a layer will have.

    They are made by the same operations as the real ones, on zeros. MLX is lazy: since nobody reads
    them, they are never computed.
    """
    parts = {key: mx.zeros(t.shape, t.dtype) for key, t in layer.tensors.items()}
    arrays = _pack(_unpack(parts, layer, recipe), layer)
    return {f"{layer.name}.{ending}": array for ending, array in arrays.items()}


def convert_layer(layer: Layer, recipe: Recipe) -> Iterator[mx.array]:
    """Read a layer and yield its arrays, computed, in the order of `blank_arrays`.

    Raises:
        WeightsError: the layer cannot be read, or holds NaN or infinite numbers, as stored or in
            the recipe's type.
    """
    parts = {ending: tensor.read() for ending, tensor in layer.tensors.items()}
    try:
        parts = _unpack(parts, layer, recipe)
        _check_finite(parts, layer, recipe)
        parts = {ending: mx.contiguous(array) for ending, array in _pack(parts, layer).items()}
        mx.eval(parts)
    except RuntimeError as error:
        file = layer.tensors["weight"].file
        raise WeightsError(f"{file}: {layer.name} cannot be read: {error}") from error
    yield from parts.values()
    del parts
    mx.clear_cache()


def _unpack(parts: Parts, layer: Layer, recipe: Recipe) -> Parts:
    """Return a layer's arrays in the recipe's type; unpacked, unless the packing stays the same."""
    dtype = getattr(mx, recipe.dtype) if recipe.dtype else None
    if layer.stored and layer.stored != layer.wanted:
        parts = _dequantize(parts, layer.stored, dtype)
    return {
        ending: array.astype(dtype) if dtype and mx.issubdtype(array.dtype, mx.floating) else array
        for ending, array in parts.items()
    }


def _dequantize(parts: Parts, quantization: Quantization, dtype: mx.Dtype | None) -> Parts:
    """Return a layer's arrays with the weight unpacked, in `dtype` or else that of its scales."""
    scales, biases = parts["scales"], parts.get("biases")
    if biases is not None:
        dtype = dtype or scales.dtype
        # Multiply and add in float32, so that there is only one rounding.
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    weight = mx.dequantize(parts["weight"], scales, biases, **quantization._asdict())
    bias = {"bias": parts["bias"]} if "bias" in parts else {}
    return {"weight": weight.astype(dtype) if dtype else weight} | bias


def _pack(parts: Parts, layer: Layer) -> Parts:
    """Return a layer's arrays with the weight packed, if that is wanted and not yet so."""
    if layer.wanted is None or "scales" in parts:
        return parts
    weight, scales, *biases = mx.quantize(parts["weight"], **layer.wanted._asdict())
    return parts | {"weight": weight, "scales": scales} | ({"biases": biases[0]} if biases else {})


_EXPONENTS = {mx.float32: 0x7F800000, mx.float16: 0x7C00, mx.bfloat16: 0x7F80}
"""The bits of the exponent. A number is NaN or infinite if and only if all of them are set."""
_NUMBERS_AT_ONCE = 2**18
"""So many numbers fit into a CPU's cache with their intermediate results."""


def _check_finite(parts: Parts, layer: Layer, recipe: Recipe) -> None:
    for ending, array in parts.items():
        if array.dtype in _EXPONENTS and not _is_finite(array):
            key = ending if ending in layer.tensors else "weight"
            advice = f" as {recipe.dtype}: choose another --dtype" if recipe.dtype else ""
            raise WeightsError(
                f"{layer.tensors[key].file}: the tensor {layer.name}.{ending} holds NaN or infinite"
                f" numbers{advice or '; download it again'}"
            )


def _is_finite(array: mx.array) -> bool:
    """Tell whether all numbers are finite.

    Comparing bits in NumPy is 10 times faster than `mx.isfinite` on MLX's CPU backend.
    """
    exponent = _EXPONENTS[array.dtype]
    bits = np.asarray(array.view(mx.uint32 if array.itemsize == 4 else mx.uint16)).reshape(-1)
    without_sign = np.iinfo(bits.dtype).max // 2
    return all(
        (bits[start : start + _NUMBERS_AT_ONCE] & without_sign).max() < exponent
        for start in range(0, len(bits), _NUMBERS_AT_ONCE)
    )
