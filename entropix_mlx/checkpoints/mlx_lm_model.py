"""Loading a model that mlx-lm computes: mlx-lm builds it, and `TappedModel` measures it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from ..distributed.group import Group
from ..errors import EntropixError, UnsupportedModelError, WeightsError, first_line
from ..models.llama.weight_layout import (
    arranged,
    on_cpu,
    should_unpack,
    size_of,
)
from ..models.sharded.coordinator import LeadingTapped
from ..models.sharded.model import ShardedTapped
from ..models.tapped.model import TappedModel, tapped_shape
from .architecture import module_of
from .checkpoint import Checkpoint
from .skeleton import packing_of

_ABOUT_WEIGHTS = ("parameters", "Expected shape", "safetensors", "not in model")
"""Words by which mlx-lm's message is about the weights, and not about the architecture."""


MOST_RANKS = 16
"""As many are tried, to say over how many a model can be split."""


def make_tapped(checkpoint: Checkpoint, group: Group | None = None) -> TappedModel:
    """Return a model whose weights have been found and fit, but have not been read.

    Args:
        checkpoint: what to make it of.
        group: the ranks that share it, of which this one takes its share; None for all of it.

    Raises:
        WeightsError: weights are missing, superfluous or of another shape.
        UnsupportedModelError: mlx-lm cannot compute it, or not on so many ranks; the message says
            what mlx-lm says.
    """
    path, kind = checkpoint.path, checkpoint.config.get("model_type")
    try:
        model, config = _built(checkpoint)
        return TappedModel(model, config) if group is None else _share(checkpoint, model, group)
    except EntropixError:
        raise
    except Exception as error:  # whatever a configuration makes mlx-lm stumble over
        said = first_line(error)
        if isinstance(error, TypeError) and " missing " in said:
            said = f"its config.json lacks {said.rpartition(': ')[2]}"
        elif not isinstance(error, ValueError | RuntimeError | OSError):
            said = f"{type(error).__name__}: {said}"
        if any(word in said for word in _ABOUT_WEIGHTS):
            raise WeightsError(f"{path}: the weights do not fit: {said}") from error
        raise UnsupportedModelError(f"{path}: mlx-lm cannot run this {kind}: {said}") from error


def _share(checkpoint: Checkpoint, model: nn.Module, group: Group) -> ShardedTapped:
    """Return this rank's share of mlx-lm's model."""
    path, kind = checkpoint.path, checkpoint.config.get("model_type")
    if not is_folder(checkpoint):
        raise UnsupportedModelError(
            f"{path}: mlx-lm computes this model, and splits models of Hugging Face folders only:"
            " take the model's folder, or give --mode data, and each rank holds all of it"
        )
    if not hasattr(model, "shard"):
        raise UnsupportedModelError(
            f"{path}: mlx-lm, which computes this {kind}, cannot split it: give --mode data, and"
            " each rank holds all of it"
        )
    kept = ShardedTapped if group.tell is None else LeadingTapped
    try:
        return kept(model, checkpoint.config, group)
    except Exception as error:  # asserted, or found out by a width that does not divide
        sizes = [n for n in range(2, MOST_RANKS + 1) if _can_be_split(checkpoint, n)]
        able = f"over {' or '.join(map(str, sizes))} ranks" if sizes else "not at all"
        raise UnsupportedModelError(
            f"{path}: mlx-lm cannot split this {kind} over {group.size} ranks"
            f" ({first_line(error) or 'it does not divide'}): it can be split {able}, or give"
            " --mode data, and each rank holds all of it"
        ) from error


def _can_be_split(checkpoint: Checkpoint, size: int) -> bool:
    """Tell whether the heads of a model divide by a number of ranks, and all that mlx-lm splits."""
    model, config = _built(checkpoint)
    shape = tapped_shape(config, 0)
    if shape.num_attention_heads % size or shape.num_key_value_heads % size:
        return False
    try:
        model.shard(_Ranks(size))
    except Exception:  # as above
        return False
    return True


class _Ranks:
    """What stands for a group of MLX's where nothing is computed."""

    def __init__(self, size: int) -> None:
        self._size = size

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return self._size


def _built(checkpoint: Checkpoint) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return mlx-lm's model and its configuration; of a folder, mlx-lm finds the weights."""
    from mlx_lm.utils import load_model

    if is_folder(checkpoint):
        model, config = load_model(checkpoint.path, lazy=True)
        return model, config
    return _blank(checkpoint), checkpoint.config


def is_folder(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint is a Hugging Face folder, which mlx-lm reads itself."""
    return (checkpoint.path / "config.json").is_file()


def _blank(checkpoint: Checkpoint) -> nn.Module:
    """Return a model that fits the checkpoint's tensors; zeros stand for what `fill` reads."""
    config = dict(checkpoint.config)
    module: Any = module_of(config)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    # MLX makes no array before it is needed, so these take no memory.
    blanks = {name: mx.zeros(one.shape, one.dtype) for name, one in checkpoint.tensors.items()}
    if hasattr(model, "sanitize"):
        blanks = model.sanitize(blanks)
    nn.quantize(model, class_predicate=packing_of(checkpoint))
    model.load_weights(list(blanks.items()))
    return model


def fill(model: TappedModel, checkpoint: Checkpoint, dequantize: bool | None) -> None:
    """Read the weights, laid out in memory for the device.

    Args:
        model: from `make_tapped`.
        checkpoint: what it was made from.
        dequantize: whether to unpack quantized weights; None where that pays.
    """
    unpack = should_unpack(model) if dequantize is None else dequantize
    if on_cpu():
        # Half precision is some 40 times slower on MLX's CPU backend.
        model.inner.set_dtype(mx.float32)
    layers: dict[str, nn.Module] = dict(
        tree_flatten(model.inner.leaf_modules(), is_leaf=nn.Module.is_module)
    )
    tensors = {} if is_folder(checkpoint) else checkpoint.tensors
    by_size = sorted(layers, key=lambda name: size_of(layers[name]))
    while by_size:  # whatever is unpacked, or split, leaves memory before the next layer is
        name = by_size.pop()  # the largest first, while hardly anything else is in memory
        layer = layers.pop(name)
        if tensors:
            layer.update({key: tensors[f"{name}.{key}"].read() for key in layer.parameters()})
        ours = arranged(layer, unpack)
        if ours is not layer:
            model.inner.update_modules(tree_unflatten([(name, ours)]))
        mx.eval(ours.parameters())
    mx.eval(model.inner.parameters())
    mx.clear_cache()
    model.eval()
