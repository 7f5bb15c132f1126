"""Describing a Llama-shaped GGUF file as Hugging Face would: its configuration and its tensors.

`gguf_file` reads the container. Here its names are translated, and `rotary` undoes the order that
the format gives to the rows of Llama's query and key projections.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import UnsupportedModelError, WeightsError
from ..models.rope_scaling import frequencies
from .checkpoint import Checkpoint
from .gguf_file import GGUFFile, open_gguf
from .gguf_tokenizer import gguf_tokenizer
from .rotary import in_halves

_ARCHITECTURES = ("llama", "qwen2", "qwen3")

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCK = {
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
_ROPE_FACTORS = "rope_freqs.weight"
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
    architecture = file.metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: architecture {architecture!r} is not supported: only Llama-shaped models are"
            f" ({', '.join(_ARCHITECTURES)})"
        )
    config = _config(path, file)
    tensors = {
        _translate(path, name): tensor
        for name, tensor in file.tensors.items()
        if name != _ROPE_FACTORS
    }
    if architecture == "llama":
        tensors = in_halves(tensors, config)
    return Checkpoint(path, config, tensors, partial(gguf_tokenizer, path, file.metadata))


class _Keys:
    """The metadata keys of one architecture, each checked as it is taken."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self.path = path
        self.metadata = metadata
        self.architecture: str = metadata["general.architecture"]

    def size(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if type(value) is not int or value < 1:
            raise WeightsError(
                f"{self.path}: {self.architecture}.{name} must be a positive whole number, not"
                f" {value!r}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if type(value) is not float or not 0 < value < math.inf:
            raise WeightsError(
                f"{self.path}: {self.architecture}.{name} must be a positive number, not {value!r}"
            )
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise WeightsError(
                f"{self.path}: the metadata key {self.architecture}.{name} is missing"
            )
        return value


def _config(path: Path, file: GGUFFile) -> dict[str, Any]:
    """Return what the metadata says in the keys of a ``config.json``."""
    metadata, tensors = file
    if "token_embd.weight" not in tensors:
        raise WeightsError(f"{path}: the tensor token_embd.weight is missing")
    keys = _Keys(path, metadata)
    heads, width = keys.size("attention.head_count"), keys.size("embedding_length")
    config = {
        "model_type": keys.architecture,
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
    scaling = _rope_scaling(path, file, config)
    return config | ({"rope_scaling": scaling} if scaling else {})


def _rope_scaling(path: Path, file: GGUFFile, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the ``rope_scaling``, or None.

    Of Llama 3's scaling, GGUF stores only the result: what each rotary frequency is divided by. The
    largest of those is the scaling's own factor. Its other numbers have been the same in all models
    so far, so they are assumed; computing the factors again shows whether that is right.
    """
    prefix = f"{config['model_type']}.rope.scaling"
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
        f"{path}: its rotary scaling ({kind}) is not supported; convert the original Hugging Face"
        " weights instead"
    )


def _llama3_factors(config: dict[str, Any], scaling: dict[str, Any]) -> mx.array:
    """Return what Llama 3's scaling divides each rotary frequency by: `(head_dim / 2,)`."""
    plain = frequencies(config["head_dim"], config["rope_theta"], None).turns
    scaled = frequencies(config["head_dim"], config["rope_theta"], scaling).turns
    return mx.array([a / b for a, b in zip(plain, scaled, strict=True)])


def _translate(path: Path, name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias|scales|biases)", name)
    if match:
        block, part, kind = match.groups()
        known = _TOP_LEVEL if block is None else _IN_BLOCK
        if part in known:
            prefix = "" if block is None else f"model.layers.{block}."
            return f"{prefix}{known[part]}.{kind}"
    raise UnsupportedModelError(
        f"{path}: the tensor {name} does not belong to a Llama-shaped model"
    )
