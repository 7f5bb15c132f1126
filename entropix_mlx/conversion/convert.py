"""Writing a model as a folder that mlx-lm and this package can load.

Weights go from the source to the new folder one layer at a time, so that memory holds only one.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..checkpoints.architecture import is_tapped
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.formats import open_checkpoint
from ..checkpoints.locate import locate
from ..checkpoints.mlx_lm_model import is_folder, make_tapped
from ..checkpoints.skeleton import load_tokenizer, make_skeleton
from ..errors import EntropixError, OutputError, UnsupportedModelError, first_line
from ..models.llama.model import Model
from .layers import Layer, Quantization, blank_arrays, convert_layer, plan_layers, quantization_of
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
    """Have mlx-lm's own converter write a model that only mlx-lm computes."""
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
            with contextlib.redirect_stdout(sys.stderr):
                mlx_lm_convert(
                    str(checkpoint.path),
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
        for extra in (*folder.glob("*.py"), *folder.glob("README.md")):
            extra.unlink()  # code is never run here, and the card says nothing
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
    """Return the keys of a ``config.json`` that follow from a model and its quantized layers."""
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
