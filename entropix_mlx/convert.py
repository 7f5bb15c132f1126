"""Writing a model as a folder that mlx-lm, and this package, load.

Weights go from the source to the new folder layer by layer: read, unpacked or cast as asked for,
checked, packed, written, forgotten.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .checkpoint import Checkpoint, Tensor
from .errors import UnsupportedModelError, WeightsError
from .llama import Model
from .loading import locate, open_checkpoint
from .output import check_free, new_folder, write_json, write_weights
from .skeleton import load_tokenizer, make_skeleton

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
DTYPES = ("float16", "bfloat16", "float32")

Parts = dict[str, mx.array]
"""A layer's arrays by the ending of their names: ``weight``, ``bias``, ``scales``, ``biases``."""


@dataclass(frozen=True)
class Recipe:
    """What to do with weights; by default, nothing."""

    bits: int | None = None
    """Quantize to this many (of `BITS`) a weight; None leaves weights as they are."""
    group_size: int = 64
    """Weights that share a scale (of `GROUP_SIZES`), where `bits` are given."""
    dtype: str | None = None
    """The type of all floating-point numbers (of `DTYPES`); None leaves each as it is."""
    dequantize: bool = False
    """Whether to unpack quantized weights."""

    @property
    def exact(self) -> bool:
        """Whether what is written is what was read, to the last bit."""
        return self == Recipe()


class Packing(NamedTuple):
    """How MLX packs quantized weights."""

    group_size: int
    bits: int
    mode: str


class _Layer(NamedTuple):
    name: str
    tensors: dict[str, Tensor]
    """By the ending of their names."""
    stored: Packing | None
    wanted: Packing | None


def convert(
    source: str | Path,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a model from a folder, a GGUF file or a hub id as a new folder; return the folder.

    It appears at once when it is complete.

    Args:
        source: as for `loading.load`.
        out: the folder to write.
        recipe: what to do with the weights; None changes nothing.
        force: whether to replace a model folder that is there.
        on_progress: called with the number of the tensor to be written next, and of all.

    Raises:
        OutputError: `out` exists, or cannot be written.
        WeightsError: as `loading.load`, and where weights are not finite, or not in the new type.
        EntropixError: whatever else `loading.load` raises.
    """
    recipe, out = recipe or Recipe(), Path(out)
    path = locate(source)
    check_free(out, path, force)
    checkpoint = open_checkpoint(path)
    model, tensors = make_skeleton(checkpoint)
    layers = _layers(model, tensors, recipe)
    if recipe.bits is not None and not any(layer.wanted for layer in layers):
        raise UnsupportedModelError(
            f"{path}: no layer's width is a multiple of {recipe.group_size}, the group size; choose"
            " a smaller one"
        )
    tokenizer = load_tokenizer(checkpoint, model.config.vocab_size)
    plan = {key: array for layer in layers for key, array in _blank(layer, recipe).items()}
    nbytes = sum(array.nbytes for array in plan.values())
    with new_folder(out, path, nbytes, force) as folder:
        arrays = (array for layer in layers for array in _converted(layer, recipe))
        write_weights(folder, plan, _counted(arrays, len(plan), on_progress))
        write_json(folder / "config.json", _config(checkpoint, model, tokenizer, layers, recipe))
        if checkpoint.companions:
            for file in checkpoint.companions:
                shutil.copyfile(file, folder / file.name)
        else:
            tokenizer.save_pretrained(folder)
    return out


def _counted(
    arrays: Iterator[mx.array], total: int, on_progress: Callable[[int, int], None] | None
) -> Iterator[mx.array]:
    for done, array in enumerate(arrays, 1):
        if on_progress:
            on_progress(done, total)
        yield array


def _layers(model: Model, tensors: dict[str, Tensor], recipe: Recipe) -> list[_Layer]:
    """Return a model's layers in the order of their files, with what is to become of them."""
    modules = dict(model.named_modules())
    grouped: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, ending = key.rpartition(".")
        grouped.setdefault(name, {})[ending] = tensor
    layers = []
    for name, parts in grouped.items():
        stored = _packing(modules[name])
        wanted = None if recipe.dequantize else stored
        if recipe.bits is not None:
            shape = parts["weight"].shape
            width = parts["scales"].shape[-1] * stored.group_size if stored else shape[-1]
            fits = len(shape) == 2 and width % recipe.group_size == 0
            wanted = Packing(recipe.group_size, recipe.bits, "affine") if fits else None
        layers.append(_Layer(name, parts, stored, wanted))
    return layers


def _packing(module: nn.Module) -> Packing | None:
    if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
        return Packing(module.group_size, module.bits, module.mode)
    return None


def _blank(layer: _Layer, recipe: Recipe) -> Parts:
    """Return arrays, by their full names, of the shapes and types that a layer will have.

    They come from the very operations that will make the real ones, and are never computed.
    """
    parts = {key: mx.zeros(t.shape, t.dtype) for key, t in layer.tensors.items()}
    blank = _pack(_unpack(parts, layer, recipe), layer)
    return {f"{layer.name}.{ending}": array for ending, array in blank.items()}


def _converted(layer: _Layer, recipe: Recipe) -> Iterator[mx.array]:
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


def _unpack(parts: Parts, layer: _Layer, recipe: Recipe) -> Parts:
    """Return a layer's arrays in the type asked for, unpacked unless they stay as they are."""
    dtype = getattr(mx, recipe.dtype) if recipe.dtype else None
    if layer.stored and layer.stored != layer.wanted:
        parts = _dequantize(parts, layer.stored, dtype)
    return {
        ending: array.astype(dtype) if dtype and mx.issubdtype(array.dtype, mx.floating) else array
        for ending, array in parts.items()
    }


def _dequantize(parts: Parts, packing: Packing, dtype: mx.Dtype | None) -> Parts:
    """Return a layer's arrays with the weight unpacked, in a type or that of its scales."""
    scales, biases = parts["scales"], parts.get("biases")
    if biases is not None:
        dtype = dtype or scales.dtype
        # Multiply and add in float32, so that there is only one rounding.
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    weight = mx.dequantize(parts["weight"], scales, biases, **packing._asdict())
    bias = {"bias": parts["bias"]} if "bias" in parts else {}
    return {"weight": weight.astype(dtype) if dtype else weight} | bias


def _pack(parts: Parts, layer: _Layer) -> Parts:
    """Return a layer's arrays with the weight packed, if it is to be and is not yet."""
    if layer.wanted is None or "scales" in parts:
        return parts
    weight, scales, *biases = mx.quantize(parts["weight"], **layer.wanted._asdict())
    return parts | {"weight": weight, "scales": scales} | ({"biases": biases[0]} if biases else {})


_EXPONENTS = {mx.float32: 0x7F800000, mx.float16: 0x7C00, mx.bfloat16: 0x7F80}
"""The bits of an exponent; NaN and infinity are the numbers that have all of them set."""
_NUMBERS_AT_ONCE = 2**18


def _check_finite(parts: Parts, layer: _Layer, recipe: Recipe) -> None:
    for ending, array in parts.items():
        if array.dtype in _EXPONENTS and not _is_finite(array):
            key = ending if ending in layer.tensors else "weight"
            advice = f" as {recipe.dtype}: choose another --dtype" if recipe.dtype else ""
            raise WeightsError(
                f"{layer.tensors[key].file}: the tensor {layer.name}.{ending} holds NaN or infinite"
                f" numbers{advice or '; download it again'}"
            )


def _is_finite(array: mx.array) -> bool:
    """Tell whether all numbers are; by their bits, 10 times faster than by MLX's CPU backend."""
    exponent = _EXPONENTS[array.dtype]
    bits = np.asarray(array.view(mx.uint32 if array.itemsize == 4 else mx.uint16)).reshape(-1)
    sign_less = bits.dtype.type(2 ** (8 * array.itemsize - 1) - 1)
    return all(
        (bits[start : start + _NUMBERS_AT_ONCE] & sign_less).max() < exponent
        for start in range(0, len(bits), _NUMBERS_AT_ONCE)
    )


def _config(
    checkpoint: Checkpoint,
    model: Model,
    tokenizer: TokenizerWrapper,
    layers: list[_Layer],
    recipe: Recipe,
) -> dict[str, Any]:
    """Return the ``config.json`` of the new folder: that of the source, with all defaults said."""
    dropped = ("quantization", "quantization_config", "_name_or_path")
    config = {key: value for key, value in checkpoint.config.items() if key not in dropped}
    if recipe.dtype:
        config.pop("dtype", None)
        config["torch_dtype"] = recipe.dtype
    return config | _described(model, tokenizer, {x.name: x.wanted for x in layers if x.wanted})


def _described(
    model: Model, tokenizer: TokenizerWrapper, packings: dict[str, Packing]
) -> dict[str, Any]:
    config = asdict(model.config) | {"eos_token_id": sorted(tokenizer.eos_token_ids)}
    if packings:
        # mlx-lm wants a default, and then whatever differs from it by the layer's name.
        default = max(packings.values(), key=list(packings.values()).count)
        differing = {n: p._asdict() for n, p in packings.items() if p != default}
        config["quantization"] = config["quantization_config"] = default._asdict() | differing
    return config


def save(model: Model, tokenizer: TokenizerWrapper, folder: Path) -> None:
    """Write the weights, configuration and tokenizer of a loaded model into an existing folder."""
    weights = dict(tree_flatten(model.parameters()))
    write_weights(folder, weights, (mx.contiguous(array) for array in weights.values()))
    packings = {name: _packing(module) for name, module in model.named_modules()}
    described = _described(model, tokenizer, {n: p for n, p in packings.items() if p})
    write_json(folder / "config.json", described)
    tokenizer.save_pretrained(folder)
