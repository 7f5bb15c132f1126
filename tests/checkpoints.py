"""Checkpoints as others write them, made from tiny models without this package's own writer."""

import json
from dataclasses import asdict

import mlx.core as mx
from mlx.utils import tree_flatten

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

KINDS = {
    "llama": {},
    "llama-3": {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "tie_word_embeddings": False},
    "heads of 20": {"head_dim": 20, "num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": False},
}


def write_folder(folder, model, tokenizer, dtype=mx.float32, shards=1, **config):
    """Write a model as Hugging Face does; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(asdict(model.config) | config))
    tokenizer.save_pretrained(folder)
    weights = [(name, weight.astype(dtype)) for name, weight in tree_flatten(model.parameters())]
    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), dict(weights))
        return folder
    places = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        own = dict(weights[number::shards])
        mx.save_safetensors(str(folder / file), own)
        places |= dict.fromkeys(own, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
