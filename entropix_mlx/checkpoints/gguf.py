"""GGUF files as models of mlx-lm: the configuration, the weights' names, the building.

`gguf_file` reads the container, `gguf_tokenizer` the tokenizer. A new architecture is an entry of
`MODEL_TYPES`, and of `_RENAMED` where its names differ from Llama's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import UnsupportedModelError, WeightsError, brief
from .folder import check_sizes
from .gguf_file import GGUFHeader, read_tensors

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
"""The architectures that are read, by GGUF's names; each with its ``model_type``."""

_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias|scales|biases)")
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_RENAMED = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
}
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What GGUF does not store of Llama 3's scaling; it has been the same in all models so far."""
_LAYERS_OF_GEMMA3_27B = 62
"""llama.cpp recognises this size by its layers: it alone scales its queries by another width."""


def config_of(path: Path, header: GGUFHeader) -> dict[str, Any]:
    """Return the ``config.json`` of the model in a GGUF file.

    Raises:
        UnsupportedModelError: another architecture, or a rotary scaling that is not handled.
        WeightsError: a key or a tensor is missing, or a key is of another kind than it should be.
    """
    metadata, tensors = header
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        raise UnsupportedModelError(
            f"{path}: architecture {brief(architecture)} is not supported in GGUF: only"
            f" {', '.join(MODEL_TYPES)} are; for others, use the Hugging Face folder"
        )
    if "token_embd.weight" not in tensors:
        raise WeightsError(f"{path}: the tensor token_embd.weight is missing")

    def positive(kind: type[Any], name: str, default: float | None = None) -> Any:
        value: Any = metadata.get(f"{architecture}.{name}", default)
        if type(value) is not kind or not 0 < value < math.inf:
            raise WeightsError(
                f"{path}: the key {architecture}.{name} must be a positive"
                f" {'whole ' if kind is int else ''}number, not {brief(value)}"
            )
        return value

    heads, width = positive(int, "attention.head_count"), positive(int, "embedding_length")
    config = {
        "model_type": MODEL_TYPES[architecture],
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": positive(int, "feed_forward_length"),
        "num_hidden_layers": positive(int, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": positive(int, "attention.head_count_kv", heads),
        "head_dim": positive(int, "attention.key_length", width // heads),
        "rms_norm_eps": positive(float, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": positive(int, "context_length"),
        # What the metadata does not say, the presence of tensors does.
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    gemma = architecture == "gemma3"
    config["rope_theta"] = positive(float, "rope.freq_base", 1e6 if gemma else 1e4)
    if gemma:
        largest = config["num_hidden_layers"] == _LAYERS_OF_GEMMA3_27B
        config["query_pre_attn_scalar"] = width / heads if largest else config["head_dim"]
        config["rope_local_base_freq"] = positive(float, "rope.freq_base_swa", 1e4)
        config["sliding_window"] = positive(int, "attention.sliding_window")
        config["sliding_window_pattern"] = positive(int, "attention.sliding_window_pattern", 6)
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "linear":
        factor = positive(float, "rope.scaling.factor")
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind != "none":
        raise UnsupportedModelError(
            f"{path}: its rotary scaling ({brief(kind)}) is not supported: use the model's Hugging"
            " Face folder"
        )
    check_sizes(config, str(path))
    return config


def load_gguf(
    path: Path,
    header: GGUFHeader,
    config: dict[str, Any],
    classes: Callable[[dict[str, Any]], tuple[Any, Any]],
) -> nn.Module:
    """Return the model in a GGUF file; weights that MLX has a packing for stay packed.

    Args:
        config: from `config_of`; its ``rope_scaling`` and ``quantization`` are added here, since
            the tensors state them.
        classes: as mlx-lm's ``get_model_classes``.

    Raises:
        WeightsError: the weights cannot be read.
        UnsupportedModelError: a tensor or a rotary scaling is not known.
        ValueError, RuntimeError: the weights do not fit the configuration.
    """
    from mlx_lm.utils import infer_quant_config

    tensors = read_tensors(path, header)
    if (factors := tensors.pop(_ROPE_FACTORS, None)) is not None:
        config["rope_scaling"] = _llama3_scaling(path, factors, config)
    architecture = header.metadata["general.architecture"]
    names = _NAMES | _RENAMED.get(architecture, {})
    weights = {_renamed(path, name, names): tensor for name, tensor in tensors.items()}
    if architecture == "llama":
        weights = {name: _in_halves(name, part, config) for name, part in weights.items()}
    if architecture == "gemma3":  # mlx-lm's norms of Gemma add 1 to the weight themselves
        weights = {name: w - 1 if "norm." in name else w for name, w in weights.items()}
    model_class, arguments = classes(config)
    model: nn.Module = model_class(arguments.from_dict(config))
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    packed = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    if packed:
        modules = dict(model.named_modules())
        packing = {name: infer_quant_config(name, modules[name], weights) for name in packed}
        config["quantization"] = {"group_size": 32, "bits": 4} | packing
        nn.quantize(model, class_predicate=lambda name, _: packing.get(name, False))
    model.eval()
    model.load_weights(list(weights.items()))
    return model


def _renamed(path: Path, name: str, names: dict[str, str]) -> str:
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in names:
        raise UnsupportedModelError(f"{path}: the tensor {name} does not belong to such a model")
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{names[match[2]]}.{match[3]}"


def _in_halves(name: str, rows: mx.array, config: dict[str, Any]) -> mx.array:
    """Return the rows of Llama's queries and keys in Hugging Face's order.

    The rotary embedding turns pairs of a head's numbers. llama.cpp pairs neighbours: 0 with 1, 2
    with 3. mlx-lm pairs the halves: of 8 numbers, 0 with 4, 1 with 5. Both compute the same if the
    rows that make the numbers are ordered accordingly: 0, 4, 1, 5, … become 0, 1, …, 4, 5, ….
    """
    if ".q_proj." not in name and ".k_proj." not in name:
        return rows
    pairs = rows.reshape(-1, config["head_dim"] // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _llama3_scaling(path: Path, factors: mx.array, config: dict[str, Any]) -> dict[str, Any]:
    """Return Llama 3's ``rope_scaling``, of which a file stores the divisor of each frequency."""
    factor: Any = factors.max().item()
    scaling = _LLAMA3_ROPE | {"factor": factor}
    size = config["head_dim"]
    turns = 8192 / (2 * math.pi) * config["rope_theta"] ** (-mx.arange(0, size, 2) / size)
    kept = mx.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    computed = 1 / ((1 - kept) / factor + kept)
    if factors.shape != computed.shape or not mx.allclose(computed, factors, rtol=1e-3).item():
        raise UnsupportedModelError(
            f"{path}: its rotary factors are not Llama 3's: use the model's Hugging Face folder"
        )
    return scaling
