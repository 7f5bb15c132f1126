"""Reading a Llama-shaped GGUF file: its configuration and its weights, in Hugging Face's terms.

MLX reads the file itself: tensors of type Q4_0, Q4_1 and Q8_0 stay quantized, others become dense.
What is left to do here is to translate names, and to undo what the format does to the weights:
GGUF interleaves the rows of q and k for its own rotary embedding.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx

from .errors import UnsupportedModelError, WeightsError

Weights = dict[str, mx.array]

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
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


def read_gguf(path: Path) -> tuple[dict[str, Any], Weights, dict[str, Any]]:
    """Return the configuration, the weights and the metadata of a GGUF file.

    The configuration has the keys of a Hugging Face ``config.json``, the weights those of its
    checkpoint. The metadata is the file's own; `gguf_tokenizer` builds the tokenizer from it.

    Raises:
        UnsupportedModelError: another architecture, or a rotary scaling that is not handled.
        WeightsError: the file is damaged, or a tensor or a key is missing.
    """
    tensors: Weights
    try:
        tensors, raw = mx.load(str(path), return_metadata=True)  # type: ignore[assignment]
    except RuntimeError as error:
        raise WeightsError(
            f"{path}: cannot be read as GGUF: {error}. Download it again."
        ) from error
    metadata = {key: _plain(value) for key, value in raw.items()}  # type: ignore[union-attr]
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError(
            f"{path}: architecture {architecture!r} is not supported: only Llama-shaped models are"
        )
    factors = tensors.pop(_ROPE_FACTORS, None)
    config = _config(path, metadata, tensors, factors)
    weights = {_translate(path, name): tensor for name, tensor in tensors.items()}
    interleaved = {
        ".q_proj.": config["num_attention_heads"],
        ".k_proj.": config["num_key_value_heads"],
    }
    for name, weight in weights.items():
        for part, heads in interleaved.items():
            if part in name:
                if weight.shape[0] != heads * config["head_dim"]:
                    raise WeightsError(
                        f"{path}: {name} has {weight.shape[0]} rows for {heads} heads"
                    )
                weights[name] = _uninterleave(weight, heads)
    return config, weights, metadata


def _plain(value: Any) -> Any:
    """Return a metadata value as a Python number, text or list; float32 as it was written."""
    plain = value.tolist() if isinstance(value, mx.array) else value
    return float(f"{plain:.7g}") if isinstance(plain, float) else plain


def _config(
    path: Path, metadata: dict[str, Any], tensors: Weights, factors: mx.array | None
) -> dict[str, Any]:
    def key(name: str, default: Any = None) -> Any:
        value = metadata.get(f"llama.{name}", default)
        if value is None:
            raise WeightsError(f"{path}: the metadata key llama.{name} is missing")
        return value

    def size(name: str, default: int | None = None) -> int:
        value = key(name, default)
        if type(value) is not int or value < 1:
            raise WeightsError(f"{path}: llama.{name} must be a positive number, not {value!r}")
        return value

    if "token_embd.weight" not in tensors:
        raise WeightsError(f"{path}: the tensor token_embd.weight is missing")
    heads, width = size("attention.head_count"), size("embedding_length")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": size("attention.key_length", width // heads),
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
        "rope_theta": key("rope.freq_base", 10000.0),
        "max_position_embeddings": size("context_length"),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if "tokenizer.ggml.eos_token_id" in metadata:
        config["eos_token_id"] = metadata["tokenizer.ggml.eos_token_id"]
    if "tokenizer.ggml.bos_token_id" in metadata:
        config["bos_token_id"] = metadata["tokenizer.ggml.bos_token_id"]
    scaling = _rope_scaling(path, metadata, config, factors)
    return config | ({"rope_scaling": scaling} if scaling else {})


def _rope_scaling(
    path: Path, metadata: dict[str, Any], config: dict[str, Any], factors: mx.array | None
) -> dict[str, Any] | None:
    """Return the rotary scaling; GGUF stores Llama 3's only as the factors that result from it."""
    kind = metadata.get("llama.rope.scaling.type", "none")
    if factors is None and kind in ("none", "linear"):
        factor = metadata.get("llama.rope.scaling.factor", 1.0)
        return {"rope_type": "linear", "factor": factor} if kind == "linear" else None
    if factors is not None and kind == "none":
        scaling = _LLAMA3_ROPE | {"factor": factors.max().item()}
        if mx.allclose(_llama3_factors(config, scaling), factors, rtol=1e-3).item():
            return scaling
    raise UnsupportedModelError(
        f"{path}: its rotary scaling ({kind}) is not supported; convert the original Hugging Face"
        " weights instead"
    )


def _llama3_factors(config: dict[str, Any], scaling: dict[str, Any]) -> mx.array:
    """Return what Llama 3's scaling divides each rotary frequency by."""
    from mlx_lm.models.rope_utils import initialize_rope

    dims, base = config["head_dim"], config["rope_theta"]
    scaled: mx.array = initialize_rope(
        dims, base, False, scaling, config["max_position_embeddings"]
    )._freqs
    factors: mx.array = scaled / base ** (mx.arange(0, dims, 2) / dims)
    return factors


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


def _uninterleave(rows: mx.array, heads: int) -> mx.array:
    """Put the rows of each head from 0, half, 1, half + 1, … back to 0, 1, …, half, half + 1, …"""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
