"""Loading a model that mlx-lm computes: mlx-lm builds it, and `TappedModel` measures it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..distributed.group import Group
from ..errors import EntropixError, UnsupportedModelError, WeightsError, first_line
from ..models.sharded.coordinator import CoordinatorTapped
from ..models.sharded.model import ShardedTapped
from ..models.tapped.arguments import KnownKeys, keys_of, translated, truth_of
from ..models.tapped.mending import mend
from ..models.tapped.model import TappedModel
from .architecture import module_of
from .checkpoint import Checkpoint
from .skeleton import packing_of, settled_randomness

_ABOUT_WEIGHTS = ("parameters", "Expected shape", "safetensors", "not in model")
"""Words by which mlx-lm's message is about the weights, and not about the architecture."""


@settled_randomness()
def make_tapped(checkpoint: Checkpoint, group: Group | None = None) -> TappedModel:
    """Return a model whose weights have been found and fit, but have not been read.

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
    kept = ShardedTapped if group.send is None else CoordinatorTapped
    try:
        return kept(model, checkpoint.config, group)
    except Exception as error:  # asserted, or found out by a width that does not divide
        raise UnsupportedModelError(
            f"{path}: mlx-lm cannot split this {kind} over {group.size} ranks"
            f" ({first_line(error) or 'it does not divide'}): take another number of ranks, or give"
            " --mode data, and each rank holds all of it"
        ) from error


def _built(checkpoint: Checkpoint) -> tuple[nn.Module, Mapping[str, Any]]:
    from mlx_lm.utils import load_model

    config, keys, truth = translated_config(checkpoint)
    if is_folder(checkpoint):
        model, _ = load_model(checkpoint.path, lazy=True, model_config=config)
    else:
        model = _blank(checkpoint, config)
    if truth is not None:
        config |= mend(model, truth, keys.read, str(checkpoint.path / "config.json"))
    return model, config


def translated_config(checkpoint: Checkpoint) -> tuple[dict[str, Any], KnownKeys, Any]:
    """Return the configuration for mlx-lm's class, the keys of that class, and the truth."""
    from mlx_lm.utils import _decode_tagged_floats

    stated = _decode_tagged_floats(checkpoint.config)  # JSON has no infinity
    module = module_of(stated)
    if module is None:
        raise UnsupportedModelError(f"{checkpoint.path}: the installed mlx-lm has no such model")
    keys, truth = keys_of(module), truth_of(stated)
    return translated(stated, keys, truth, str(checkpoint.path / "config.json")), keys, truth


def is_folder(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is a Hugging Face folder, which mlx-lm reads itself."""
    return (checkpoint.path / "config.json").is_file()


def _blank(checkpoint: Checkpoint, config: dict[str, Any]) -> nn.Module:
    """Return a model that fits the checkpoint's tensors; zeros stand for what `fill` reads."""
    module: Any = module_of(config)
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    # MLX makes no array before it is needed, so these take no memory.
    blanks = {name: mx.zeros(one.shape, one.dtype) for name, one in checkpoint.tensors.items()}
    if hasattr(model, "sanitize"):
        blanks = model.sanitize(blanks)
    nn.quantize(model, class_predicate=packing_of(checkpoint))
    model.load_weights(list(blanks.items()))
    return model
