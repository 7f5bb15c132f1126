"""Reading a GGUF file: its header here, its tensors by MLX or by the gguf package.

MLX's reader follows the lengths and offsets of a header without asking whether the file is that
long. So the header is walked here first, and every count, length and offset is compared with the
size of the file: a damaged one costs neither time nor memory.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from .. import limits
from ..errors import UnsupportedModelError, WeightsError, first_line

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
"""Weights and bytes of a block, by the number of its type: the types that MLX reads. It also reads
Q4_K, and gives other numbers than llama.cpp."""


class StoredTensor(NamedTuple):
    """An entry of a file's table of tensors."""

    shape: tuple[int, ...]
    type: int
    """The number of its type of blocks in the format."""
    offset: int
    """From the beginning of the file, in bytes."""
    nbytes: int


class GGUFHeader(NamedTuple):
    """What a file says about itself before its numbers begin."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_header(path: Path) -> GGUFHeader:
    """Return the metadata and the table of tensors of a GGUF file.

    Raises:
        WeightsError: the file is damaged.
        UnsupportedModelError: a tensor has a type that takes the gguf package, or a newer one.
    """
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
