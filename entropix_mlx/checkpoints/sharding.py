"""Which part of each tensor a rank reads, and whether all ranks have the same model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import mlx.core as mx

from ..errors import UnsupportedModelError, WeightsError
from ..models.config import LlamaConfig
from ..models.sharded.model import check_fits
from ..models.sharded.vocabulary import token_range
from .checkpoint import Checkpoint, Cut, Tensor

BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Layers of which a rank has some outputs."""
BY_COLUMNS = ("o_proj", "down_proj")
"""Layers of which a rank has some inputs; their outputs are summed."""
BY_TOKENS = ("embed_tokens", "lm_head")
"""Layers with a row for each token."""
SAMPLED = 4096
"""Bytes at either end of a tensor's numbers that must be equal on all disks."""


def shared_out(checkpoint: Checkpoint, shape: LlamaConfig, rank: int, size: int) -> Checkpoint:
    """Return what one rank reads of a checkpoint, as a checkpoint of a smaller model.

    Args:
        checkpoint: of the port's models.
        shape: its shape.
        rank: from 0.
        size: ranks in all.

    Raises:
        UnsupportedModelError: the model cannot be split over so many ranks.
    """
    check_fits(shape, size, checkpoint.path)
    tensors = {
        name: _share(name, tensor, rank, size) for name, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def _share(name: str, tensor: Tensor, rank: int, size: int) -> Tensor:
    """Return what a rank reads of one tensor; of some, all."""
    layer, _, kind = name.rpartition(".")
    layer = layer.rpartition(".")[2]
    if layer in BY_TOKENS:
        own = token_range(tensor.shape[0], rank, size)
        return tensor.part(Cut(0, own.start, own.stop))
    if layer in BY_ROWS:
        return tensor.part(_even(name, tensor, 0, rank, size))
    if layer in BY_COLUMNS and kind != "bias":
        return tensor.part(_even(name, tensor, len(tensor.shape) - 1, rank, size))
    if layer in BY_COLUMNS and rank > 0:  # the sum takes it once
        return tensor._replace(read=partial(mx.zeros, tensor.shape, tensor.dtype))
    return tensor


def _even(name: str, tensor: Tensor, axis: int, rank: int, size: int) -> Cut:
    """Return a rank's part of an axis that divides, packed weights and their scales alike."""
    each, left = divmod(tensor.shape[axis], size)
    if left:
        raise UnsupportedModelError(
            f"{tensor.file}: the tensor {name}, {tensor.shape} as it is packed, cannot be split"
            f" over {size} ranks: take another number of ranks, or a model that is packed in"
            " smaller groups or not at all"
        )
    return Cut(axis, each * rank, each * (rank + 1))


def digest(checkpoint: Checkpoint) -> str:
    """Return what is equal where two disks hold the same model, whatever their folders are called.

    It is a hash of the configuration, of the files of the tokenizer, of all headers, and of the
    first and the last bytes of every tensor.

    Raises:
        WeightsError: a file cannot be read.
    """
    found = hashlib.sha256(json.dumps(dict(checkpoint.config), sort_keys=True).encode())
    try:
        for part in _telling_bytes(checkpoint):
            found.update(part)
    except OSError as error:
        raise WeightsError(f"{checkpoint.path}: cannot be read: {error}") from error
    return found.hexdigest()


def _telling_bytes(checkpoint: Checkpoint) -> Iterator[bytes]:
    tensors = checkpoint.tensors
    for companion in sorted(checkpoint.companions, key=lambda file: file.name):
        yield companion.name.encode()
        yield companion.read_bytes()
    places = [(name, place) for name in sorted(tensors) for place in tensors[name].places()]
    first: dict[Path, int] = {}
    for _, place in places:
        first[place.file] = min(place.offset, first.get(place.file, place.offset))
    for path in sorted(first, key=lambda file: file.name):
        with path.open("rb") as file:
            yield file.read(first[path])
    for name, (path, offset, nbytes) in places:
        yield f"{name} {tensors[name].shape} {tensors[name].dtype}".encode()
        with path.open("rb") as file:
            file.seek(offset)
            yield file.read(min(SAMPLED, nbytes))
            file.seek(offset + max(0, nbytes - SAMPLED))
            yield file.read(min(SAMPLED, nbytes))
