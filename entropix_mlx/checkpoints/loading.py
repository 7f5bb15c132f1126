"""From a name to a model in memory and its tokenizer.

`locate` finds the files and opens them as a checkpoint, `skeleton` makes a model of its shape; here
the weights are read into it, and what users of mlx-lm bring along is added (`Extras`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..distributed.group import Group
from ..errors import (
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
    first_line,
)
from ..models.base import LanguageModel
from ..models.device import computes_in_float32
from ..models.llama.weight_layout import arranged, should_unpack, size_of
from ..models.tapped.model import TappedModel
from .adapters import add_adapters
from .architecture import is_tapped, note_parts
from .checkpoint import Checkpoint, Tensor, digest
from .locate import default_model, locate, open_checkpoint
from .mlx_lm_model import is_folder, make_tapped
from .skeleton import load_tokenizer, make_skeleton

ADAPTED = ("linear", "embedding")
"""What mlx-lm's layers with adapters call the layer that they add to."""
READ_AT_ONCE = 2**24
"""Numbers that are read before they are arranged: for a moment, memory holds both versions."""


@dataclass(frozen=True)
class Extras:
    """What is added to a model as it is loaded; the default adds nothing."""

    adapter_path: str | Path | None = None
    """A folder of LoRA or DoRA weights, as mlx-lm writes it."""
    extra_eos_tokens: tuple[str, ...] = ()
    """Tokens that end an answer beside those of the model."""
    chat_template_config: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template, such as ``{"enable_thinking": False}``."""
    kv_bits: int | None = None
    """Bits a number of the KV cache; None does not quantize it."""
    kv_group_size: int = 64
    """Numbers of the KV cache that share a scale."""
    quantized_kv_start: int = 0
    """Tokens after which the cache is quantized."""

    @property
    def needs_tap(self) -> bool:
        """Whether mlx-lm must run the model, because the port has no such thing."""
        return self.adapter_path is not None or self.kv_bits is not None


def load(
    model: str | Path | None = None,
    *,
    dequantize: bool | None = None,
    tapped: bool = False,
    extras: Extras | None = None,
    group: Group | None = None,
    base: LanguageModel | None = None,
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
        base: the same model without adapters, loaded `tapped`, whose weights this one shares as far
            as its adapters leave them.

    Raises:
        ModelNotFoundError: there is no such model, or it cannot be downloaded.
        UnsupportedModelError: neither this package nor mlx-lm computes it; of a hub model, nothing
            was downloaded but its ``config.json``.
        WeightsError: weights are missing, damaged, or do not fit the configuration.
        TokenizerError: there is no tokenizer, or it cannot be read.
    """
    checkpoint = open_checkpoint(locate(model if model is not None else default_model()))
    extras = extras or Extras()
    built: LanguageModel
    if is_tapped(checkpoint.config) or tapped or extras.needs_tap:
        built = _tapped(checkpoint, extras, group)
        layers, tensors = built.inner, {} if is_folder(checkpoint) else checkpoint.tensors
    else:
        built, tensors = make_skeleton(checkpoint, group)
        layers = built
    unpack = should_unpack(built) if dequantize is None else dequantize
    if group is not None:
        group.check_same(digest(checkpoint), str(checkpoint.path))
        unpack = bool(group.least(unpack))
    # Reading the weights releases the interpreter lock, so that the tokenizer is read meanwhile.
    with ThreadPoolExecutor(max_workers=1) as helper:
        tokenizer = helper.submit(load_tokenizer, checkpoint, built.config.vocab_size)
        try:
            shared = share_layers(layers, base) if isinstance(base, TappedModel) else ()
            _fill(layers, tensors, unpack, shared)
        except (OSError, RuntimeError) as error:
            raise WeightsError(f"{checkpoint.path}: the weights cannot be read: {error}") from error
    if group is not None:
        group.wait()
    built.eval()
    add_to_tokenizer(tokenizer.result(), extras)
    return built, tokenizer.result()


def _tapped(checkpoint: Checkpoint, extras: Extras, group: Group | None) -> TappedModel:
    if extras.adapter_path is not None and group is not None:
        raise UnsupportedModelError(
            f"{checkpoint.path}: adapters cannot be split: merge them with the model (mlx_lm.fuse),"
            " or give --mode data, and each rank holds all of it"
        )
    if extras.adapter_path is not None and not is_folder(checkpoint):
        raise UnsupportedModelError(
            f"{checkpoint.path}: adapters are added to Hugging Face folders only: use the model's"
            " folder"
        )
    note_parts(checkpoint.config, checkpoint.path)
    model = make_tapped(checkpoint, group)
    add_to_model(model, extras)
    if computes_in_float32():
        model.inner.set_dtype(mx.float32)
    return model


def share_layers(model: nn.Module, base: TappedModel) -> Collection[str]:
    """Have a model with adapters use the layers of its base that they leave as they are.

    Returns:
        The names of these layers, which are complete.
    """
    own, others = _leaves(model), _leaves(base.inner)
    parameters: dict[str, mx.array] = dict(tree_flatten(model.trainable_parameters()))
    trained = {name.rpartition(".")[0] for name in parameters}
    shared = {}
    for name in own.keys() - trained:
        plain = ".".join(part for part in name.split(".") if part not in ADAPTED)
        if plain in others:
            shared[name] = others[plain]
    model.update_modules(tree_unflatten(list(shared.items())))
    return shared.keys()


def _leaves(model: nn.Module) -> dict[str, nn.Module]:
    return dict(tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module))


def _fill(
    model: nn.Module, tensors: Mapping[str, Tensor], unpack: bool, shared: Collection[str] = ()
) -> None:
    """Give a model its weights, laid out in memory for the device; those of some layers it has.

    There are no tensors where the model has lazy weights already.
    """
    layers = {name: layer for name, layer in _leaves(model).items() if name not in shared}
    by_size = sorted(layers, key=lambda name: size_of(layers[name]))
    read: list[nn.Module] = []
    while by_size:
        # 1. The largest first: while the embedding is in memory twice, hardly anything else is.
        name = by_size.pop()
        layer = layers.pop(name)  # so that what is unpacked, or split, leaves memory
        if tensors:
            layer.update({key: tensors[f"{name}.{key}"].read() for key in layer.parameters()})
        # 2. It takes the place of the layer in the model where it becomes one of another kind.
        ours = arranged(layer, unpack)
        if ours is not layer:
            model.update_modules(tree_unflatten([(name, ours)]))
        # 3. Nothing was computed so far. Small layers are computed together.
        read.append(ours)
        if sum(map(size_of, read)) > READ_AT_ONCE:
            mx.eval([one.parameters() for one in read])
            read.clear()
    mx.eval(model.parameters())
    mx.clear_cache()


def add_to_model(model: TappedModel, extras: Extras) -> None:
    """Add the adapters and quantize the caches to come; no weight of the model is read.

    Raises:
        ModelNotFoundError: there are no adapters in the folder.
        WeightsError: they are damaged or incomplete, or another model's.
        UnsupportedModelError: this model's cache cannot be quantized so.
    """
    if extras.adapter_path is not None:
        add_adapters(model.inner, extras.adapter_path)
    if extras.kv_bits is not None:
        try:
            model.quantize_cache(extras.kv_bits, extras.kv_group_size, extras.quantized_kv_start)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UnsupportedModelError(
                f"the KV cache of this {model.config.model_type} cannot be quantized to"
                f" {extras.kv_bits} bits in groups of {extras.kv_group_size}: {first_line(error)}"
            ) from error


def add_to_tokenizer(tokenizer: TokenizerWrapper, extras: Extras) -> None:
    """Add the endings, and the variables of the chat template.

    Raises:
        TokenizerError: an ending is no token of this model.
    """
    for token in extras.extra_eos_tokens:
        # An unknown token would be taken for the one that stands for unknown texts.
        known = token.isdecimal() or token in tokenizer.get_vocab()
        if not known:
            raise TokenizerError(
                f"{token!r} is no token of this model, so it cannot end an answer: name a token,"
                " or give --stop the text"
            )
        tokenizer.add_eos_token(token)
    if extras.chat_template_config:
        tokenizer._chat_template_config = dict(extras.chat_template_config)
