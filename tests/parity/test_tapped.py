"""Models that mlx-lm computes, as transformers saves them, against torch and transformers."""

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.errors import UnsupportedModelError
from tests.parity.test_architectures import LENGTH, LLAMA3, TINY, YARN, random_torch_model, torch

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("uncompiled")]

TOLERANCE = 2e-2  # mlx-lm's Gemma rounds a scale to half precision
BASE = {name: value for name, value in TINY.items() if name != "model_type"} | {"pad_token_id": 0}
MIXTURE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LATENT = MIXTURE | {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SLIDES = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
THETA = {"rope_theta": 5e5}
TIED = {"tie_word_embeddings": True}
LINEAR = {"rope_type": "linear", "factor": 4.0}
OWN_YARN = YARN | {"beta_fast": 16, "truncate": False}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0 + n / 10 for n in range(8)],
    "long_factor": [2.0 + n / 2 for n in range(8)],
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
}


REFUSED = {"falcon_h1": "key_multiplier", "glm": "partial_rotary_factor", "olmo3": "sliding"}
"""By architecture: the key that mlx-lm's class ignores or misreads."""


def ropes(**by_type):
    return {"rope_parameters": by_type}


MODELS = {
    "olmo2": [THETA, YARN, OWN_YARN, LINEAR | THETA, LLAMA3],
    "olmo3": [SLIDES | ropes(full_attention=YARN | THETA, sliding_attention={"rope_theta": 100.0})],
    "qwen3_moe": [MIXTURE | THETA, MIXTURE | {"norm_topk_prob": True}],
    "qwen2_moe": [MIXTURE | SLIDES | THETA | {"use_sliding_window": True, "max_window_layers": 1}],
    "mixtral": [MIXTURE | THETA | {"sliding_window": 16}],
    "gemma": [TIED | THETA, TIED | {"head_dim": 32}],
    "gemma2": [TIED | SLIDES | {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 9}],
    "gemma3_text": [
        SLIDES | ropes(full_attention=LINEAR | THETA, sliding_attention={"rope_theta": 100.0}),
        TIED | SLIDES | {"hidden_size": 96},
    ],
    "granite": [MULTIPLIERS | THETA | YARN, {"attention_bias": True}],
    "cohere": [THETA | TIED | {"use_qk_norm": True, "logit_scale": 0.5}],
    "cohere2": [SLIDES | THETA | TIED | {"logit_scale": 0.7}],
    "glm": [THETA],
    "glm4": [THETA | {"partial_rotary_factor": 0.25}, {"attention_bias": True}],
    "phi": [THETA | {"partial_rotary_factor": 0.25, "hidden_act": "gelu_new"}],
    "phi3": [THETA | {"sliding_window": 16}, LONGROPE | {"original_max_position_embeddings": 400}],
    "stablelm": [THETA | {"partial_rotary_factor": 0.5, "use_qkv_bias": True}],
    "smollm3": [THETA | {"no_rope_layers": [0, 1]}, YARN],
    "starcoder2": [THETA | {"sliding_window": 16}],
    "exaone4": [SLIDES | {"sliding_window_pattern": 2} | LLAMA3],
    "deepseek_v3": [LATENT | THETA, LATENT | YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}],
    "gpt_neox": [{"intermediate_size": 256, "rotary_pct": 0.5, "rotary_emb_base": 500}],
    "falcon_h1": [
        {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "key_multiplier": 0.4}
    ],
}
ROPE_KEYS = {"rope_theta", *YARN, *OWN_YARN, *LLAMA3, "short_factor", "long_factor", "mscale"}
ROPE_KEYS |= {"partial_rotary_factor", "mscale_all_dim"}


def stated(kind, changes):
    """Return a configuration whose rotary embedding is stated as transformers 5 does."""
    rope = {name: changes[name] for name in ROPE_KEYS & changes.keys()}
    if "long_factor" in changes:  # Phi's stands beside
        rope.pop("original_max_position_embeddings", None)
    rest = {name: value for name, value in changes.items() if name not in rope}
    config = BASE | {"model_type": kind} | rest
    return config | ({"rope_parameters": {"rope_theta": 10000.0} | rope} if rope else {})


@pytest.mark.parametrize(
    ("kind", "changes"), [(kind, one) for kind, several in MODELS.items() for one in several]
)
def test_what_transformers_saves_computes_what_it_does(kind, changes, tmp_path, byte_tokenizer):
    theirs = random_torch_model(stated(kind, changes))
    theirs.save_pretrained(tmp_path)
    byte_tokenizer.save_pretrained(tmp_path)
    if kind in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[kind]):
            load(tmp_path)
        return
    ours, _ = load(tmp_path)
    length = min(LENGTH, ours.config.max_position_embeddings)  # that of a window, perhaps
    tokens = np.random.default_rng(0).integers(0, 256, (1, length))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits[0].numpy()
    assert (
        np.abs(np.array(ours(mx.array(tokens), ours.make_cache()).logits[0]) - expected).max()
        <= TOLERANCE
    )
    cache = ours.make_cache()
    ours(mx.array(tokens[:, :-1]), cache)
    last = ours(mx.array(tokens[:, -1:]), cache).logits[0, -1]
    assert np.abs(np.array(last) - expected[-1]).max() <= TOLERANCE
