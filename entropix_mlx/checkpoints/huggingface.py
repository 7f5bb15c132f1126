"""Reading a Hugging Face folder: ``config.json``, safetensors files, tokenizer files.

No code of the model is run and nothing outside the folder is read. The safetensors library checks
the header of every file before MLX, which trusts it, opens the file.
"""

from __future__ import annotations

import json
import struct
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper
from safetensors import SafetensorError, safe_open

from .. import limits
from ..errors import TokenizerError, WeightsError, brief
from ..models.config import read_object
from .architecture import read_supported
from .checkpoint import Checkpoint, Cut, Tensor, TensorLocation, from_numpy
from .model_files import COMPANIONS, INDEX, check_files, filtered, inside
from .tokenizer import ModelTokenizer, end_tokens, tokenizer_errors

_DTYPES = {
    "F32": mx.float32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,  # packed weights
    "U8": mx.uint8,  # their scales, in some packings
    "F8_E4M3": mx.uint8,  # what mlx-lm unpacks, or leaves so
    "I8": mx.int8,
    "I32": mx.int32,
    "I64": mx.int64,
}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Types of NumPy by their bytes: it has no bfloat16, and the bits are all that is read."""
_LENGTH = struct.Struct("<Q")


def open_huggingface(folder: Path) -> Checkpoint:
    """Return the model in a folder, without reading its weights.

    Raises:
        ModelNotFoundError: there is no ``config.json``.
        UnsupportedModelError: neither this package nor mlx-lm computes it.
        WeightsError: a file is missing or damaged, leads out of the folder, or two files disagree.
    """
    folder = folder.resolve()
    check_files(folder)
    config = read_supported(folder)
    return Checkpoint(
        folder,
        config,
        _open_weights(folder),
        partial(read_tokenizer, folder, config),
        tuple(folder / name for name in COMPANIONS if (folder / name).is_file()),
    )


def _open_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of all files; where there is an index, it must agree with them."""
    index = _read_index(folder)
    if index is None:
        names = sorted(p.name for p in folder.glob("model*.safetensors"))
        names = names or sorted(p.name for p in folder.glob("*.safetensors"))
    else:
        names = sorted(set(index.values()))
    if not names:
        raise WeightsError(
            f"{folder}: no .safetensors file; give a folder that has them, a .gguf file, or Meta's"
            " original folder"
        )
    tensors: dict[str, Tensor] = {}
    for name in names:
        for key, tensor in open_shard(inside(folder, name)).items():
            if key in tensors:
                raise WeightsError(
                    f"{tensor.file}: the tensor {key} is in {tensors[key].file.name} too; download"
                    " both again"
                )
            tensors[key] = tensor
    for key, name in (index or {}).items():
        if key not in tensors or tensors[key].file.name != name:
            raise WeightsError(
                f"{folder / INDEX}: places the tensor {key} in {name}, which does not hold it;"
                " download both again"
            )
    return tensors


def _read_index(folder: Path) -> dict[str, str] | None:
    """Return the file of each tensor by the index, or None if there is no index."""
    file = inside(folder, INDEX)
    if not file.exists():
        return None
    index = read_object(file, limits.INDEX_BYTES).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise WeightsError(f"{file}: its weight_map is not an object with tensors")
    for key, name in index.items():
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or "\0" in name:
            raise WeightsError(
                f"{file}: places the tensor {key} in {brief(name)}, which is no file name of this"
                " folder"
            )
        if not name.endswith(".safetensors") or not (folder / name).is_file():
            raise WeightsError(
                f"{file}: places the tensor {key} in {name}, and there is no such safetensors file;"
                " download it too"
            )
    return index


def open_shard(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, none of them read yet.

    Raises:
        WeightsError: it is damaged, or a tensor is of a type that no weight has.
    """
    tensors = {}
    reader = _Reader(file)
    try:
        with safe_open(str(file), framework="numpy") as shard:
            for name in shard.keys():  # noqa: SIM118 - it has no iterator
                part = shard.get_slice(name)
                kind, shape = part.get_dtype(), tuple(part.get_shape())
                if kind not in _DTYPES:
                    raise WeightsError(
                        f"{file}: the tensor {name} has type {kind}, which no weight has here"
                        f" ({', '.join(_DTYPES)})"
                    )
                dtype = _DTYPES[kind]
                read = partial(reader.read, name, shape, dtype)
                tensors[name] = Tensor(shape, dtype, file, read, partial(reader.locations, name))
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{file}: cannot be read: {error}. Download it again.") from error
    return tensors


class _Reader:
    """Reads the tensors of a file by their names, and parses its header only once for all."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._unread: dict[str, mx.array] = {}

    def read(
        self, name: str, shape: tuple[int, ...], dtype: mx.Dtype, cut: Cut | None = None
    ) -> mx.array:
        try:
            return self._lazily(name) if cut is None else self._part(name, shape, dtype, cut)
        except (OSError, RuntimeError, LookupError, ValueError) as error:
            message = f"{self._file}: cannot be read: {error}. Download it again."
            raise WeightsError(message) from error

    def _lazily(self, name: str) -> mx.array:
        """Return a tensor; MLX has only parsed the header, and reads the numbers when needed."""
        if name not in self._unread:
            self._unread = dict(mx.load(str(self._file)))  # type: ignore[arg-type]
        return self._unread.pop(name)  # a reference kept here would keep it in memory

    def _part(self, name: str, shape: tuple[int, ...], dtype: mx.Dtype, cut: Cut) -> mx.array:
        """Return a part of a tensor; MLX would read all of it."""
        ((file, offset, _),) = self.locations(name)
        numbers = np.memmap(file, _BITS[dtype.size], "r", offset, shape)
        return from_numpy(np.ascontiguousarray(numbers[cut.of(shape)]), dtype)

    def locations(self, name: str) -> tuple[TensorLocation, ...]:
        begin, end = self._header[name]["data_offsets"]
        return (TensorLocation(self._file, self._start + begin, end - begin),)

    @cached_property
    def _start(self) -> int:
        """Where the numbers begin: after the length of the header, and the header."""
        with self._file.open("rb") as file:
            return _LENGTH.size + int(_LENGTH.unpack(file.read(_LENGTH.size))[0])

    @cached_property
    def _header(self) -> dict[str, Any]:
        """The table of tensors, which the safetensors library has checked."""
        with self._file.open("rb") as file:
            return dict(json.loads(file.read(self._start)[_LENGTH.size :]))


def read_tokenizer(folder: Path, config: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer of a folder.

    Raises:
        TokenizerError: there is none, or it cannot be read.
    """
    from mlx_lm.tokenizer_utils import load as load_tokenizer

    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model")):
        raise TokenizerError(
            f"{folder}: tokenizer.json is missing; copy it from the original model"
        )
    ends = _end_tokens(folder, config)
    with tokenizer_errors(f"{folder}: the tokenizer cannot be read"), filtered(folder) as view:
        # Without trust_remote_code, transformers would ask on the terminal whether to run code.
        loaded = load_tokenizer(view, {"trust_remote_code": False}, eos_token_ids=ends)
    return ModelTokenizer.around(loaded, folder)


def _end_tokens(folder: Path, config: dict[str, Any]) -> list[int]:
    """Return the end-of-text ids of ``generation_config.json``, or else those of the model.

    The file is usually newer: of Llama 3, only it names the token that ends a turn.
    """
    file = folder / "generation_config.json"
    try:
        generation = read_object(file, limits.CONFIG_BYTES, TokenizerError)
    except FileNotFoundError:
        generation = {}
    stated = generation.get("eos_token_id")
    if stated is not None:
        return end_tokens(stated, file)
    text = config.get("text_config")
    language = config | text if isinstance(text, dict) else config
    return end_tokens(language.get("eos_token_id"), f"{folder}: config.json")
