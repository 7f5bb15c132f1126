"""Writing a model folder: all of it or nothing, a tensor at a time.

Tensors are written as they come, so that memory never holds more than one of them; their shapes
and types are known beforehand, since a safetensors file begins with its table.
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

from ..checkpoints.model_files import INDEX
from ..errors import OutputError

LARGEST_FILE = 5 * 2**30
"""Bytes of a safetensors file, unless a single tensor has more; as mlx-lm splits them."""

_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.uint8: "U8",
}

Plan = Mapping[str, mx.array]
"""Arrays of the shapes and types to be written, in that order; never computed."""


@contextmanager
def new_folder(out: Path, source: Path, nbytes: int, force: bool) -> Iterator[Path]:
    """Lend an empty folder that becomes `out` in the end, or vanishes if anything goes wrong.

    Args:
        out: the folder to write.
        source: what is read meanwhile; it must not be replaced.
        nbytes: the room that it takes.
        force: whether to replace a model folder that is there.

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
    """Check that a folder may be written.

    Raises:
        OutputError: it exists, and is not to be replaced, or is no model folder.
    """
    if not out.exists():
        return
    if not force:
        raise OutputError(f"{out} exists: choose another folder, or replace it with --force")
    if not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file()):
        raise OutputError(f"{out} is no model folder, so it is not replaced: choose another one")


def _put_in_place(unfinished: Path, out: Path) -> None:
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


def write_weights(folder: Path, plan: Plan, arrays: Iterator[mx.array]) -> None:
    """Write safetensors files, and their index if there are several.

    Args:
        folder: an existing folder.
        plan: names, shapes and types.
        arrays: the arrays themselves, in the order of the plan.

    Raises:
        OSError: they cannot be written.
    """
    shards = _split(plan)
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
        total = {"total_size": sum(array.nbytes for array in plan.values())}
        index = {"metadata": total, "weight_map": dict(sorted(places.items()))}
        write_json(folder / INDEX, index)


def write_json(file: Path, content: Mapping[str, object]) -> None:
    """Write an object as the Hugging Face hub's files are laid out."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _split(plan: Plan) -> list[dict[str, mx.array]]:
    shards: list[dict[str, mx.array]] = []
    room = 0
    for name, array in plan.items():
        if not shards or array.nbytes > room:
            shards.append({})
            room = LARGEST_FILE
        shards[-1][name] = array
        room -= array.nbytes
    return shards


def _table(shard: Plan) -> bytes:
    """Return what a safetensors file begins with: the length of its table, and the table."""
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
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    return len(text).to_bytes(8, "little") + text
