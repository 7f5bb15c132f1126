"""Checkpoints as others write them, made from tiny models without this package's own writer."""

import base64
import json
import math
import pickle
import zipfile
from dataclasses import asdict

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from tokenizers import pre_tokenizers

from tests.conftest import make_tiny_model

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
    heads = {
        ".q_proj.": model.config.num_attention_heads,
        ".k_proj.": model.config.num_key_value_heads,
    }
    for key, weight in tree_flatten(model.parameters()):
        name, rows = key, weight
        for part, count in heads.items():
            if part in key and model.config.model_type == "llama":
                rows = interleaved(rows, count)
        for ours, theirs in names:
            name = name.replace(ours, theirs)
        tensors[name] = mx.contiguous(rows)
    return tensors


def metadata_of(model):
    """Return the metadata of a GGUF file, its tokenizer being that of single bytes."""
    config = model.config
    return {
        "general.architecture": "llama",
        "llama.embedding_length": mx.array(config.hidden_size),
        "llama.feed_forward_length": mx.array(config.intermediate_size),
        "llama.block_count": mx.array(config.num_hidden_layers),
        "llama.attention.head_count": mx.array(config.num_attention_heads),
        "llama.attention.head_count_kv": mx.array(config.num_key_value_heads),
        "llama.attention.key_length": mx.array(config.head_dim),
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


META_NAMES = [
    ("model.embed_tokens", "tok_embeddings"),
    ("model.norm", "norm"),
    ("lm_head", "output"),
    ("model.layers.", "layers."),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
]


def write_meta(folder, count=1, embedding_axis=0):
    """Write a model as Meta does, in some files, with a tokenizer of 258 tokens; return it."""
    model = make_tiny_model(vocab_size=258 + 256, tie_word_embeddings=False)
    weights = {name: np.array(rows) for name, rows in stored_as(model, META_NAMES).items()}
    for number in range(count):
        own = {
            name: _sliced(name, rows, count, embedding_axis)[number]
            for name, rows in weights.items()
        }
        write_torch(folder / f"consolidated.{number:02d}.pth", own)
    params = {"dim": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "vocab_size": -1}
    params |= {"norm_eps": model.config.rms_norm_eps, "rope_theta": model.config.rope_theta}
    (folder / "params.json").write_text(json.dumps(params))
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (folder / "tokenizer.model").write_bytes(b"".join(lines))
    return model


def _sliced(name, weight, count, embedding_axis):
    axes = {"wo.": 1, "w2.": 1, "tok_embeddings.": embedding_axis}
    axis = next((axis for part, axis in axes.items() if part in name), 0)
    return [weight] * count if name.endswith("norm.weight") else np.split(weight, count, axis)


def write_torch(file, content):
    """Write what `torch.save` would of a dictionary of float32 arrays, or of anything else.

    A tensor is described as PyTorch does it. What is no array is pickled, or is a pickle already.
    """
    storages = []

    def describe(value):
        if isinstance(value, np.ndarray):
            storages.append(np.ascontiguousarray(value).tobytes())
            strides = tuple(math.prod(value.shape[axis + 1 :]) for axis in range(value.ndim))
            return pickled_tensor(str(len(storages) - 1), value.size, value.shape, strides)
        return value if isinstance(value, bytes) else _pickled(value)

    described = b"".join(_pickled(name) + describe(value) for name, value in content.items())
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("consolidated/data.pkl", b"\x80\x02}(" + described + b"u.")
        for number, numbers in enumerate(storages):
            archive.writestr(f"consolidated/data/{number}", numbers)
    return file


def pickled_tensor(key, count, shape, strides):
    """Return the instructions of a pickle for a tensor of `count` numbers in the storage `key`."""
    storage = b"(" + _pickled("storage") + b"ctorch\nFloatStorage\n"
    storage += b"".join(map(_pickled, (key, "cpu", count))) + b"tQ"
    body = b"(" + storage + b"K\0" + _pickled(shape) + _pickled(strides) + b"t"
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + body + b"R"


def _pickled(value):
    return pickle.dumps(value, 2)[2:-1]
