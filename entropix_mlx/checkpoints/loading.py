"""From a name to a model in memory and its tokenizer.

`locate` finds the files, `formats` opens them as a checkpoint, `skeleton` makes a model of its
shape; here the weights are read into it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..distributed.group import Group
from ..errors import UnsupportedModelError, WeightsError
from ..models.base import LanguageModel
from ..models.llama.model import Model
from ..models.llama.weight_layout import arranged, should_unpack, size_of
from . import mlx_lm_model
from .adapters import Extras, add_to_model, add_to_tokenizer
from .architecture import is_tapped, note_parts
from .checkpoint import Checkpoint, Tensor, digest
from .formats import open_checkpoint
from .locate import default_model, locate
from .skeleton import load_tokenizer, make_skeleton

READ_AT_ONCE = 2**24
"""Numbers that are read before they are arranged: for a moment, memory holds both versions."""


def load(
    model: str | Path | None = None,
    *,
    dequantize: bool | None = None,
    tapped: bool = False,
    extras: Extras | None = None,
    group: Group | None = None,
) -> tuple[LanguageModel, TokenizerWrapper]:
    """Load a model and its tokenizer.

    Models of the Llama family run on this package's own port; all others that mlx-lm knows are run
    by mlx-lm, and their attention is measured while they run.

    On Metal, weights stay as they are stored. On MLX's CPU backend floating-point numbers become
    float32, since half precision is some 40 times slower there, and quantized weights are unpacked
    to float32 if they fit into half of the memory, since that makes decoding twice as fast.

    Args:
        model: a folder (Hugging Face's or Meta's), a GGUF file or a hub id; None takes
            `default_model`.
        dequantize: whether to unpack quantized weights; None decides as said above.
        tapped: have mlx-lm run a model of the Llama family, too.
        extras: adapters, a quantized cache and the like; the port has neither of these two, so with
            them mlx-lm runs the model.
        group: the ranks that compute the model together; this one reads its part of the weights.

    Raises:
        ModelNotFoundError: there is no such model, or it cannot be downloaded.
        UnsupportedModelError: neither this package nor mlx-lm computes it; of a hub model, nothing
            was downloaded but its ``config.json``.
        WeightsError: weights are missing, damaged, or do not fit the configuration.
        TokenizerError: there is no tokenizer, or it cannot be read.
    """
    checkpoint = open_checkpoint(locate(model if model is not None else default_model()))
    extras = extras or Extras()
    if is_tapped(checkpoint.config) or tapped or extras.needs_tap:
        return _load_tapped(checkpoint, dequantize, extras, group)
    built, tensors = make_skeleton(checkpoint, group)
    unpack = should_unpack(built) if dequantize is None else dequantize
    if group is not None:
        group.check_same(digest(checkpoint), str(checkpoint.path))
        unpack = bool(group.least(unpack))
    # Reading the weights releases the interpreter lock, so that the tokenizer is read meanwhile.
    with ThreadPoolExecutor(max_workers=1) as helper:
        tokenizer = helper.submit(load_tokenizer, checkpoint, built.config.vocab_size)
        try:
            _fill(built, tensors, unpack)
        except (OSError, RuntimeError) as error:
            raise WeightsError(f"{checkpoint.path}: the weights cannot be read: {error}") from error
    if group is not None:
        group.wait()
    built.eval()
    add_to_tokenizer(tokenizer.result(), extras)
    return built, tokenizer.result()


def _load_tapped(
    checkpoint: Checkpoint, dequantize: bool | None, extras: Extras, group: Group | None
) -> tuple[LanguageModel, TokenizerWrapper]:
    """Load a model that mlx-lm runs."""
    if extras.adapter_path is not None and group is not None:
        raise UnsupportedModelError(
            f"{checkpoint.path}: adapters cannot be split: merge them with the model (mlx_lm.fuse),"
            " or give --mode data, and each rank holds all of it"
        )
    if extras.adapter_path is not None and not mlx_lm_model.is_folder(checkpoint):
        raise UnsupportedModelError(
            f"{checkpoint.path}: adapters are added to Hugging Face folders only: use the model's"
            " folder"
        )
    note_parts(checkpoint.config, checkpoint.path)
    model = mlx_lm_model.make_tapped(checkpoint, group)
    add_to_model(model, extras)
    if group is not None:
        group.check_same(digest(checkpoint), str(checkpoint.path))
    tokenizer = load_tokenizer(checkpoint, model.config.vocab_size)
    add_to_tokenizer(tokenizer, extras)
    try:
        mlx_lm_model.fill(model, checkpoint, dequantize)
    except (OSError, RuntimeError) as error:
        raise WeightsError(f"{checkpoint.path}: the weights cannot be read: {error}") from error
    if group is not None:
        group.wait()
    return model, tokenizer


def _fill(model: Model, tensors: dict[str, Tensor], unpack: bool) -> None:
    """Give a model its weights, laid out in memory for the device."""
    layers = dict(tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module))
    # The largest first: while the embedding is in memory twice, hardly anything else is.
    unread: list[nn.Module] = []
    for name in sorted(layers, key=lambda name: size_of(layers[name]), reverse=True):
        stored = layers[name]
        stored.update({key: tensors[f"{name}.{key}"].read() for key in stored.parameters()})
        layer = arranged(stored, unpack)
        model.update_modules(tree_unflatten([(name, layer)]))
        unread.append(layer)
        if sum(map(size_of, unread)) > READ_AT_ONCE:
            mx.eval([layer.parameters() for layer in unread])
            unread.clear()
    mx.eval(model.parameters())
    mx.clear_cache()
