"""Adding LoRA, DoRA or wholly fine-tuned layers to a model that mlx-lm runs.

A layer whose adapter is not in the file would keep the random numbers that it begins with. So the
file must hold exactly what mlx-lm trains, which is what it writes: the parameters that are
trainable in a frozen model once its last layers have adapters.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .. import limits
from ..errors import ModelNotFoundError, WeightsError, brief, first_line
from ..files import expanded
from ..models.config import read_object
from .huggingface import open_shard
from .model_files import inside
from .skeleton import check_fit

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
_FULL, _KINDS = "full", ("lora", "dora", "full")


def add_adapters(model: nn.Module, path: str | Path) -> None:
    """Add the adapters in a folder to a model of mlx-lm's.

    Raises:
        ModelNotFoundError: there are no adapters in the folder.
        WeightsError: they are damaged or incomplete, or another model's.
    """
    folder = expanded(path, ModelNotFoundError)
    for name in (CONFIG, WEIGHTS):
        if not os.path.isfile(folder / name):  # unlike Path's, it takes a name that is too long
            raise ModelNotFoundError(
                f"{brief(str(folder))} holds no adapters: {name} is missing; give the folder that"
                " mlx_lm.lora wrote"
            )
    tensors = open_shard(inside(folder, WEIGHTS))
    config = read_object(inside(folder, CONFIG), limits.CONFIG_BYTES)
    expected = _make_trainable(model, config, folder)
    if not expected:
        raise WeightsError(
            f"{folder}: its configuration names no layer of this model, so that nothing would"
            " change; use the adapters that were trained on it"
        )
    check_fit(folder / WEIGHTS, expected, tensors)
    model.load_weights([(name, tensor.read()) for name, tensor in tensors.items()], strict=False)


def _make_trainable(model: nn.Module, config: dict[str, Any], folder: Path) -> dict[str, mx.array]:
    """Give the layers that the configuration names their adapters; return all that was trained."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    kind: Any = config.get("fine_tune_type", "lora")
    count: Any = config.get("num_layers")
    _check(folder, "fine_tune_type", kind, f"one of {', '.join(_KINDS)}", kind in _KINDS)
    _check(folder, "num_layers", count, "a whole number", _is_size(count))
    model.freeze()
    try:
        if kind == _FULL:
            for layer in model.layers[-max(count, 0) :]:
                layer.unfreeze()
        else:
            parameters = _lora_parameters(folder, config.get("lora_parameters"))
            linear_to_lora_layers(model, count, parameters, use_dora=kind == "dora")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{folder}: this model cannot have such adapters: {first_line(error)}; use those that"
            " were trained on it"
        ) from error
    return dict(tree_flatten(model.trainable_parameters()))


def _lora_parameters(folder: Path, stated: Any) -> dict[str, Any]:
    """Return mlx-lm's ``lora_parameters``, each of a kind that its layers can compute with."""
    _check(folder, "lora_parameters", stated, "an object", isinstance(stated, dict))
    rank, scale = stated.get("rank"), stated.get("scale")
    dropout, keys = stated.get("dropout", 0.0), stated.get("keys")
    names = isinstance(keys, list | None) and all(isinstance(key, str) for key in keys or [])
    _check(folder, "rank", rank, "a positive whole number", _is_size(rank) and rank > 0)
    _check(folder, "scale", scale, "a number other than 0", _is_finite(scale) and scale != 0)
    _check(folder, "dropout", dropout, "a number", _is_finite(dropout))
    _check(folder, "keys", keys, "a list of layers' names", names)
    return {"rank": rank, "scale": scale, "dropout": dropout, "keys": keys}


def _is_size(value: Any) -> bool:
    return type(value) is int and abs(value) <= limits.SIZE


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= limits.NUMBER


def _check(folder: Path, name: str, value: Any, wanted: str, fits: bool) -> None:
    if not fits:
        raise WeightsError(
            f"{folder / CONFIG}: {name} must be {wanted}, not {brief(value)}; copy the file that"
            " mlx_lm.lora wrote"
        )
