"""The architectures that are read from GGUF: a table of what each calls its tensors and its keys.

The names on the right are those of a Hugging Face checkpoint as mlx-lm's module has them. A new
architecture is an entry of `ARCHITECTURES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from ...errors import UnsupportedModelError, WeightsError
from ..checkpoint import Tensor
from ..rotary import in_halves

Tensors = dict[str, Tensor]

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_LLAMA = _ATTENTION | {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3 = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_QWEN3_MOE = _ATTENTION | {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
}
_PHI3 = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
PHI3_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors of a phi3 file that are a part of its configuration."""

_LAYERS_OF_GEMMA3_27B = 62
"""llama.cpp tells this size by its layers: it alone scales its queries by another width."""


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
    in_block: Mapping[str, str]
    """Parts of a layer: from GGUF's names to those of a Hugging Face checkpoint."""
    fields: Callable[[Keys, dict[str, Any], Tensors], dict[str, Any]] = lambda *_: {}
    """The fields of a ``config.json`` that it alone has, from the metadata, the fields that all
    have and the tensors by the file's names."""
    adapt: Callable[[Tensors, dict[str, Any]], Tensors] = lambda tensors, _: tensors
    """Undo what llama.cpp's converter did to the numbers, by the translated names."""


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
    """Return the tensors with 1 less in each norm: llama.cpp's converter adds it.

    mlx-lm's norms of Gemma multiply by 1 + weight, those of llama.cpp by the weight.
    """

    def less(tensor: Tensor) -> mx.array:
        return tensor.read() - 1

    return {
        name: tensor._replace(read=partial(less, tensor), read_part=None)
        if "norm." in name
        else tensor
        for name, tensor in tensors.items()
    }


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
    stored = [tensors.get(name) for name in PHI3_FACTORS]
    if stored == [None, None]:
        return fields
    wanted = (keys.size("rope.dimension_count", head_dim) // 2,)
    factors = [tensor.read().tolist() for tensor in stored if tensor and tensor.shape == wanted]
    if len(factors) != len(PHI3_FACTORS):
        raise UnsupportedModelError(
            f"{keys.path}: {' and '.join(PHI3_FACTORS)} must be two tensors of {wanted[0]} numbers;"
            " download the file again"
        )
    scaling = {"type": "longrope", "long_factor": factors[0], "short_factor": factors[1]}
    return fields | {"rope_scaling": scaling}


ARCHITECTURES = {
    "llama": Architecture("llama", _LLAMA, adapt=in_halves),
    "qwen2": Architecture("qwen2", _LLAMA),
    "qwen3": Architecture("qwen3", _LLAMA),
    "gemma3": Architecture("gemma3_text", _GEMMA3, _gemma3_fields, _without_one),
    "qwen3moe": Architecture("qwen3_moe", _QWEN3_MOE, _qwen3_moe_fields),
    "phi3": Architecture("phi3", _PHI3, _phi3_fields),
}
"""By the names that GGUF gives to them; any other is refused by its name."""
