"""Reading a Llama as Meta publishes it: ``params.json``, ``consolidated.*.pth``, a tokenizer.

Large models come as several ``.pth`` files. Each file holds a slice of every matrix, and all of
every vector.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from ... import limits
from ...errors import WeightsError, brief
from ...models.config import read_object
from ..checkpoint import Checkpoint, Cut, Tensor, TensorLocation, cut_out, in_halves
from ..model_files import check_files, inside
from .tokenizer import read_meta_tokenizer
from .torch_file import open_torch_file

PARAMS = "params.json"

_TOP_LEVEL = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_LLAMA3_VOCABULARY = 128256
_LLAMA2_CONTEXT, _LLAMA3_CONTEXT, _SCALED_CONTEXT = 4096, 8192, 131072
_SMALL_WIDTH = 3072
"""The width of the model with 3B parameters. Up to it, the rotary scaling's factor is 32, which
``params.json`` does not say; above, it is 8."""


def open_meta_llama(folder: Path) -> Checkpoint:
    """Return the model in Meta's folder, without reading its weights.

    Raises:
        WeightsError: a file is missing or damaged, leads out of the folder, or the files disagree.
    """
    folder = folder.resolve()
    check_files(folder)
    params = _read_params(inside(folder, PARAMS))
    names = sorted(path.name for path in folder.glob("consolidated.*.pth"))
    if not names:
        raise WeightsError(f"{folder}: consolidated.00.pth is missing; download it too")
    slices = [open_torch_file(inside(folder, name)) for name in names]
    tensors = {
        _translate(folder, name): _joined(name, [part[name] for part in slices], params["dim"])
        for name in _common_names(names, slices)
        if name != "rope.freqs"
    }
    config = _config(folder, params, tensors)
    tensors = in_halves(tensors, config)
    return Checkpoint(folder, config, tensors, partial(read_meta_tokenizer, folder, config))


def _read_params(file: Path) -> dict[str, Any]:
    params = read_object(file, limits.CONFIG_BYTES)
    for name in ("dim", "n_layers", "n_heads", *(["n_kv_heads"] if "n_kv_heads" in params else [])):
        if type(params.get(name)) is not int or params[name] < 1:
            raise WeightsError(
                f"{file}: {name} must be a positive whole number, not {brief(params.get(name))}"
            )
    return params


def _common_names(files: list[str], slices: list[dict[str, Tensor]]) -> list[str]:
    for file, tensors in zip(files, slices, strict=True):
        if tensors.keys() != slices[0].keys():
            name = sorted(tensors.keys() ^ slices[0].keys())[0]
            raise WeightsError(f"{file}: disagrees with {files[0]} about the tensor {name}")
    return list(slices[0])


def _translate(folder: Path, name: str) -> str:
    match = re.fullmatch(r"(?:layers\.(\d+)\.)?([\w.]+)\.weight", name)
    if match:
        layer, part = match.groups()
        known = _TOP_LEVEL if layer is None else _IN_LAYER
        if part in known:
            prefix = "" if layer is None else f"model.layers.{layer}."
            return f"{prefix}{known[part]}.weight"
    raise WeightsError(f"{folder}: the tensor {name} does not belong to a Llama of Meta's")


def _joined(name: str, slices: list[Tensor], width: int) -> Tensor:
    """Return the whole of a tensor of which each file holds a slice."""
    first = slices[0]
    if len(slices) == 1 or name.endswith("norm.weight"):
        return first
    if any((part.shape, part.dtype) != (first.shape, first.dtype) for part in slices):
        raise WeightsError(f"{first.file}: {name} is of another shape or type in another file")
    # Projections to the model's width are split by their inputs, all others by their outputs.
    by_inputs = name.endswith(("wo.weight", "w2.weight"))
    if name == "tok_embeddings.weight":  # Llama 2's are split by width, Llama 3's by tokens
        by_inputs = first.shape[-1] != width
    axis = 1 if by_inputs else 0
    shape = list(first.shape)
    shape[axis] *= len(slices)

    def read(cut: Cut | None = None) -> mx.array:
        return cut_out(mx.concatenate([part.read() for part in slices], axis=axis), cut)

    def locations() -> tuple[TensorLocation, ...]:
        return tuple(location for part in slices for location in part.locations())

    return Tensor(tuple(shape), first.dtype, first.file, read, locations)


def _config(folder: Path, params: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    def rows(name: str) -> int:
        if name not in tensors:
            raise WeightsError(f"{folder}: the tensor {name} (in Meta's terms) is missing")
        return tensors[name].shape[0]

    vocabulary = rows("model.embed_tokens.weight")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": params["dim"],
        "intermediate_size": rows("model.layers.0.mlp.gate_proj.weight"),
        "num_hidden_layers": params["n_layers"],
        "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params.get("n_kv_heads", params["n_heads"]),
        "rms_norm_eps": params.get("norm_eps", 1e-5),
        "rope_theta": params.get("rope_theta", 10000.0),
        "max_position_embeddings": _context(params, vocabulary),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    if params.get("use_scaled_rope"):
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": 32.0 if params["dim"] <= _SMALL_WIDTH else 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": _LLAMA3_CONTEXT,
        }
    return config


def _context(params: dict[str, Any], vocabulary: int) -> int:
    """Return the context length in tokens: ``params.json`` does not say it, the generation does."""
    if params.get("use_scaled_rope"):
        return _SCALED_CONTEXT
    return _LLAMA3_CONTEXT if vocabulary == _LLAMA3_VOCABULARY else _LLAMA2_CONTEXT
