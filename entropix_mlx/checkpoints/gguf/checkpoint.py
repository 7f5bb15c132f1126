"""Describing a GGUF file as Hugging Face would: its configuration and its tensors.

`gguf_file` reads the container, `gguf_architectures` says what is special about an architecture;
here the names and the keys are translated.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...errors import UnsupportedModelError, WeightsError, brief
from ...models.config import frequencies
from ..architecture import check_supported, is_tapped
from ..checkpoint import Checkpoint
from .architectures import (
    ARCHITECTURES,
    PHI3_FACTORS,
    Architecture,
    Keys,
)
from .file import GGUFFile, open_gguf
from .tokenizer import gguf_tokenizer

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ROPE_FACTORS = "rope_freqs.weight"
_NO_WEIGHTS = (_ROPE_FACTORS, *PHI3_FACTORS)
"""Tensors that are a part of the configuration."""
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def open_gguf_model(path: Path) -> Checkpoint:
    """Return the model in a GGUF file, without reading its weights.

    Raises:
        UnsupportedModelError: another architecture, a rotary scaling that is not handled, or
            tensors of a kind that cannot be read.
        WeightsError: the file is damaged, or a tensor or a key is missing.
    """
    file = open_gguf(path)
    name = file.metadata.get("general.architecture")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise UnsupportedModelError(
            f"{path}: architecture {brief(name)} is not supported in GGUF: only"
            f" {', '.join(ARCHITECTURES)} are; for others, use the Hugging Face folder"
        )
    config = _config(path, file, architecture)
    if is_tapped(config):
        check_supported(config, str(path))
    tensors = {
        _translate(path, name, architecture): tensor
        for name, tensor in file.tensors.items()
        if name not in _NO_WEIGHTS
    }
    tensors = architecture.adapt(tensors, config)
    return Checkpoint(path, config, tensors, partial(gguf_tokenizer, path, file.metadata))


def _config(path: Path, file: GGUFFile, architecture: Architecture) -> dict[str, Any]:
    """Return what the metadata says in the keys of a ``config.json``."""
    metadata, tensors = file
    if "token_embd.weight" not in tensors:
        raise WeightsError(f"{path}: the tensor token_embd.weight is missing")
    keys = Keys(path, metadata)
    heads, width = keys.size("attention.head_count"), keys.size("embedding_length")
    config = {
        "model_type": architecture.model_type,
        "architectures": [f"{keys.architecture.capitalize()}ForCausalLM"],
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": keys.size("attention.key_length", width // heads),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "max_position_embeddings": keys.size("context_length"),
        # What the metadata does not say, the presence of tensors does.
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    for role in ("bos", "eos"):
        if f"tokenizer.ggml.{role}_token_id" in metadata:
            config[f"{role}_token_id"] = metadata[f"tokenizer.ggml.{role}_token_id"]
    config |= architecture.fields(keys, config, tensors)
    if "rope_scaling" not in config and (scaling := _rope_scaling(keys, file, config)):
        config["rope_scaling"] = scaling
    return config


def _rope_scaling(keys: Keys, file: GGUFFile, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the ``rope_scaling``, or None.

    Of Llama 3's scaling, GGUF stores only the result: what each rotary frequency is divided by. The
    largest of those is the scaling's own factor. Its other numbers have been the same in all models
    so far, so they are assumed; computing the factors again shows whether that is right.
    """
    prefix = f"{keys.architecture}.rope.scaling"
    kind = file.metadata.get(f"{prefix}.type", "none")
    stored = file.tensors.get(_ROPE_FACTORS)
    if stored is None and kind in ("none", "linear"):
        factor = file.metadata.get(f"{prefix}.factor", 1.0)
        return {"rope_type": "linear", "factor": factor} if kind == "linear" else None
    factors = stored.read() if stored and stored.shape == (config["head_dim"] // 2,) else None
    if factors is not None and kind == "none":
        scaling = _LLAMA3_ROPE | {"factor": factors.max().item()}
        if mx.allclose(_llama3_factors(config, scaling), factors, rtol=1e-3).item():
            return scaling
    raise UnsupportedModelError(
        f"{keys.path}: its rotary scaling ({kind}) is not supported; convert the original"
        " Hugging Face weights instead"
    )


def _llama3_factors(config: dict[str, Any], scaling: dict[str, Any]) -> mx.array:
    """Return what Llama 3's scaling divides each rotary frequency by: `(head_dim / 2,)`."""
    plain = frequencies(config["head_dim"], config["rope_theta"], None).turns
    scaled = frequencies(config["head_dim"], config["rope_theta"], scaling).turns
    return mx.array([a / b for a, b in zip(plain, scaled, strict=True)])


def _translate(path: Path, name: str, architecture: Architecture) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias|scales|biases)", name)
    if match:
        block, part, kind = match.groups()
        known = _TOP_LEVEL if block is None else architecture.in_block
        if part in known:
            prefix = "" if block is None else f"model.layers.{block}."
            return f"{prefix}{known[part]}.{kind}"
    raise UnsupportedModelError(
        f"{path}: the tensor {name} does not belong to a model of type {architecture.model_type}"
    )
