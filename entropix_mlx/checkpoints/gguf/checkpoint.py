"""Describing a GGUF file as Hugging Face would: its configuration and its tensors.

`file` reads the container; here its names and keys are translated to those of a Hugging Face
checkpoint as mlx-lm's module has them. A new architecture is an entry of `ARCHITECTURES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from ...errors import UnsupportedModelError, WeightsError, brief
from ...models.config import frequencies
from ..architecture import check_supported, is_tapped
from ..checkpoint import Checkpoint, Cut, Tensor, in_halves, translate
from .file import GGUFFile, open_gguf
from .tokenizer import gguf_tokenizer

Tensors = dict[str, Tensor]

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
_LLAMA = _ATTENTION | {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
_PHI3_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
_NO_WEIGHTS = (_ROPE_FACTORS, *_PHI3_FACTORS)
"""Tensors that are a part of the configuration."""
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LAYERS_OF_GEMMA3_27B = 62
"""llama.cpp recognises this size by its layers: it alone scales its queries by another width."""


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

    Of Llama 3's scaling, GGUF stores only the divisor of each rotary frequency. The largest of
    those is the scaling's own factor. Its other numbers have been the same in all models so far, so
    they are assumed, and checked by computing the divisors again.
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
    """Return the divisor of each rotary frequency in Llama 3's scaling: `(head_dim / 2,)`."""
    plain = frequencies(config["head_dim"], config["rope_theta"], None).turns
    scaled = frequencies(config["head_dim"], config["rope_theta"], scaling).turns
    return mx.array([a / b for a, b in zip(plain, scaled, strict=True)])


def _translate(path: Path, name: str, architecture: Architecture) -> str:
    pattern = r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias|scales|biases)"
    found = translate(name, pattern, _TOP_LEVEL, architecture.in_block)
    if found is None:
        kind = architecture.model_type
        raise UnsupportedModelError(
            f"{path}: the tensor {name} does not belong to a model of type {kind}"
        )
    return found


class Keys:
    """The metadata keys of one architecture, each checked as it is taken."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self.path = path
        self.metadata = metadata
        self.architecture: str = metadata["general.architecture"]

    def size(self, name: str, default: int | None = None) -> int:
        """Return a positive whole number; raise `WeightsError` where there is none."""
        value = self._value(name, default)
        if type(value) is not int or value < 1:
            raise WeightsError(
                f"{self.path}: {self.architecture}.{name} must be a positive whole number, not"
                f" {value!r}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number; raise `WeightsError` where there is none."""
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


class Architecture(NamedTuple):
    """How the files of an architecture differ from a Hugging Face checkpoint."""

    model_type: str
    """Its name in a ``config.json``."""
    in_block: Mapping[str, str] = _LLAMA
    """The parts of a layer: from GGUF's names to those of a Hugging Face checkpoint."""
    fields: Callable[[Keys, dict[str, Any], Tensors], dict[str, Any]] = lambda *_: {}
    """Returns the fields of a ``config.json`` that it alone has, given the metadata, the fields
    that all have and the tensors by the file's names."""
    adapt: Callable[[Tensors, dict[str, Any]], Tensors] = lambda tensors, _: tensors
    """Undoes the changes of llama.cpp's converter to tensors, which have their new names."""


def _gemma3_fields(keys: Keys, config: dict[str, Any], _: Tensors) -> dict[str, Any]:
    head_dim = keys.size("attention.key_length", 256)
    largest = config["num_hidden_layers"] == _LAYERS_OF_GEMMA3_27B
    width = config["hidden_size"] / config["num_attention_heads"] if largest else head_dim
    return {
        "head_dim": head_dim,
        "query_pre_attn_scalar": width,
        "rope_theta": keys.number("rope.freq_base", 1e6),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 1e4),
        "sliding_window": keys.size("attention.sliding_window"),
        "sliding_window_pattern": keys.size("attention.sliding_window_pattern", 6),
    }


def _without_one(tensors: Tensors, _: dict[str, Any]) -> Tensors:
    """Subtract 1 from each norm: mlx-lm's norms of Gemma add it to the weight themselves."""

    def less(tensor: Tensor, cut: Cut | None = None) -> mx.array:
        return tensor.read(cut) - 1

    norms = {name: tensor for name, tensor in tensors.items() if "norm." in name}
    return tensors | {n: tensor._replace(read=partial(less, tensor)) for n, tensor in norms.items()}


def _qwen3_moe_fields(keys: Keys, _: dict[str, Any], __: Tensors) -> dict[str, Any]:
    return {
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def _phi3_fields(keys: Keys, config: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    context = config["max_position_embeddings"]
    fields = {
        "partial_rotary_factor": keys.size("rope.dimension_count", head_dim) / head_dim,
        "original_max_position_embeddings": keys.size(
            "rope.scaling.original_context_length", context
        ),
    }
    stored = [tensors.get(name) for name in _PHI3_FACTORS]
    if stored == [None, None]:
        return fields
    wanted = (keys.size("rope.dimension_count", head_dim) // 2,)
    factors = [tensor.read().tolist() for tensor in stored if tensor and tensor.shape == wanted]
    if len(factors) != len(_PHI3_FACTORS):
        raise UnsupportedModelError(
            f"{keys.path}: {' and '.join(_PHI3_FACTORS)} must be two tensors of {wanted[0]}"
            " numbers; download the file again"
        )
    scaling = {"type": "longrope", "long_factor": factors[0], "short_factor": factors[1]}
    return fields | {"rope_scaling": scaling}


ARCHITECTURES = {
    "llama": Architecture("llama", adapt=in_halves),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma3": Architecture(
        "gemma3_text",
        _LLAMA
        | {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        _gemma3_fields,
        _without_one,
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        _ATTENTION
        | {
            "ffn_gate_inp": "mlp.gate",
            "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
            "ffn_up_exps": "mlp.switch_mlp.up_proj",
            "ffn_down_exps": "mlp.switch_mlp.down_proj",
        },
        _qwen3_moe_fields,
    ),
    "phi3": Architecture(
        "phi3",
        _LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        _phi3_fields,
    ),
}
"""By the names that GGUF gives to them; any other is refused by its name."""
