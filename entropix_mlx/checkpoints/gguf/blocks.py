"""The kinds of blocks in which GGUF stores numbers, and how each is turned into MLX arrays.

A block holds the weights of 32 or more neighbours in a row and the scale that they share. In the
simple kinds (Q4_0, Q4_1, Q8_0) a weight is scale · number + bias, as in MLX's affine packing with
groups of 32; only the order of the bits differs. They stay packed and lose nothing. All other kinds
become float16, by the dequantizers of the gguf package, which is optional: ``pip install gguf``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedModelError

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
