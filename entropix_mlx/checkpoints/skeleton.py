"""Building an empty model for a checkpoint, or a rank's share of it, and checking that tensors fit.

Everything here happens before any weight is read, so that a mistake costs no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..distributed.group import Group
from ..errors import TokenizerError, UnsupportedModelError, WeightsError
from ..models.config import LlamaConfig, parse_config
from ..models.llama.model import Model
from ..models.sharded.coordinator import CoordinatorModel
from ..models.sharded.model import ShardedModel, check_fits, token_range
from .checkpoint import FLOATS, Checkpoint, Cut, Tensor

BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Layers of which a rank has some outputs."""
BY_COLUMNS = ("o_proj", "down_proj")
"""Layers of which a rank has some inputs; their outputs are summed."""
BY_TOKENS = ("embed_tokens", "lm_head")
"""Layers with a row for each token."""

_SMALLEST_VOCABULARY = 0.5
"""The share of a model's vocabulary that its tokenizer must know. Some ids of a model are padding
without a token, but never most of them."""


@contextmanager
def settled_randomness() -> Iterator[None]:
    """Compute MLX's random state after layers were made.

    Each layer draws weights that nobody computes, and until then each draw is remembered: tens of
    kilobytes a model, for ever.
    """
    try:
        yield
    finally:
        mx.eval(mx.random.state)


@settled_randomness()
def make_skeleton(
    checkpoint: Checkpoint, group: Group | None = None
) -> tuple[Model, dict[str, Tensor]]:
    """Return a model of a checkpoint's shape without its weights, and the tensors to fill it with.

    Layers whose weights are packed are quantized layers of the same packing. Without
    ``tie_word_embeddings``, the presence of an output head decides.

    Raises:
        WeightsError: a field of the configuration is absurd, or a tensor is missing, superfluous,
            or of another shape or type.
        UnsupportedModelError: a rotary scaling or a packing that is not handled, or it cannot be
            split over so many ranks.
    """
    shape = shape_of(checkpoint)
    if group is not None:
        checkpoint = shared_out(checkpoint, shape, group.rank, group.size)
    path, tensors = checkpoint.path, checkpoint.tensors
    taken = {
        name: tensor
        for name, tensor in tensors.items()
        if not (shape.tie_word_embeddings and name.startswith("lm_head."))
        and not name.endswith("rotary_emb.inv_freq")
    }
    last_layer = f"model.layers.{shape.num_hidden_layers - 1}.input_layernorm.weight"
    if last_layer not in taken:  # else a wrong number would build endless layers
        raise WeightsError(f"{path}: the tensor {last_layer} is missing (see num_hidden_layers)")
    try:
        model = _empty(shape, group)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise UnsupportedModelError(
            f"{path}: its sizes or its rope_scaling are not supported: {error!r}"
        ) from error
    try:
        nn.quantize(model, class_predicate=packing_of(checkpoint))
    except (TypeError, ValueError) as error:
        raise UnsupportedModelError(f"{path}: its packing is not supported: {error}") from error
    check_fit(checkpoint.path, dict(tree_flatten(model.parameters())), taken)
    return model, taken


def _empty(shape: LlamaConfig, group: Group | None) -> Model:
    if group is None:
        return Model(shape)
    return ShardedModel(shape, group) if group.send is None else CoordinatorModel(shape, group)


def shape_of(checkpoint: Checkpoint) -> LlamaConfig:
    """Return the shape that a checkpoint states, all of it.

    Raises:
        WeightsError, UnsupportedModelError: as for `parse_config`.
    """
    tied = {"tie_word_embeddings": "lm_head.weight" not in checkpoint.tensors}
    return parse_config(tied | dict(checkpoint.config), str(checkpoint.path))


def shared_out(checkpoint: Checkpoint, shape: LlamaConfig, rank: int, size: int) -> Checkpoint:
    """Return one rank's part of a checkpoint, as a checkpoint of a smaller model.

    Raises:
        UnsupportedModelError: the model cannot be split over so many ranks.
    """
    check_fits(shape, size, checkpoint.path)
    tensors = {
        name: _share(name, tensor, rank, size) for name, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def _share(name: str, tensor: Tensor, rank: int, size: int) -> Tensor:
    """Return what a rank reads of one tensor; of some, all."""
    layer, _, kind = name.rpartition(".")
    layer = layer.rpartition(".")[2]
    if layer in BY_TOKENS:
        own = token_range(tensor.shape[0], rank, size)
        return tensor.part(Cut(0, own.start, own.stop))
    if layer in BY_ROWS:
        return tensor.part(_even(name, tensor, 0, rank, size))
    if layer in BY_COLUMNS and kind != "bias":
        return tensor.part(_even(name, tensor, len(tensor.shape) - 1, rank, size))
    if layer in BY_COLUMNS and rank > 0:  # the sum takes it once
        return tensor._replace(read=partial(mx.zeros, tensor.shape, tensor.dtype))
    return tensor


def _even(name: str, tensor: Tensor, axis: int, rank: int, size: int) -> Cut:
    """Return a rank's part of an axis that divides, packed weights and their scales alike."""
    each, left = divmod(tensor.shape[axis], size)
    if left:
        raise UnsupportedModelError(
            f"{tensor.file}: the tensor {name}, {tensor.shape} as it is packed, cannot be split"
            f" over {size} ranks: take another number of ranks, or a model that is packed in"
            " smaller groups or not at all"
        )
    return Cut(axis, each * rank, each * (rank + 1))


def packing_of(checkpoint: Checkpoint) -> Callable[[str, nn.Module], bool | dict[str, Any]]:
    """Return the ``class_predicate`` for `nn.quantize`: a layer's packing, or False."""
    tensors = checkpoint.tensors
    mode = (checkpoint.config.get("quantization") or {}).get("mode", "affine")

    def packing(name: str, layer: nn.Module) -> bool | dict[str, Any]:
        scales, packed = tensors.get(f"{name}.scales"), tensors.get(f"{name}.weight")
        if scales is None or packed is None or not hasattr(layer, "to_quantized"):
            return False
        width, axes = layer.weight.shape[-1], layer.weight.ndim
        fits = len(scales.shape) == len(packed.shape) == axes
        if not fits or width % max(1, scales.shape[-1]):
            raise WeightsError(
                f"{scales.file}: the tensor {name}.scales does not fit a width of {width}"
            )
        return {
            "group_size": width // max(1, scales.shape[-1]),
            "bits": packed.shape[-1] * 32 // width,
            "mode": mode,
        }

    return packing


def check_fit(where: Path, expected: dict[str, mx.array], tensors: dict[str, Tensor]) -> None:
    """Check that there is a tensor of the right shape and type for every parameter, and no other.

    Raises:
        WeightsError: one is missing, superfluous, or of another shape or type.
    """
    for name, parameter in expected.items():
        if name not in tensors:
            raise WeightsError(f"{where}: the tensor {name} is missing")
        tensor = tensors[name]
        if tensor.shape != parameter.shape:
            raise WeightsError(
                f"{tensor.file}: the tensor {name} has shape {tensor.shape}; the configuration"
                f" wants {parameter.shape}"
            )
        dense = mx.issubdtype(parameter.dtype, mx.floating)
        wanted = "floating" if dense else _plain(parameter.dtype)
        if tensor.dtype not in FLOATS if dense else tensor.dtype != parameter.dtype:
            raise WeightsError(
                f"{tensor.file}: the tensor {name} has type {_plain(tensor.dtype)}, and must be"
                f" {wanted}"
            )
    for name, tensor in tensors.items():
        if name not in expected:
            raise WeightsError(f"{tensor.file}: the tensor {name} does not belong to this model")


def _plain(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def load_tokenizer(checkpoint: Checkpoint, vocabulary: int) -> TokenizerWrapper:
    """Return a checkpoint's tokenizer, once it is known to be of the size of its vocabulary.

    Raises:
        TokenizerError: there is none, it cannot be read, or it is another model's.
    """
    tokenizer = checkpoint.load_tokenizer()
    size = len(tokenizer)
    # Tokens added to a vocabulary may go beyond the model's: many a padding token does.
    if tokenizer.vocab_size > vocabulary or size < _SMALLEST_VOCABULARY * vocabulary:
        raise TokenizerError(
            f"{checkpoint.path}: the tokenizer knows {size} tokens and the model {vocabulary}: it"
            " is another model's; copy the tokenizer files of the original model"
        )
    return tokenizer
