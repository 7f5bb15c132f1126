"""Reading the container format of GGUF: its metadata and its table of tensors.

Every count, length and offset is checked against the size of the file before it is believed, so
that a damaged file costs neither time nor memory.

A tensor consists of blocks, which hold the weights of 32 or more neighbours in a row and the scale
that they share. In the simple kinds (Q4_0, Q4_1, Q8_0) a weight is scale · number + bias, as in
MLX's affine packing with groups of 32; only the order of the bits differs. They stay packed and
lose nothing. All other kinds become float16, by the dequantizers of the gguf package, which is
optional: ``pip install gguf``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ... import limits
from ...errors import UnsupportedModelError, WeightsError
from ..checkpoint import Cut, Tensor, TensorLocation, from_numpy

_VERSIONS = (2, 3)
_ROWS_AT_ONCE = 1024
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _LIST, _FLOAT32 = 8, 9, 6
_IN_NUMPY = {
    mx.float32: np.float32,
    mx.float16: np.float16,
    mx.bfloat16: np.uint16,  # its bits: NumPy has no such type
    mx.uint32: np.uint32,
}


class GGUFFile(NamedTuple):
    """What a GGUF file says about itself."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    """By the file's names; a packed ``x.weight`` comes with ``x.scales`` and ``x.biases``."""


class _StoredTensor(NamedTuple):
    shape: tuple[int, ...]
    kind: BlockType
    offset: int
    nbytes: int


def open_gguf(path: Path) -> GGUFFile:
    """Return the metadata and the tensors of a GGUF file, without reading the tensors.

    Raises:
        WeightsError: the file is damaged.
        UnsupportedModelError: a tensor is of a kind that cannot be read.
    """
    try:
        size = path.stat().st_size
        limits.check_regular(path.stat(), path)
        with path.open("rb") as file:
            header = file.read(limits.GGUF_HEADER_BYTES)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    try:
        return _parse(path, _Cursor(header), size)
    except _DamagedError as error:
        raise WeightsError(
            f"{path}: cannot be read as GGUF: {error}. Download it again."
        ) from error


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

    def count(self, count: int, at_least: int) -> int:
        """Return a claimed count of things of some bytes each, if there is room for them."""
        if count * at_least > len(self.header) - self.place:
            raise _DamagedError("it promises more than it holds: truncated, or a wrong count")
        return count

    def _take_bytes(self, count: int) -> bytes:
        begin = self.place
        self.place += self.count(count, at_least=1)
        return self.header[begin : self.place]


def _parse(path: Path, cursor: _Cursor, size: int) -> GGUFFile:
    if cursor.take("4s") != b"GGUF":
        raise _DamagedError("it does not begin with GGUF")
    if (version := cursor.take("I")) not in _VERSIONS:
        raise _DamagedError(f"version {version} is not known")
    tensor_count, value_count = cursor.take("Q"), cursor.take("Q")
    metadata = {}
    for _ in range(cursor.count(value_count, at_least=13)):
        key = cursor.text()
        metadata[key] = cursor.value()
    table: dict[str, _StoredTensor] = {}
    for _ in range(cursor.count(tensor_count, at_least=32)):
        name = cursor.text()
        if name in table:
            raise _DamagedError(f"it has two tensors {name}")
        table[name] = _stored_tensor(path, name, cursor)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 2**16 or alignment & (alignment - 1):
        raise _DamagedError(f"its alignment is {alignment!r}")
    start = math.ceil(cursor.place / alignment) * alignment
    _check_places(table, alignment, size - start)
    return GGUFFile(metadata, _tensors(path, table, start))


def _tensors(path: Path, table: dict[str, _StoredTensor], start: int) -> dict[str, Tensor]:
    tensors = {}
    for name, stored in table.items():
        stem, _, ending = name.rpartition(".")
        for part_name, part in stored.kind.parts.items():
            own = name if part_name == "weight" else f"{stem}.{part_name}"
            if own in tensors or (ending != "weight" and len(stored.kind.parts) > 1):
                raise _DamagedError(f"the tensor {name} must not be packed")
            tensors[own] = _tensor(path, start, stored, part)
    return tensors


def _stored_tensor(path: Path, name: str, cursor: _Cursor) -> _StoredTensor:
    dimensions = cursor.take("I")
    if not 1 <= dimensions <= 4:
        raise _DamagedError(f"the tensor {name} has {dimensions} dimensions")
    shape = tuple(cursor.take("Q") for _ in range(dimensions))[::-1]
    kind = block_type(cursor.take("I"), name, path)
    if shape[-1] % kind.numbers:
        raise _DamagedError(f"the tensor {name} has rows of {shape[-1]}, not of whole blocks")
    nbytes = math.prod(shape) // kind.numbers * kind.nbytes
    return _StoredTensor(shape, kind, cursor.take("Q"), nbytes)


def _check_places(table: dict[str, _StoredTensor], alignment: int, room: int) -> None:
    end = 0
    for name, stored in sorted(table.items(), key=lambda item: item[1].offset):
        if stored.offset < end or stored.offset % alignment:
            raise _DamagedError(f"the tensor {name} has a wrong offset or size")
        end = stored.offset + stored.nbytes
        if end > room or 0 in stored.shape:
            raise _DamagedError(
                f"the tensor {name} reaches beyond the end of the file (truncated, or a wrong"
                " offset or size)"
            )


def _tensor(path: Path, start: int, stored: _StoredTensor, part: BlockPart) -> Tensor:
    width = stored.shape[-1] // stored.kind.numbers * part.width
    shape = (*stored.shape[:-1], width)
    location = TensorLocation(path, start + stored.offset, stored.nbytes)
    read = partial(_read, location, stored, part, shape)
    packed_as = stored.kind.name if stored.kind.numbers > 1 else ""
    return Tensor(shape, part.dtype, path, read, lambda: (location,), packed_as)


def _read(
    location: TensorLocation,
    stored: _StoredTensor,
    part: BlockPart,
    shape: tuple[int, ...],
    cut: Cut | None = None,
) -> mx.array:
    """Return one array of a tensor, or a part of it, unpacked some rows at a time."""
    rows = math.prod(stored.shape[:-1])
    in_blocks = (rows, stored.shape[-1] // stored.kind.numbers, stored.kind.nbytes)
    try:
        blocks = np.memmap(location.file, np.uint8, "r", location.offset, in_blocks)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{location.file}: cannot be read any more: {error}") from error
    if cut is not None:
        blocks, shape = _part_of(blocks, cut, part, shape)
        rows = math.prod(shape[:-1])
    numbers = np.empty((rows, shape[-1]), _IN_NUMPY[part.dtype])
    for row in range(0, rows, _ROWS_AT_ONCE):
        some = slice(row, row + _ROWS_AT_ONCE)
        with np.errstate(all="ignore"):  # NaN and infinity are looked for where they matter
            numbers[some] = part.unpack(np.asarray(blocks[some]))
    return from_numpy(numbers.reshape(shape), part.dtype)


def _part_of(
    blocks: Any, cut: Cut, part: BlockPart, shape: tuple[int, ...]
) -> tuple[Any, tuple[int, ...]]:
    """Return the blocks `(rows, blocks, bytes)` of a part of a tensor, and the part's shape."""
    if len(shape) == 2 and cut.axis == 1:
        if cut.start % part.width or cut.stop % part.width:
            raise ValueError(f"{cut} does not lie between blocks")
        blocks = blocks[:, cut.start // part.width : cut.stop // part.width]
        return blocks, (shape[0], cut.stop - cut.start)
    if len(shape) == 2:
        return blocks[cut.start : cut.stop], (cut.stop - cut.start, shape[1])
    return blocks[:, cut.start : cut.stop], (cut.stop - cut.start,)  # a bias: blocks of 1


Array = NDArray[Any]


class BlockPart(NamedTuple):
    """One of the arrays that a tensor of blocks becomes: its numbers, its scales or its biases."""

    dtype: mx.Dtype
    width: int
    """Numbers for each block."""
    unpack: Callable[[Array], Array]
    """From blocks `(rows, blocks, bytes)` to numbers `(rows, blocks · width)`."""


class BlockType(NamedTuple):
    """A kind of block."""

    name: str
    numbers: int
    """Weights in each block."""
    nbytes: int
    parts: dict[str, BlockPart]
    """By the last part of the tensor's name: ``weight``; ``scales`` and ``biases``, too, where the
    numbers stay packed."""


def block_type(number: int, tensor: str, path: object) -> BlockType:
    """Return the kind of block that has a number in the format.

    Raises:
        UnsupportedModelError: there is no such kind, or reading it needs the gguf package.
    """
    if number in _SIMPLE:
        return _SIMPLE[number]
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise UnsupportedModelError(
            f"{path}: the tensor {tensor} is packed as {_K_QUANTS.get(number, f'type {number}')};"
            " reading it takes the gguf package: pip install gguf"
        ) from error
    try:
        kind = GGMLQuantizationType(number)
        if kind.name.startswith(("I8", "I16", "I32", "I64", "F64")):
            raise ValueError(kind.name)
        numbers, nbytes = GGML_QUANT_SIZES[kind]
    except (KeyError, ValueError) as error:
        raise UnsupportedModelError(
            f"{path}: the tensor {tensor} has type {number}, which is not known; the file is"
            " damaged, or newer than the gguf package"
        ) from error
    dense = BlockPart(mx.float16, numbers, partial(_dequantize, kind))
    return BlockType(kind.name, numbers, nbytes, {"weight": dense})


def _dequantize(kind: Any, blocks: Array) -> Array:
    from gguf.quants import dequantize

    try:
        numbers: Array = dequantize(blocks.reshape(len(blocks), -1), kind)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"tensors packed as {kind.name} are not supported; use a file of another kind"
        ) from error
    return numbers.astype(np.float16)


def _numbers(dtype: Any, blocks: Array) -> Array:
    return blocks.reshape(len(blocks), -1).view(dtype)


def _half(start: int, blocks: Array) -> Array:
    """Return the float16 number at a byte of each block."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0]


def _nibbles(start: int, blocks: Array) -> Array:
    """Return the 32 numbers of 4 bits in each block, in MLX's order.

    Of the 16 bytes that begin at `start`, GGUF's byte k holds number k in its low four bits and
    number 16 + k in its high ones. MLX's byte k holds number 2k low and number 2k + 1 high.
    """
    pairs = blocks[..., start : start + 16]
    numbers = np.concatenate([pairs & 0xF, pairs >> 4], axis=-1)
    packed = np.ascontiguousarray(numbers[..., ::2] | numbers[..., 1::2] << 4)
    return packed.view(np.uint32).reshape(len(blocks), -1)


def _bytes(blocks: Array) -> Array:
    """Return the 32 signed bytes of each block as MLX stores them: unsigned.

    128 is added to each, which in two's complement flips the highest bit; the bias takes it away.
    """
    shifted = np.ascontiguousarray(blocks[..., 2:] ^ 0x80)
    return shifted.view(np.uint32).reshape(len(blocks), -1)


def _dense(name: str, dtype: mx.Dtype, stored: Any) -> BlockType:
    nbytes = np.dtype(stored).itemsize
    return BlockType(name, 1, nbytes, {"weight": BlockPart(dtype, 1, partial(_numbers, stored))})


def _packed(
    name: str, words: BlockPart, biases: Callable[[Array], Array], nbytes: int
) -> BlockType:
    scales = BlockPart(mx.float16, 1, partial(_half, 0))
    parts = {"weight": words, "scales": scales, "biases": BlockPart(mx.float16, 1, biases)}
    return BlockType(name, 32, nbytes, parts)


_SIMPLE = {
    0: _dense("F32", mx.float32, np.float32),
    1: _dense("F16", mx.float16, np.float16),
    30: _dense("BF16", mx.bfloat16, np.uint16),
    2: _packed(
        "Q4_0",
        BlockPart(mx.uint32, 4, partial(_nibbles, 2)),
        lambda blocks: -8 * _half(0, blocks),
        18,
    ),
    3: _packed("Q4_1", BlockPart(mx.uint32, 4, partial(_nibbles, 4)), partial(_half, 2), 20),
    8: _packed("Q8_0", BlockPart(mx.uint32, 8, _bytes), lambda blocks: -128 * _half(0, blocks), 34),
}
_K_QUANTS = {10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}
"""Names of the commonest other kinds, for a message where the gguf package is not installed."""
