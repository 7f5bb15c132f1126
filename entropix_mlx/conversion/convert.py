"""Writing a model as a folder that mlx-lm and this package can load.

One layer at a time, so that memory holds only one, a layer's tensors are read, unpacked and cast as
the recipe says, checked for NaN and infinity, packed and written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..checkpoints.architecture import is_tapped
from ..checkpoints.checkpoint import Checkpoint, Tensor
from ..checkpoints.locate import locate, open_checkpoint
from ..checkpoints.mlx_lm_model import is_folder, make_tapped, translated_config
from ..checkpoints.model_files import filtered
from ..checkpoints.skeleton import load_tokenizer, make_skeleton
from ..errors import EntropixError, OutputError, UnsupportedModelError, WeightsError, first_line
from ..models.llama.model import Model
from .model_folder import check_free, new_folder, write_json, write_weights
from .recipe import Recipe

logger = logging.getLogger(__name__)


def convert(
    source: str | Path,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a model from a folder, a GGUF file or a hub id as a new folder; return the folder.

    The folder appears under its name only when it is complete. What is not of the Llama family is
    written by mlx-lm's own converter.

    Args:
        source: the model, as for `loading.load`.
        out: the folder to write.
        recipe: what to do with the weights; None changes none of them.
        force: whether to replace `out` if it holds nothing but an earlier conversion's files.
        on_progress: called as each tensor is written, with its number (from 1) and their total.

    Raises:
        OutputError: `out` exists or cannot be written.
        WeightsError: the weights are missing or damaged, hold NaN or infinite numbers, or do so
            once they have the recipe's type.
        EntropixError: whatever else `loading.load` raises.
    """
    recipe, out = recipe or Recipe(), Path(out)
    check_free(out, force)
    path = locate(source)
    checkpoint = open_checkpoint(path)
    if is_tapped(checkpoint.config):
        return _convert_by_mlx_lm(checkpoint, out, recipe, force)
    model, tensors = make_skeleton(checkpoint)
    layers = plan_layers(model, tensors, recipe)
    if recipe.bits is not None and not any(layer.wanted for layer in layers):
        raise UnsupportedModelError(
            f"{path}: no layer's width is a multiple of {recipe.group_size}, the group size; choose"
            " a smaller one"
        )
    tokenizer = load_tokenizer(checkpoint, model.config.vocab_size)
    shapes = {key: array for layer in layers for key, array in blank_arrays(layer, recipe).items()}
    nbytes = sum(array.nbytes for array in shapes.values())
    with new_folder(out, path, nbytes, force) as folder:
        arrays = (array for layer in layers for array in convert_layer(layer, recipe))
        write_weights(folder, shapes, _counted(arrays, len(shapes), on_progress))
        write_json(folder / "config.json", _config(checkpoint, model, tokenizer, layers, recipe))
        for file in checkpoint.companions:
            shutil.copyfile(file, folder / file.name)
        if not checkpoint.companions:
            tokenizer.save_pretrained(folder)
    return out


def _convert_by_mlx_lm(checkpoint: Checkpoint, out: Path, recipe: Recipe, force: bool) -> Path:
    from mlx_lm import convert as mlx_lm_convert

    if not is_folder(checkpoint):
        raise UnsupportedModelError(
            f"{checkpoint.path}: mlx-lm's own converter writes this model, and reads Hugging Face"
            " folders only: convert the model's folder instead"
        )
    model = make_tapped(checkpoint)
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    nbytes = sum(array.nbytes for array in arrays.values())
    logger.info("%s: mlx-lm's own converter writes this model", checkpoint.path.name)
    packed = recipe.bits is not None
    with new_folder(out, checkpoint.path, nbytes, force) as folder:
        folder.rmdir()  # mlx-lm makes it
        try:
            # Its prints are no part of this program's output.
            with contextlib.redirect_stdout(sys.stderr), filtered(checkpoint.path) as view:
                config, _, _ = translated_config(checkpoint)
                (view / "config.json").write_text(json.dumps(config))
                mlx_lm_convert(
                    str(view),
                    str(folder),
                    quantize=packed,
                    q_bits=recipe.bits,
                    q_group_size=recipe.group_size if packed else None,
                    dtype=recipe.dtype,
                    dequantize=recipe.dequantize and not packed,
                )
        except (EntropixError, OSError):
            raise
        except Exception as error:  # whatever a model makes it stumble over
            raise UnsupportedModelError(
                f"{checkpoint.path}: mlx-lm cannot convert it: {first_line(error)}"
            ) from error
        if not (folder / "config.json").is_file():
            raise OutputError(f"{out}: mlx-lm wrote no config.json; see its messages above")
        (folder / "README.md").unlink(missing_ok=True)  # it says nothing
    return out


def _counted(
    arrays: Iterable[mx.array], total: int, on_progress: Callable[[int, int], None] | None
) -> Iterator[mx.array]:
    for done, array in enumerate(arrays, 1):
        if on_progress:
            on_progress(done, total)
        yield array


def _config(
    checkpoint: Checkpoint,
    model: Model,
    tokenizer: TokenizerWrapper,
    layers: list[Layer],
    recipe: Recipe,
) -> dict[str, Any]:
    """Return the new ``config.json``: the source's, with every default filled in."""
    dropped = ("quantization", "quantization_config", "_name_or_path")
    config = {key: value for key, value in checkpoint.config.items() if key not in dropped}
    if recipe.dtype:
        config.pop("dtype", None)
        config["torch_dtype"] = recipe.dtype
    return config | _described(model, tokenizer, {x.name: x.wanted for x in layers if x.wanted})


def _described(
    model: Model, tokenizer: TokenizerWrapper, quantized: dict[str, Quantization]
) -> dict[str, Any]:
    config = asdict(model.config) | {"eos_token_id": sorted(tokenizer.eos_token_ids)}
    if quantized:
        # mlx-lm reads one default, and by name the layers that differ from it.
        default = max(quantized.values(), key=list(quantized.values()).count)
        differing = {n: p._asdict() for n, p in quantized.items() if p != default}
        config["quantization"] = config["quantization_config"] = default._asdict() | differing
    return config


def save(model: Model, tokenizer: TokenizerWrapper, folder: Path) -> None:
    """Write the weights, configuration and tokenizer of a loaded model into an existing folder."""
    weights = dict(tree_flatten(model.parameters()))
    write_weights(folder, weights, (mx.contiguous(array) for array in weights.values()))
    quantized = {name: quantization_of(module) for name, module in model.named_modules()}
    described = _described(model, tokenizer, {n: p for n, p in quantized.items() if p})
    write_json(folder / "config.json", described)
    tokenizer.save_pretrained(folder)


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
    """Return whether all numbers are finite.

    Comparing bits in NumPy is 10 times faster than `mx.isfinite` on MLX's CPU backend.
    """
    exponent = _EXPONENTS[array.dtype]
    bits = np.asarray(array.view(mx.uint32 if array.itemsize == 4 else mx.uint16)).reshape(-1)
    without_sign = np.iinfo(bits.dtype).max // 2
    return all(
        (bits[start : start + _NUMBERS_AT_ONCE] & without_sign).max() < exponent
        for start in range(0, len(bits), _NUMBERS_AT_ONCE)
    )
