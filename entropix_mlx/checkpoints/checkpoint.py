"""A model on a disk: its configuration, and where its tensors are; none of them is read yet.

Each format has a module that returns a `Checkpoint`. From there on, loading and conversion no
longer know which format it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper
from numpy.typing import NDArray

from ..errors import WeightsError

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
"""The types that a weight may have unless it is packed."""
SAMPLED = 4096
"""Bytes at either end of a tensor's numbers that `digest` reads."""


class Cut(NamedTuple):
    """A part of a tensor: some of its rows (axis 0) or columns (the last axis)."""

    axis: int
    start: int
    stop: int

    def of(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        own = slice(self.start, self.stop)
        return tuple(own if axis == self.axis else slice(None) for axis in range(len(shape)))


class TensorLocation(NamedTuple):
    """The bytes of a file that hold a tensor's numbers."""

    file: Path
    offset: int
    nbytes: int


class TensorReader(Protocol):
    """Reads a tensor from its file, anew at each call; the array may be evaluated lazily."""

    def __call__(self, cut: Cut | None = None) -> mx.array:
        """Read all of it, or a part; without the rest where the format allows that."""


class Tensor(NamedTuple):
    """A tensor that can be read from its file."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    file: Path
    """For messages."""
    read: TensorReader
    locations: Callable[[], tuple[TensorLocation, ...]] = tuple
    """Returns where its numbers lie."""
    packed_as: str = ""
    """The name of its blocks in the file, such as ``Q4_K``; empty where each number has its own
    bits."""

    def part(self, cut: Cut) -> Tensor:
        """Return a part, which cannot be cut again, as a tensor of its own."""
        shape = list(self.shape)
        shape[cut.axis] = cut.stop - cut.start
        return self._replace(shape=tuple(shape), read=partial(self.read, cut))


def from_numpy(numbers: NDArray[Any], dtype: mx.Dtype) -> mx.array:
    """Return numbers, or the bits of numbers of a type that NumPy does not have, in MLX's type."""
    array = mx.array(numbers)
    return array if array.dtype == dtype else array.view(dtype)


@dataclass(frozen=True)
class Checkpoint:
    """A model described as Hugging Face does it, whatever the format of its files."""

    path: Path
    """The folder or file, for messages."""
    config: Mapping[str, Any]
    """The keys of a ``config.json``."""
    tensors: Mapping[str, Tensor]
    """By the names of a Hugging Face checkpoint, in the order in which they lie in the files."""
    load_tokenizer: Callable[[], TokenizerWrapper]
    """Build the tokenizer; raises `TokenizerError`."""
    companions: tuple[Path, ...] = ()
    """The files beside the weights that make up the tokenizer, to be copied by a conversion. Empty
    where the tokenizer is built from something else, and must be saved anew."""


def translate(
    name: str, pattern: str, top_level: Mapping[str, str], in_layer: Mapping[str, str]
) -> str | None:
    """Return the name that a tensor has in a Hugging Face checkpoint, or None if it is unknown.

    The pattern matches a name of another format, with groups for the number of its layer, its part
    and its ending; the names of parts are looked up.
    """
    match = re.fullmatch(pattern, name)
    if match is None:
        return None
    layer, part, ending = match.groups()
    known = (top_level if layer is None else in_layer).get(part)
    prefix = "" if layer is None else f"model.layers.{layer}."
    return None if known is None else f"{prefix}{known}.{ending}"


def in_halves(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors, the rows of queries and keys in Hugging Face's order.

    The rotary embedding turns pairs of a head's numbers. Meta and llama.cpp pair neighbours: 0 with
    1, 2 with 3. Hugging Face, and this package, pair the halves: of 8 numbers, 0 with 4, 1 with 5.
    Both compute the same if the rows that make the numbers are ordered accordingly: Meta's rows are
    Hugging Face's in the order 0, 4, 1, 5, 2, 6, 3, 7.

    Raises:
        WeightsError: a projection has a number of rows that its heads cannot share.
    """
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    ordered = {}
    for name, tensor in tensors.items():
        layer = name.split(".")[-2]
        ordered[name] = _reordered(name, tensor, heads[layer]) if layer in heads else tensor
    return ordered


def _reordered(name: str, tensor: Tensor, heads: int) -> Tensor:
    if tensor.shape[0] % (2 * heads):
        raise WeightsError(f"{tensor.file}: {name} has {tensor.shape[0]} rows for {heads} heads")
    of_head = tensor.shape[0] // heads

    def read(cut: Cut | None = None) -> mx.array:
        if cut is not None and (cut.axis or cut.start % of_head or cut.stop % of_head):
            raise ValueError(f"{name} is split between heads only, not at rows {cut}")
        stored = tensor.read(cut)
        # (head, pair, which of the two) → (head, which of the two, pair)
        pairs = stored.reshape(-1, of_head // 2, 2, *stored.shape[1:])
        return pairs.swapaxes(1, 2).reshape(stored.shape)

    return tensor._replace(read=read)


def digest(checkpoint: Checkpoint) -> str:
    """Return a hash that is equal where two disks hold the same model, whatever its folder.

    It covers the configuration, the files of the tokenizer, all headers, and the first and the last
    bytes of every tensor.

    Raises:
        WeightsError: a file cannot be read.
    """
    found = hashlib.sha256(json.dumps(dict(checkpoint.config), sort_keys=True).encode())
    try:
        for part in _sampled_bytes(checkpoint):
            found.update(part)
    except OSError as error:
        raise WeightsError(f"{checkpoint.path}: cannot be read: {error}") from error
    return found.hexdigest()


def _sampled_bytes(checkpoint: Checkpoint) -> Iterator[bytes]:
    tensors = checkpoint.tensors
    for companion in sorted(checkpoint.companions, key=lambda file: file.name):
        yield companion.name.encode()
        yield companion.read_bytes()
    located = [(name, place) for name in sorted(tensors) for place in tensors[name].locations()]
    header_ends: dict[Path, int] = {}
    for _, (path, offset, _) in located:
        header_ends[path] = min(offset, header_ends.get(path, offset))
    for path in sorted(header_ends, key=lambda file: file.name):
        with path.open("rb") as file:
            yield file.read(header_ends[path])
    for name, (path, offset, nbytes) in located:
        yield f"{name} {tensors[name].shape} {tensors[name].dtype}".encode()
        with path.open("rb") as file:
            for start in (offset, offset + max(0, nbytes - SAMPLED)):
                file.seek(start)
                yield file.read(min(SAMPLED, nbytes))
