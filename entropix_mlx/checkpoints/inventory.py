"""Listing the models on this machine, and whether each can run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from ..downloads.demo_model import demo_model
from ..errors import EntropixError, ModelNotFoundError, first_line
from ..models.base import LanguageModel
from ..models.device import computes_in_float32
from ..models.llama.weight_layout import precision
from ..models.memory import machine_memory
from .architecture import is_tapped
from .checkpoint import Checkpoint, Tensor
from .locate import format_of, open_checkpoint
from .mlx_lm_model import make_tapped
from .skeleton import make_skeleton


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine."""

    name: str
    """The name to give to `loading.load`: a hub id or a path."""
    path: Path
    nbytes: int
    """Its size on the disk."""
    precision: str | None
    """The type of most of its weights, or how they are packed; None if it is unknown."""
    context: int | None
    """The context length in tokens; None if it is unknown."""
    fault: str | None
    """Why it cannot run here; None if it can."""


def inventory(folders: Iterable[Path] = ()) -> Iterator[LocalModel]:
    """Yield the demo model, those of the hub's cache, and those in some folders.

    Args:
        folders: each a model folder, or one that holds model folders and .gguf files.

    Raises:
        ModelNotFoundError: one of the folders is neither, or it or the cache cannot be read.
    """
    if demo := demo_model():
        yield _describe(str(demo), demo)
    for name, path in _cached():
        yield _describe(name, path)
    for folder in folders:
        for path in models_in(folder):
            yield _describe(str(path), path)


def _cached() -> Iterator[tuple[str, Path]]:
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    except ValueError as error:
        raise ModelNotFoundError(
            f"the hub's cache cannot be listed: {first_line(error)}"
        ) from error
    for repository in sorted(repositories, key=lambda found: found.repo_id):
        if repository.repo_type == "model" and repository.revisions:
            newest = max(repository.revisions, key=lambda revision: revision.last_modified)
            yield repository.repo_id, newest.snapshot_path


def models_in(folder: Path) -> list[Path]:
    """Return a model's folder or file, or the models in a folder.

    Raises:
        ModelNotFoundError: it is neither, or cannot be read.
    """
    if _is_model(folder):
        return [folder]
    try:
        if not folder.is_dir():
            raise ModelNotFoundError(f"{folder} is neither a folder nor a .gguf file")
        return sorted(path for path in folder.iterdir() if _is_model(path))
    except OSError as error:
        raise ModelNotFoundError(f"{folder} cannot be read: {error.strerror}") from error


def _is_model(path: Path) -> bool:
    try:
        return format_of(path) is not None
    except OSError:  # a folder that this user may not enter is no reason to list nothing
        return False


def _describe(name: str, path: Path) -> LocalModel:
    nbytes = 0
    try:
        nbytes = _size(path)
        checkpoint = open_checkpoint(path)
        model, tensors = skeleton_of(checkpoint)
    except (EntropixError, OSError) as error:
        return LocalModel(name, path, nbytes, None, None, str(error))
    needed, memory = memory_needed(model), machine_memory()
    fault = None
    if needed > memory:
        fault = f"needs {needed / 1e9:.1f} GB of memory; there are {memory / 1e9:.1f} GB"
    stored: Counter[tuple[mx.Dtype, str]] = Counter()
    for tensor in tensors.values():
        key = tensor.dtype, tensor.packed_as
        stored[key] += sum(location.nbytes for location in tensor.locations())
    dtype, packed_as = stored.most_common(1)[0][0]
    return LocalModel(
        name,
        path,
        nbytes,
        packed_as or str(precision(model, dtype)),
        model.config.max_position_embeddings,
        fault,
    )


def skeleton_of(checkpoint: Checkpoint) -> tuple[LanguageModel, Mapping[str, Tensor]]:
    if is_tapped(checkpoint.config):
        return make_tapped(checkpoint), checkpoint.tensors
    return make_skeleton(checkpoint)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def memory_needed(model: LanguageModel) -> int:
    """Return the bytes that the weights take at least."""
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    widened = computes_in_float32()
    return sum(
        array.size * 4 if widened and mx.issubdtype(array.dtype, mx.floating) else array.nbytes
        for array in arrays.values()
    )
