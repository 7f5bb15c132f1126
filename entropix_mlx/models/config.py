"""The shape of a model, as far as the program asks for it; known without MLX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LLAMA_FAMILY = ("llama", "mistral", "qwen2", "qwen3")  # a fingerprint does not name these types


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of any model, with the field names of a Hugging Face ``config.json``.

    A size that a model does not have is 0.
    """

    model_type: str
    vocab_size: int
    hidden_size: int = 0
    intermediate_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    max_position_embeddings: int = 0  # the context length, in tokens


CONTEXT_UNSTATED = 32768  # tokens, where a configuration states none, as of a recurrent model

_NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim", "model_dim"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size", "mlp_hidden_size"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "max_position_embeddings": (
        *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length"),
        *("max_sequence_length", "seq_length", "max_context_length", "model_max_length"),
    ),
}
"""What architectures call the same size."""


def shape_of(config: Mapping[str, Any], vocab_size: int) -> ModelShape:
    """Return the shape that a ``config.json`` states, of its language part if it has several."""
    text = config.get("text_config")
    stated = {**config, **text} if isinstance(text, Mapping) else config
    found = {"max_position_embeddings": CONTEXT_UNSTATED}
    for field, names in _NAMES.items():
        values = [stated[name] for name in names if type(stated.get(name)) is int]
        if values and values[0] > 0:
            found[field] = values[0]
    if "num_attention_heads" in found:
        found.setdefault("num_key_value_heads", found["num_attention_heads"])
    return ModelShape(model_type=str(config.get("model_type")), vocab_size=vocab_size, **found)


def fingerprint(config: ModelShape) -> str:
    """Return a model's shape as a text, which identifies it whatever its name and format are."""
    kind = "" if config.model_type in LLAMA_FAMILY else f"{config.model_type}, "
    return (
        f"{kind}{config.num_hidden_layers} layers of {config.hidden_size} and"
        f" {config.intermediate_size}, {config.num_attention_heads} heads over"
        f" {config.num_key_value_heads}, vocabulary {config.vocab_size}"
    )
