"""Tiny random models of mlx-lm's own classes, a few of every kind of cache and of attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

BASE = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
MIXTURE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "rope_interleave": True,
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "rope_scaling": None,
}
GATED_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "partial_rotary_factor": 0.5,
}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_ctx": 512, "n_positions": 512, "n_inner": 48}
SLIDES = ["sliding_attention", "full_attention"]
WINDOW = 8

ARCHITECTURES: dict[str, dict[str, Any]] = {
    # plain grouped heads, in their many spellings
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "cohere": {},
    "gemma": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "granite": {
        "logits_scaling": 1.0,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
    },
    "gpt2": {**GPT},
    "gpt_bigcode": {**GPT},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.25},
    "olmo2": {},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "stablelm": {"use_qkv_bias": False, "partial_rotary_factor": 0.5},
    "starcoder2": {},
    "smollm3": {},
    # mixtures of experts
    "mixtral": {**MIXTURE},
    "olmoe": {**MIXTURE, "num_key_value_heads": 4},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**MIXTURE},
    # sliding windows
    "gemma3_text": {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gemma3": {
        "text_config": {
            **BASE,
            "model_type": "gemma3_text",
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
        }
    },
    "cohere2": {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "exaone4": {
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LG",
        "layer_types": SLIDES,
        "rope_scaling": None,
    },
    "olmo3": {"sliding_window": WINDOW, "layer_types": SLIDES},
    # sinks
    "gpt_oss": {
        **MIXTURE,
        "sliding_window": WINDOW,
        "layer_types": SLIDES,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    # chunks; two windows in a layer
    "llama4_text": {
        "intermediate_size_mlp": 48,
        "no_rope_layers": [1, 0],
        "use_qk_norm": True,
    },
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": WINDOW},
    # latent attention
    "deepseek_v2": {
        **LATENT,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 128,
        },
    },
    "deepseek_v3": {**LATENT},
    "minicpm3": {
        **LATENT,
        "dim_model_base": 32,
        "scale_depth": 1.0,
        "scale_emb": 1.0,
        "rope_scaling": {
            "long_factor": [1.0] * 4,
            "short_factor": [1.0] * 4,
            "original_max_position_embeddings": 512,
            "rope_type": "longrope",
        },
    },
    # hybrids
    "qwen3_next": {
        **MIXTURE,
        **GATED_DELTA,
        "shared_expert_intermediate_size": 16,
    },
    "qwen3_5": {"text_config": {**BASE, **GATED_DELTA, "model_type": "qwen3_5"}},
    "lfm2": {
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 4,
        "block_ffn_dim_multiplier": 1,
        "block_auto_adjust_ff_dim": True,
        "full_attn_idxs": [1],
    },
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
    },
    "nemotron_h": {
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 3,
        "n_groups": 2,
        "time_step_limit": [0.0, 1e6],
        "use_bias": False,
        "use_conv_bias": True,
        "residual_in_fp32": False,
        "hybrid_override_pattern": ["*", "M"],
    },
    "recurrent_gemma": {
        "conv1d_width": 3,
        "logits_soft_cap": 30.0,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "attention"],
    },
    # attention of its own, and none
    "gemma2": {"attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 8},
    "plamo2": {
        "num_hidden_layers": 2,
        "hidden_size_per_head": 8,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_num_heads": 4,
        "mamba_step": 2,
        "attention_window_size": 512,
    },
    "mamba": {
        "use_bias": False,
        "use_conv_bias": True,
        "conv_kernel": 4,
        "state_size": 8,
        "intermediate_size": 64,
        "time_step_rank": 4,
    },
    "mamba2": {
        "num_heads": 4,
        "head_dim": 16,
        "intermediate_size": 64,
        "state_size": 16,
        "conv_kernel": 3,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "chunk_size": 32,
        "time_step_limit": [0.0, 1e6],
        "time_step_rank": "auto",
    },
}
"""By ``model_type``: what its configuration adds to `BASE`."""


def config_of(model_type: str, **changes: Any) -> dict[str, Any]:
    """Return the keys of a tiny model's ``config.json``."""
    return BASE | {"model_type": model_type} | ARCHITECTURES[model_type] | changes


def make(model_type: str, seed: int = 0, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return a tiny random model of mlx-lm's and its configuration."""
    config = config_of(model_type, **changes)
    model_class, arguments = _get_classes(config)
    mx.random.seed(seed)  # what its parameters begin with is drawn from the global state
    model = model_class(arguments.from_dict(config))
    mx.eval(model.parameters())
    keys = iter(mx.random.split(mx.random.key(seed), 1000))
    weights = []
    for name, parameter in tree_flatten(model.parameters()):
        if mx.issubdtype(parameter.dtype, mx.floating) and "A_log" not in name:
            noise = mx.random.normal(parameter.shape, key=next(keys))
            parameter = parameter + 0.3 * noise  # noqa: PLW2901
        weights.append((name, parameter))
    model.load_weights(weights)
    model.eval()
    mx.eval(model.parameters())
    return model, config


def save(model: nn.Module, config: dict[str, Any], folder: Path) -> None:
    """Write a model as mlx-lm would load it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
