"""Listing the models on this machine: the demo model, the hub's cache, LM Studio's folders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import EntropixError, ModelNotFoundError, first_line
from ..models.device import machine_memory, on_cpu
from .demo import demo_model
from .folder import read_config
from .gguf import config_of, read_header
from .hub import LM_STUDIO, model_at
from .translation import language_part, limited, translated


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine, which may be unable to run here."""

    name: str  # what `load` takes: a hub id or a path
    path: Path
    nbytes: int  # on the disk
    precision: str | None  # type of its weights, or bits where they are packed; None if unknown
    context: int | None  # in tokens; None if unknown
    fault: str | None  # why it cannot run here; None if it can


def inventory(folders: Iterable[Path] = ()) -> Iterator[LocalModel]:
    """Yield the demo model, those of the hub's cache and of LM Studio, and those in some folders.

    Args:
        folders: each a model folder, or one that holds model folders and .gguf files.

    Raises:
        ModelNotFoundError: one of the folders is neither, or it or the cache cannot be read.
    """
    if demo := demo_model():
        yield _describe(str(demo), demo)
    for name, path in cached():
        yield _describe(name, path)
    for root in (Path(folder).expanduser() for folder in LM_STUDIO):
        for path in sorted(root.glob("*/*")) if root.is_dir() else ():
            if found := _model(path):
                yield _describe(str(path.relative_to(root)), found)
    for folder in folders:
        for path in models_in(folder):
            yield _describe(str(path), path)


def models_in(folder: Path) -> list[Path]:
    """Return a model's folder or file, or the models in a folder. Raises `ModelNotFoundError` if it
    is neither, or cannot be read."""
    try:
        if folder.suffix == ".gguf" or (folder / "config.json").exists():
            return [model_at(folder)]
        return sorted(found for path in folder.iterdir() if (found := _model(path)))
    except NotADirectoryError as error:
        raise ModelNotFoundError(f"{folder} is neither a folder nor a .gguf file") from error
    except OSError as error:
        raise ModelNotFoundError(f"{folder} cannot be read: {error.strerror}") from error


def _model(path: Path) -> Path | None:
    try:
        return model_at(path)
    except (ModelNotFoundError, OSError):  # a folder that this user may not enter, too
        return None


def cached() -> Iterator[tuple[str, Path]]:
    """Yield the models of the hub's cache: their ids and folders. Raises `ModelNotFoundError` if
    the cache cannot be read."""
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


def _describe(name: str, path: Path) -> LocalModel:
    nbytes = 0
    try:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        nbytes = sum(file.stat().st_size for file in files)
        precision, bits, context = _gguf(path) if path.is_file() else _folder(path)
    except (EntropixError, OSError) as error:
        return LocalModel(name, path, nbytes, None, None, str(error))
    # On a CPU, weights become float32; there they are unpacked only if they fit.
    needed = nbytes * 32 // bits if on_cpu() and bits > 8 else nbytes
    memory, fault = machine_memory(), None
    if needed > memory:
        fault = f"needs {needed / 1e9:.1f} GB of memory; there are {memory / 1e9:.1f} GB"
    return LocalModel(name, path, nbytes, precision, context, fault)


def _folder(path: Path) -> tuple[str | None, int, int | None]:
    if not any(path.glob("model*.safetensors")):
        raise ModelNotFoundError(f"{path}: no model*.safetensors file")
    config = language_part(limited(translated(read_config(path), str(path / "config.json"))))
    context = config.get("max_position_embeddings")
    packing = config.get("quantization") or config.get("quantization_config")
    if isinstance(packing, dict) and type(packing.get("bits")) is int:
        return f"{packing['bits']} bits", packing["bits"], context
    dtype = config.get("dtype") or config.get("torch_dtype")
    return dtype, 32 if dtype == "float32" else 16, context


def _gguf(path: Path) -> tuple[str | None, int, int | None]:
    header = read_header(path)
    numbers = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    bits = round(8 * sum(tensor.nbytes for tensor in header.tensors.values()) / numbers)
    return f"{bits} bits", bits, config_of(path, header)["max_position_embeddings"]
