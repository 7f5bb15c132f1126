"""A model on a disk: its configuration, and where its tensors are; none of them is read yet.

Each format has a module that returns a `Checkpoint`. From there on, loading and conversion no
longer know which format it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
"""The types that a weight may have unless it is packed."""


class Cut(NamedTuple):
    """A part of a tensor: some of its rows (axis 0) or columns (the last axis)."""

    axis: int
    start: int
    stop: int

    def of(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the indices of the part in an array of a shape."""
        own = slice(self.start, self.stop)
        return tuple(own if axis == self.axis else slice(None) for axis in range(len(shape)))


class Place(NamedTuple):
    """Where the numbers of a tensor lie."""

    file: Path
    offset: int
    nbytes: int


class Tensor(NamedTuple):
    """A tensor that can be read from its file."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    file: Path
    """For messages."""
    read: Callable[[], mx.array]
    """Read it from the file, anew at each call; the array may be evaluated lazily."""
    read_part: Callable[[Cut], mx.array] | None = None
    """Read a part without the rest; None where the format cannot."""
    places: Callable[[], tuple[Place, ...]] = tuple
    """Say where its numbers lie in the files."""

    def part(self, cut: Cut) -> Tensor:
        """Return a part as a tensor of its own."""
        shape = list(self.shape)
        shape[cut.axis] = cut.stop - cut.start
        return self._replace(shape=tuple(shape), read=partial(self._cut, cut), read_part=None)

    def _cut(self, cut: Cut) -> mx.array:
        if self.read_part is not None:
            return self.read_part(cut)
        return mx.contiguous(self.read()[cut.of(self.shape)])


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
