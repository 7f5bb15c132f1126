"""A model as it lies on a disk: its configuration and its tensors, none of them read yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
"""The types that a weight may have unless it is packed."""


class Tensor(NamedTuple):
    """A tensor in its file."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    file: Path
    """For messages."""
    read: Callable[[], mx.array]
    """Read it from the file, again at each call; what comes may be computed lazily."""


@dataclass(frozen=True)
class Checkpoint:
    """A model in Hugging Face's terms, whatever the format of its files."""

    path: Path
    """The folder or file, for messages."""
    config: Mapping[str, Any]
    """The keys of a ``config.json``."""
    tensors: Mapping[str, Tensor]
    """By the names of a Hugging Face checkpoint, in the order of the files."""
    load_tokenizer: Callable[[], TokenizerWrapper]
    """Build the tokenizer; raises `TokenizerError`."""
    companions: tuple[Path, ...] = ()
    """The files beside the weights that make up the tokenizer; without any, it must be saved."""
