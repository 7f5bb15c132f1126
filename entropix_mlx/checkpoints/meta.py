"""Reading a Llama as Meta publishes it: ``params.json``, ``consolidated.*.pth``, a tokenizer.

Large models come as several ``.pth`` files. Each file holds a slice of every matrix, and all of
every vector.
The tokenizer is SentencePiece's for Llama 2 and tiktoken's for Llama 3. Neither says how a
conversation is written: there is no chat template.
"""

from __future__ import annotations

import base64
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers.pre_tokenizers import ByteLevel

from .. import limits
from ..errors import TokenizerError, WeightsError, brief
from ..models.config import read_object
from .checkpoint import Checkpoint, Cut, Tensor, TensorLocation, in_halves, translate
from .huggingface import read_tokenizer
from .model_files import check_files, filtered, inside
from .tokenizer import BPE, LLAMA3, build_tokenizer, tokenizer_errors
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
    found = translate(name, r"(?:layers\.(\d+)\.)?([\w.]+)\.(weight)", _TOP_LEVEL, _IN_LAYER)
    if found is None:
        raise WeightsError(f"{folder}: the tensor {name} does not belong to a Llama of Meta's")
    return found


def _joined(name: str, slices: list[Tensor], width: int) -> Tensor:
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
        whole = mx.concatenate([part.read() for part in slices], axis=axis)
        return whole if cut is None else mx.contiguous(whole[cut.of(whole.shape)])

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


_FILE = "tokenizer.model"
_SPECIAL_TOKENS = 256
_NAMED = (
    *("<|begin_of_text|>", "<|end_of_text|>"),
    *(f"<|reserved_special_token_{number}|>" for number in range(4)),
    *("<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"),
)
"""The first special tokens of Llama 3. The file does not list them: their ids follow those of its
own tokens, and 246 reserved ones come after them."""


def read_meta_tokenizer(folder: Path, config: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer of a folder; a ``tokenizer.json`` beside Meta's file is preferred.

    Raises:
        TokenizerError: there is none, or it cannot be read.
    """
    if inside(folder, "tokenizer.json").exists():
        return read_tokenizer(folder, config)
    file = inside(folder, _FILE)
    try:
        content = limits.read_bytes(file, limits.TOKENIZER_BYTES)
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error}; download it too") from error
    # A line of tiktoken's is a token in Base64, a space and its rank; SentencePiece's is binary.
    return _sentencepiece(file) if b"\0" in content else _tiktoken(file, content)


def _sentencepiece(file: Path) -> TokenizerWrapper:
    from transformers import LlamaTokenizer

    unreadable = tokenizer_errors(f"{file}: cannot be read as SentencePiece")
    with unreadable, filtered(file.parent) as view:
        tokenizer = LlamaTokenizer.from_pretrained(view, add_bos_token=True)
    with tempfile.TemporaryDirectory() as folder:  # mlx-lm reads from files how to stream text
        tokenizer.save_pretrained(folder)
        return read_tokenizer(Path(folder), {"eos_token_id": tokenizer.eos_token_id})


def _tiktoken(file: Path, content: bytes) -> TokenizerWrapper:
    try:
        pairs = (line.split() for line in content.splitlines())
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError as error:
        raise TokenizerError(f"{file}: cannot be read as tiktoken's: {error}") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise TokenizerError(f"{file}: its ranks have gaps; download it again")
    reserved = range(len(_NAMED) - 5, _SPECIAL_TOKENS - 5)
    special = [*_NAMED, *(f"<|reserved_special_token_{number}|>" for number in reserved)]
    ordinary = [_as_text(token) for token in sorted(ranks, key=ranks.__getitem__)]
    first = len(ordinary)  # the id of the first special token
    described = BPE(
        tokens=ordinary + special,
        merges=_merges(ranks),
        splitting=LLAMA3,
        control=range(first, first + len(special)),
        bos=first + _NAMED.index("<|begin_of_text|>"),
        eos=first + _NAMED.index("<|end_of_text|>"),
        further_ends=(first + _NAMED.index("<|eot_id|>"),),
        begins_with_bos=True,
    )
    return build_tokenizer(described, file)


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make up a token, those of the lowest ranks first.

    tiktoken's file lists no merges: it joins any two neighbours that make up a token, the one of
    the lowest rank first. The same merges written out give the same tokens.
    """
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [half for half in halves if half[0] in ranks and half[1] in ranks]
        known.sort(key=lambda half: (ranks[half[0]], ranks[half[1]]))
        merges += [(_as_text(left), _as_text(right)) for left, right in known]
    return merges


def _as_text(token: bytes) -> str:
    return "".join(_CHARACTERS[byte] for byte in token)


def _characters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary.

    Printable ones stand for themselves; the others, in order, for those from U+0100 on.
    """
    alphabet = set(ByteLevel.alphabet())
    others = iter(sorted(character for character in alphabet if ord(character) > 0xFF))
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]


_CHARACTERS = _characters()
