"""GGUF files as models of mlx-lm: the header, the configuration, the weights' names, the building.

MLX's reader follows the lengths and offsets of a header without asking whether the file is that
long. So the header is walked here first, and every count, length and offset is compared with the
size of the file: a damaged one costs neither time nor memory.

A new architecture is an entry of `MODEL_TYPES`, and of `_RENAMED` where its names differ from
Llama's.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .. import limits
from ..errors import UnsupportedModelError, WeightsError, brief, first_line
from .folder import check_sizes

_VERSIONS = (2, 3)
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _LIST, _FLOAT32 = 8, 9, 6
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 30: (1, 2),  # F32, F16, BF16
    2: (32, 18), 3: (32, 20), 8: (32, 34),  # Q4_0, Q4_1, Q8_0, which stay packed
    10: (256, 84), 14: (256, 210),  # Q2_K, Q6_K, which become float16
}  # fmt: skip
"""Weights and bytes of a block, by the number of its type: the types that MLX reads rightly."""


class StoredTensor(NamedTuple):
    """An entry of a file's table of tensors."""

    shape: tuple[int, ...]
    type: int  # the number of its type of blocks in the format
    offset: int  # from the beginning of the file, in bytes
    nbytes: int


class GGUFHeader(NamedTuple):
    """What a file says about itself before its numbers begin."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_header(path: Path) -> GGUFHeader:
    """Return the metadata and the table of tensors of a GGUF file. Raises `WeightsError` if it is
    damaged, `UnsupportedModelError` if a type takes the gguf package, or a newer one."""
    try:
        status = path.stat()
        limits.check_regular(status, path)
        with path.open("rb") as file:
            cursor = _Cursor(file.read(limits.GGUF_HEADER_BYTES))
        return _parse(path, cursor, status.st_size)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    except _DamagedError as error:
        raise WeightsError(
            f"{path}: cannot be read as GGUF: {error}. Download it again."
        ) from error


def read_tensors(path: Path, header: GGUFHeader) -> dict[str, mx.array]:
    """Return the tensors; a packed ``x.weight`` comes with ``x.scales`` and ``x.biases``. Raises
    `WeightsError` if they cannot be read."""
    try:
        if all(tensor.type in _BLOCKS for tensor in header.tensors.values()):
            return dict(mx.load(str(path)))  # type: ignore[arg-type]
        return {name: _dequantized(path, tensor) for name, tensor in header.tensors.items()}
    except (OSError, RuntimeError, ValueError, NotImplementedError) as error:
        raise WeightsError(f"{path}: cannot be read: {first_line(error)}") from error


def _dequantized(path: Path, tensor: StoredTensor) -> mx.array:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = (*tensor.shape[:-1], -1)
    stored = np.memmap(path, np.uint8, "r", tensor.offset, tensor.nbytes).reshape(rows)
    with np.errstate(all="ignore"):
        numbers = dequantize(stored, GGMLQuantizationType(tensor.type))
    is_norm = tensor.type == 0  # norms are stored in float32, and stay so
    return mx.array(numbers if is_norm else numbers.astype(np.float16))


class _DamagedError(Exception):
    """What is wrong with the file, as a clause."""


class _Cursor:
    """Reads one value after the other from the header, and never past its end."""

    def __init__(self, header: bytes) -> None:
        self.header = header
        self.place = 0

    def take(self, form: str) -> Any:
        """Return the next value of a `struct` format, little-endian."""
        return struct.unpack("<" + form, self._take_bytes(struct.calcsize("<" + form)))[0]

    def text(self) -> str:
        try:
            return self._take_bytes(self.take("Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _DamagedError("a name or a text is not UTF-8") from error

    def value(self) -> Any:
        """Return the next value of the metadata, after the number of its type."""
        kind = self.take("I")
        return self._list() if kind == _LIST else self._scalar(kind)

    def count(self, count: int, at_least: int) -> int:
        """Return a claimed count of things of some bytes each, if there is room for them."""
        if count * at_least > len(self.header) - self.place:
            raise _DamagedError("it promises more than it holds: truncated, or a wrong count")
        return count

    def _scalar(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind not in _SCALARS:
            raise _DamagedError(f"the metadata has a value of type {kind}")
        value = self.take(_SCALARS[kind])
        # Seven digits are what a float32 holds: 1e-05 and not 9.99999974737875e-06.
        return float(f"{value:.7g}") if kind == _FLOAT32 else value

    def _list(self) -> list[Any]:
        kind, count = self.take("I"), self.take("Q")
        if kind in _SCALARS:
            form = f"<{_SCALARS[kind]}"
            stored = self._take_bytes(count * struct.calcsize(form))
            return [value for (value,) in struct.iter_unpack(form, stored)]
        return [self._scalar(kind) for _ in range(self.count(count, at_least=8))]

    def _take_bytes(self, count: int) -> bytes:
        begin = self.place
        self.place += self.count(count, at_least=1)
        return self.header[begin : self.place]


def _parse(path: Path, cursor: _Cursor, size: int) -> GGUFHeader:
    if cursor.take("4s") != b"GGUF":
        raise _DamagedError("it does not begin with GGUF")
    if (version := cursor.take("I")) not in _VERSIONS:
        raise _DamagedError(f"version {version} is not known")
    tensor_count, value_count = cursor.take("Q"), cursor.take("Q")
    metadata = {}
    for _ in range(cursor.count(value_count, at_least=13)):
        key = cursor.text()
        metadata[key] = cursor.value()
    tensors: dict[str, StoredTensor] = {}
    for _ in range(cursor.count(tensor_count, at_least=32)):
        name = cursor.text()
        if name in tensors:
            raise _DamagedError(f"it has two tensors {name}")
        tensors[name] = _tensor(path, name, cursor)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 2**16 or alignment & (alignment - 1):
        raise _DamagedError(f"its alignment is {alignment!r}")
    start = math.ceil(cursor.place / alignment) * alignment
    for name, tensor in tensors.items():
        tensors[name] = tensor._replace(offset=start + tensor.offset)
        if tensor.offset % alignment or start + tensor.offset + tensor.nbytes > size:
            raise _DamagedError(f"the tensor {name} reaches beyond the end of the file")
    return GGUFHeader(metadata, tensors)


def _tensor(path: Path, name: str, cursor: _Cursor) -> StoredTensor:
    dimensions = cursor.take("I")
    if not 1 <= dimensions <= 4:
        raise _DamagedError(f"the tensor {name} has {dimensions} dimensions")
    shape = tuple(cursor.take("Q") for _ in range(dimensions))[::-1]
    kind = cursor.take("I")
    weights, nbytes = _BLOCKS.get(kind) or _block_of_package(kind, name, path)
    if 0 in shape or shape[-1] % weights:
        raise _DamagedError(f"the tensor {name} has the shape {shape}, not of whole blocks")
    return StoredTensor(shape, kind, cursor.take("Q"), math.prod(shape) // weights * nbytes)


def _block_of_package(kind: int, tensor: str, path: Path) -> tuple[int, int]:
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        weights, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except ImportError as error:
        raise UnsupportedModelError(
            f"{path}: the tensor {tensor} is packed in a way (type {kind}) that takes the gguf"
            " package: pip install gguf"
        ) from error
    except (KeyError, ValueError) as error:
        raise UnsupportedModelError(
            f"{path}: the tensor {tensor} has type {kind}, which is not known; the file is damaged,"
            " or newer than the gguf package"
        ) from error
    return int(weights), int(nbytes)


MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
"""The architectures that are read, by GGUF's names; each with its ``model_type``."""

_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias|scales|biases)")
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_RENAMED = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
}
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What GGUF does not store of Llama 3's scaling: the same in all models so far."""
_LAYERS_OF_GEMMA3_27B = 62  # by which llama.cpp knows it: it scales queries by another width


def config_of(path: Path, header: GGUFHeader) -> dict[str, Any]:
    """Return the ``config.json`` of the model in a GGUF file. Raises `UnsupportedModelError` for
    other architectures and rotary scalings, `WeightsError` if a key or a tensor is missing."""
    metadata, tensors = header
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        raise UnsupportedModelError(
            f"{path}: architecture {brief(architecture)} is not supported in GGUF: only"
            f" {', '.join(MODEL_TYPES)} are; for others, use the Hugging Face folder"
        )
    if "token_embd.weight" not in tensors:
        raise WeightsError(f"{path}: the tensor token_embd.weight is missing")

    def positive(kind: type[Any], name: str, default: float | None = None) -> Any:
        value: Any = metadata.get(f"{architecture}.{name}", default)
        if type(value) is not kind or not 0 < value < math.inf:
            raise WeightsError(
                f"{path}: the key {architecture}.{name} must be a positive"
                f" {'whole ' if kind is int else ''}number, not {brief(value)}"
            )
        return value

    heads, width = positive(int, "attention.head_count"), positive(int, "embedding_length")
    config = {
        "model_type": MODEL_TYPES[architecture],
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": positive(int, "feed_forward_length"),
        "num_hidden_layers": positive(int, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": positive(int, "attention.head_count_kv", heads),
        "head_dim": positive(int, "attention.key_length", width // heads),
        "rms_norm_eps": positive(float, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": positive(int, "context_length"),
        # What the metadata does not say, the presence of tensors does.
        "attention_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    gemma = architecture == "gemma3"
    config["rope_theta"] = positive(float, "rope.freq_base", 1e6 if gemma else 1e4)
    if gemma:
        largest = config["num_hidden_layers"] == _LAYERS_OF_GEMMA3_27B
        config["query_pre_attn_scalar"] = width / heads if largest else config["head_dim"]
        config["rope_local_base_freq"] = positive(float, "rope.freq_base_swa", 1e4)
        config["sliding_window"] = positive(int, "attention.sliding_window")
        config["sliding_window_pattern"] = positive(int, "attention.sliding_window_pattern", 6)
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "linear":
        factor = positive(float, "rope.scaling.factor")
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind != "none":
        raise UnsupportedModelError(
            f"{path}: its rotary scaling ({brief(kind)}) is not supported: use the model's Hugging"
            " Face folder"
        )
    check_sizes(config, str(path))
    return config


def load_gguf(
    path: Path,
    header: GGUFHeader,
    config: dict[str, Any],
    classes: Callable[[dict[str, Any]], tuple[Any, Any]],
) -> nn.Module:
    """Return the model in a GGUF file; weights that MLX has a packing for stay packed.

    The ``rope_scaling`` and ``quantization`` that the tensors state are added to the configuration,
    which is that of `config_of`. Raises a `ValueError` or `RuntimeError` if the weights do not fit.
    """
    from mlx_lm.utils import infer_quant_config

    tensors = read_tensors(path, header)
    if (factors := tensors.pop(_ROPE_FACTORS, None)) is not None:
        config["rope_scaling"] = _llama3_scaling(path, factors, config)
    architecture = header.metadata["general.architecture"]
    names = _NAMES | _RENAMED.get(architecture, {})
    weights = {_renamed(path, name, names): tensor for name, tensor in tensors.items()}
    if architecture == "llama":
        weights = {name: _in_halves(name, part, config) for name, part in weights.items()}
    if architecture == "gemma3":  # mlx-lm's norms of Gemma add 1 to the weight themselves
        weights = {name: w - 1 if "norm." in name else w for name, w in weights.items()}
    model_class, arguments = classes(config)
    model: nn.Module = model_class(arguments.from_dict(config))
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    packed = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    if packed:
        modules = dict(model.named_modules())
        packing = {name: infer_quant_config(name, modules[name], weights) for name in packed}
        config["quantization"] = {"group_size": 32, "bits": 4} | packing
        nn.quantize(model, class_predicate=lambda name, _: packing.get(name, False))
    model.eval()
    model.load_weights(list(weights.items()))
    return model


def _renamed(path: Path, name: str, names: dict[str, str]) -> str:
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in names:
        raise UnsupportedModelError(f"{path}: the tensor {name} does not belong to such a model")
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{names[match[2]]}.{match[3]}"


def _in_halves(name: str, rows: mx.array, config: dict[str, Any]) -> mx.array:
    """Return the rows of Llama's queries and keys in Hugging Face's order.

    The rotary embedding turns pairs of a head's numbers. llama.cpp pairs neighbours, 0 with 1;
    mlx-lm pairs the halves: of 8 numbers, 0 with 4. So the rows 0, 4, 1, 5, … become 0, 1, …, 4, ….
    """
    if ".q_proj." not in name and ".k_proj." not in name:
        return rows
    pairs = rows.reshape(-1, config["head_dim"] // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _llama3_scaling(path: Path, factors: mx.array, config: dict[str, Any]) -> dict[str, Any]:
    """Return Llama 3's ``rope_scaling``, of which a file stores the divisor of each frequency."""
    factor: Any = factors.max().item()
    scaling = _LLAMA3_ROPE | {"factor": factor}
    size = config["head_dim"]
    turns = 8192 / (2 * math.pi) * config["rope_theta"] ** (-mx.arange(0, size, 2) / size)
    kept = mx.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    computed = 1 / ((1 - kept) / factor + kept)
    if factors.shape != computed.shape or not mx.allclose(computed, factors, rtol=1e-3).item():
        raise UnsupportedModelError(
            f"{path}: its rotary factors are not Llama 3's: use the model's Hugging Face folder"
        )
    return scaling
