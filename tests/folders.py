"""Checkpoints as others write them, made from tiny models without this package's own writer."""

import json
from dataclasses import asdict

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import pre_tokenizers

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


def edit_json(file, **changes):
    """Change keys of the object in a file, which need not exist; ``...`` removes one."""
    content = json.loads(file.read_text()) if file.exists() else {}
    content |= changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def write_folder(folder, model, tokenizer, dtype=mx.float32, shards=1, **config):
    """Write a model as Hugging Face does; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    stated = asdict(model.inner.args) | {"dtype": str(dtype).removeprefix("mlx.core.")} | config
    (folder / "config.json").write_text(json.dumps(stated))
    tokenizer.save_pretrained(folder)
    weights = [
        (name, weight.astype(dtype)) for name, weight in tree_flatten(model.inner.parameters())
    ]
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


GGUF_NAMES = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def interleaved(rows, heads):
    """Order rows as GGUF does: the two halves of each head take turns."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def tensors_of(model):
    """Return a model's tensors by GGUF's names."""
    return stored_as(model, GGUF_NAMES)


def stored_as(model, names):
    """Return a model's tensors by other names; only Llama's own have their rows interleaved."""
    tensors = {}
    args = model.inner.args
    heads = {".q_proj.": args.num_attention_heads, ".k_proj.": args.num_key_value_heads}
    for key, weight in tree_flatten(model.inner.parameters()):
        name, rows = key, weight
        for part, count in heads.items():
            if part in key and args.model_type == "llama":
                rows = interleaved(rows, count)
        for ours, theirs in names:
            name = name.replace(ours, theirs)
        tensors[name] = mx.contiguous(rows)
    return tensors


def metadata_of(model):
    """Return the metadata of a GGUF file, its tokenizer being that of single bytes."""
    config = model.inner.args
    width = model.inner.layers[0].self_attn.head_dim
    return {
        "general.architecture": "llama",
        "llama.embedding_length": mx.array(config.hidden_size),
        "llama.feed_forward_length": mx.array(config.intermediate_size),
        "llama.block_count": mx.array(config.num_hidden_layers),
        "llama.attention.head_count": mx.array(config.num_attention_heads),
        "llama.attention.head_count_kv": mx.array(config.num_key_value_heads),
        "llama.attention.key_length": mx.array(width),
        "llama.attention.layer_norm_rms_epsilon": mx.array(config.rms_norm_eps),
        "llama.rope.freq_base": mx.array(config.rope_theta),
        "llama.context_length": mx.array(config.max_position_embeddings),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [*ALPHABET, "<s>", "</s>"],
        "tokenizer.ggml.token_type": mx.array([1] * 256 + [3] * 2),
        "tokenizer.ggml.bos_token_id": mx.array(256),
        "tokenizer.ggml.eos_token_id": mx.array(257),
        "tokenizer.ggml.add_bos_token": mx.array(True),
    }


def write_gguf(file, model, without=(), **changes):
    """Write a model as an unpacked GGUF file, some tensors or metadata changed; return the file."""
    return save_gguf(file, tensors_of(model), metadata_of(model), without, changes)


def save_gguf(file, tensors, metadata, without, changes):
    """Write a GGUF file after changes, which are by name: of a tensor where it ends like one."""
    for name, value in changes.items():
        (tensors if name.endswith((".weight", ".bias")) else metadata)[name] = value
    tensors, metadata = (
        {name: value for name, value in part.items() if name not in without}
        for part in (tensors, metadata)
    )
    mx.save_gguf(str(file), tensors, metadata)
    return file
