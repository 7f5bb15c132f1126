"""Writing a model folder: either all of it or nothing.

Tensors are written as they come, so that memory holds only one. A safetensors file begins with a
table of its tensors, so their shapes and types must be known before the first is written.
"""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from ..checkpoints.huggingface import INDEX
from ..errors import OutputError

LARGEST_FILE = 5 * 2**30
"""The most bytes of a safetensors file, as in mlx-lm; a larger tensor has a file of its own."""

_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.uint8: "U8",
}
"""What safetensors calls MLX's types."""

Shapes = Mapping[str, mx.array]
"""Arrays with the names, shapes and types of those to be written, in their order. They are never
computed."""


@contextmanager
def new_folder(out: Path, source: Path, nbytes: int, force: bool) -> Iterator[Path]:
    """Yield an empty temporary folder; rename it to `out` on success, delete it on failure.

    Args:
        out: the folder to write.
        source: what is read meanwhile; it is never replaced.
        nbytes: how many bytes will be written.
        force: whether to replace `out` if it is a model folder.

    Raises:
        OutputError: `out` exists and may not be replaced, cannot be written, or the disk is full.
    """
    check_free(out, force)
    if out.exists() and source.resolve().is_relative_to(out.resolve()):
        raise OutputError(f"{out} holds the model to convert: choose another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(out.parent).free) < nbytes:
            raise OutputError(
                f"{out}: the disk is too full: this takes {nbytes / 1e9:.2f} GB, and"
                f" {free / 1e9:.2f} GB are free; make room or choose another disk"
            )
        unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            yield unfinished
            unfinished.chmod(0o755)  # mkdtemp keeps others out
            _put_in_place(unfinished, out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full; make room or choose another disk" if full else error
        raise OutputError(f"{out}: cannot be written: {reason}") from error


def check_free(out: Path, force: bool) -> None:
    """Check that a folder is not there, or may be replaced.

    Raises:
        OutputError: it is there, and `force` is false or it is no model folder.
    """
    if not out.exists():
        return
    if not force:
        raise OutputError(f"{out} exists: choose another folder, or replace it with --force")
    if not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file()):
        raise OutputError(f"{out} is no model folder, so it is not replaced: choose another one")


def _put_in_place(unfinished: Path, out: Path) -> None:
    """Rename the finished folder to `out`, and delete the folder that it replaces."""
    if not out.exists():
        unfinished.rename(out)
        return
    old = unfinished.with_name(f"{unfinished.name}-replaced")
    try:
        out.rename(old)
        unfinished.rename(out)
    finally:
        if not out.exists():  # an error, or Ctrl-C, came between the two
            old.rename(out)
        shutil.rmtree(old, ignore_errors=True)


def write_weights(folder: Path, shapes: Shapes, arrays: Iterator[mx.array]) -> None:
    """Write safetensors files, and their index if there are several.

    Args:
        folder: an existing folder.
        shapes: names, shapes and types of the arrays.
        arrays: the arrays themselves, in the same order.

    Raises:
        OSError: they cannot be written.
    """
    shards = _split(shapes)
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        several = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        name = several if len(shards) > 1 else "model.safetensors"
        with (folder / name).open("wb") as file:
            file.write(_table(shard))
            for _ in shard:
                file.write(memoryview(next(arrays).view(mx.uint8)))  # type: ignore[arg-type]
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = {"total_size": sum(array.nbytes for array in shapes.values())}
        index = {"metadata": total, "weight_map": dict(sorted(places.items()))}
        write_json(folder / INDEX, index)


def write_json(file: Path, content: Mapping[str, object]) -> None:
    """Write an object in the layout of the files on the Hugging Face hub."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _split(shapes: Shapes) -> list[dict[str, mx.array]]:
    """Return the arrays of each file, as many as `LARGEST_FILE` has room for."""
    shards: list[dict[str, mx.array]] = []
    room = 0
    for name, array in shapes.items():
        if not shards or array.nbytes > room:
            shards.append({})
            room = LARGEST_FILE
        shards[-1][name] = array
        room -= array.nbytes
    return shards


def _table(shard: Shapes) -> bytes:
    """Return the beginning of a safetensors file: the length of its table in 8 bytes, the table."""
    table: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, array in shard.items():
        begin, end = end, end + array.nbytes
        table[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": array.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the numbers after it aligned
    return len(text).to_bytes(8, "little") + text
