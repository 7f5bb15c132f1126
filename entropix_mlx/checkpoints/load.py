"""From a name to a model in memory and its tokenizer: `hub` finds the files, `folder` checks them,
mlx-lm builds the model and reads the weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .. import limits
from ..errors import (
    ModelNotFoundError,
    PromptError,
    UnsupportedModelError,
    WeightsError,
    brief,
    first_line,
)
from ..files import expanded
from ..models import llama
from ..models.base import LanguageModel
from ..models.device import compute_in_float32, read_weights, wire_memory
from ..models.ranks import split
from .folder import check_endings, checked, explained, inside, read_object, tensor_names
from .gguf import config_of, load_gguf, read_header
from .hub import default_model, locate
from .tokenizers import (
    ModelTokenizer,
    add_endings,
    check_size,
    gguf_tokenizer,
    tokenizer_errors,
)
from .translation import limited, set_untruncated_yarn

_log = logging.getLogger(__name__)
NO_TEMPLATE = (
    "this model has no chat template: entropix generate continues a text with it, entropix read"
    " measures one; for a chat or fields choose an instruction-tuned model"
)
ADAPTERS, ADAPTERS_CONFIG = "adapters.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class Extras:
    """What is added to a model as it is loaded; the default adds nothing."""

    adapter_path: str | Path | None = None  # a folder of LoRA or DoRA weights, as mlx-lm writes it
    extra_eos_tokens: tuple[str, ...] = ()  # tokens that end an answer beside those of the model
    chat_template_config: Mapping[str, Any] = field(
        default_factory=dict
    )  # the template's variables
    kv_bits: int | None = None  # bits a number of the KV cache; None does not quantize it
    kv_group_size: int = 64  # numbers of the KV cache that share a scale
    quantized_kv_start: int = 0  # tokens after which the cache is quantized


def load(
    model: str | Path | None = None,
    *,
    dequantize: bool | None = None,
    tapped: bool = False,
    extras: Extras | None = None,
    group: mx.distributed.Group | None = None,
    chat: bool = False,
) -> tuple[LanguageModel, TokenizerWrapper]:
    """Load a model and its tokenizer.

    Models of the Llama family run on this package's own port, all others on mlx-lm's classes.

    On a GPU, weights stay as they are stored. On MLX's CPU backend they become float32, which is
    faster there: quantized ones, too, if they fit into half of the memory.

    Args:
        model: a Hugging Face folder, a GGUF file or a hub id; None takes `default_model`.
        dequantize: whether to unpack quantized weights; None decides as said above.
        tapped: have mlx-lm run a model of the Llama family, too.
        extras: adapters, a quantized cache and the like.
        group: the ranks that mlx-lm's ``shard`` splits the model over.
        chat: refuse a model without a chat template, before its weights are read.

    Raises:
        PromptError: `chat` is asked for, and the model has no chat template.
        ModelNotFoundError: there is no such model, or it cannot be downloaded.
        UnsupportedModelError: mlx-lm does not compute it.
        WeightsError: weights are missing, damaged, or do not fit the configuration.
        TokenizerError: there is no tokenizer, or it cannot be read.
    """
    from mlx_lm.utils import _get_classes, load_config, load_model

    path, extras = locate(model if model is not None else default_model()), extras or Extras()
    classes = _get_classes if tapped or group is not None else llama.classes
    # Reading the weights releases the interpreter lock, so that the tokenizer is read meanwhile.
    with ThreadPoolExecutor(max_workers=1) as helper, explained(path):
        if path.is_dir():
            with checked(path) as view:
                config = load_config(view)
                tokenizer = helper.submit(_tokenizer, view, config.get("eos_token_id"), path)
                inner, _ = load_model(view, lazy=True, get_model_classes=classes)
                set_untruncated_yarn(inner, config)
                _check_template(tokenizer.result().has_chat_template, chat)
        else:
            header = read_header(path)
            config = config_of(path, header)
            _check_template(bool(header.metadata.get("tokenizer.chat_template")), chat)
            tokenizer = helper.submit(gguf_tokenizer, path, header.metadata)
            inner = load_gguf(path, header, config, classes)
        loaded = _made(inner, limited(config), extras, group, dequantize)
        check_size(tokenizer.result(), loaded.config.vocab_size, path)
        read_weights(inner)
        wire_memory()
        loaded.warm_up()
        if not mx.isfinite(loaded(mx.array([[0]]), loaded.make_cache()).logits).all():
            raise WeightsError(f"{path}: the weights hold NaN or infinite numbers")
    add_endings(tokenizer.result(), extras.extra_eos_tokens)
    if extras.chat_template_config:
        tokenizer.result()._chat_template_config = dict(extras.chat_template_config)
    return loaded, tokenizer.result()


def _check_template(has_template: bool, chat: bool) -> None:
    if has_template:
        return
    if chat:
        raise PromptError(NO_TEMPLATE)
    _log.info("this model has no chat template: it continues texts, and answers nobody")


def _tokenizer(view: Path, ends: Any, where: Path) -> TokenizerWrapper:
    from mlx_lm.utils import load_tokenizer

    check_endings(ends, where)
    with tokenizer_errors(f"{where}: the tokenizer cannot be read"):
        # Without trust_remote_code, transformers would ask on the terminal whether to run code.
        loaded = load_tokenizer(view, {"trust_remote_code": False}, ends)
    return ModelTokenizer.around(loaded, where)


def _made(
    inner: nn.Module,
    config: Mapping[str, Any],
    extras: Extras,
    group: mx.distributed.Group | None,
    dequantize: bool | None,
) -> LanguageModel:
    if extras.adapter_path is not None:
        add_adapters(inner, extras.adapter_path)
    compute_in_float32(inner, dequantize)
    if group is not None:
        split(inner, config, group)
    made = LanguageModel(inner, config, group)
    if extras.kv_bits is not None:
        try:
            made.quantize_cache(extras.kv_bits, extras.kv_group_size, extras.quantized_kv_start)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UnsupportedModelError(
                f"the KV cache of this {made.config.model_type} cannot be quantized to"
                f" {extras.kv_bits} bits in groups of {extras.kv_group_size}: {first_line(error)}"
            ) from error
    return made


def add_adapters(model: nn.Module, path: str | Path) -> None:
    """Add the LoRA, DoRA or wholly fine-tuned layers in a folder to a model.

    A layer without an adapter in the file would keep the random numbers that it begins with, so the
    file must hold exactly what mlx-lm trains: else a `WeightsError` is raised.
    """
    from mlx_lm.tuner.utils import load_adapters

    folder = expanded(path, ModelNotFoundError)
    for name in (ADAPTERS, ADAPTERS_CONFIG):
        if not (folder / name).is_file():
            raise ModelNotFoundError(
                f"{brief(str(folder))} holds no adapters: {name} is missing; give the folder that"
                " mlx_lm.lora wrote"
            )
    stored = tensor_names(inside(folder, ADAPTERS))
    config = read_object(inside(folder, ADAPTERS_CONFIG), limits.CONFIG_BYTES)
    model.freeze()
    try:
        if config.get("fine_tune_type") == "full":
            for layer in model.layers[-max(config["num_layers"], 0) :]:
                layer.unfreeze()
        load_adapters(model, str(folder))
    except Exception as error:  # whatever a configuration makes it stumble over
        raise WeightsError(
            f"{folder}: this model cannot have such adapters: {first_line(error)}; use those that"
            " were trained on it"
        ) from error
    expected: dict[str, mx.array] = dict(tree_flatten(model.trainable_parameters()))
    if not expected or expected.keys() != stored:
        odd = min(expected.keys() ^ stored, default="no layer")
        raise WeightsError(
            f"{folder}: the adapters are incomplete or another model's ({odd}): use those that were"
            " trained on it"
        )
