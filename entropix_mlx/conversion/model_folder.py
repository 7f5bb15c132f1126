"""Writing a model folder: either all of it or nothing.

Tensors are written as they come, so that memory holds only one. A safetensors file begins with a
table of its tensors, so their shapes and types must be known before the first is written.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from .. import limits
from ..checkpoints.model_files import COMPANIONS, INDEX
from ..errors import OutputError, WeightsError
from ..files import flush_to_disk, reason
from ..models.config import read_object
from ..palette import to_json

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

CONFIG = "config.json"
_NAMED_ALIKE = frozenset({CONFIG, INDEX, *COMPANIONS})
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
"""With the names above: every file that a conversion writes has one of these names."""

Shapes = Mapping[str, mx.array]
"""Arrays with the names, shapes and types of those to be written, in their order. They are never
computed."""


@contextmanager
def new_folder(out: Path, source: Path, nbytes: int, force: bool) -> Iterator[Path]:
    """Yield an empty temporary folder; rename it to `out` on success, delete it on failure.

    Raises:
        OutputError: `out` exists and may not be replaced, cannot be written, or the disk is full.
    """
    check_free(out, force)
    target = out.resolve()  # where `out` is a link to a folder, the link stays
    if target.exists() and source.resolve().is_relative_to(target):
        raise OutputError(f"{out} holds the model to convert: choose another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(target.parent).free) < nbytes:
            raise OutputError(
                f"{out}: the disk is too full: this takes {nbytes / 1e9:.3g} GB, and"
                f" {free / 1e9:.3g} GB are free; make room or choose another disk"
            )
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            yield unfinished
            unfinished.chmod(0o755)  # mkdtemp keeps others out
            _put_in_place(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {reason(error)}") from error


def check_free(out: Path, force: bool) -> None:
    """Check that a folder is not there, or may be replaced.

    A folder may be replaced if nothing would be lost but the result of an earlier conversion: it is
    empty, or it holds a model's ``config.json`` and only files with names that a conversion writes.

    Raises:
        OutputError: it is there, and `force` is false or it may not be replaced.
    """
    try:
        if out.is_symlink() and not out.exists():
            raise OutputError(f"{out} is a link that leads nowhere: remove it first")
        if not out.exists():
            return
        if not force:
            raise OutputError(f"{out} exists: choose another folder, or replace it with --force")
        if not out.is_dir():
            raise OutputError(f"{out} is no folder, so it is not replaced: choose another one")
        entries = sorted(out.iterdir())
        foreign = next((entry.name for entry in entries if not _is_replaceable(entry)), None)
    except OSError as error:
        raise OutputError(f"{out}: cannot be read: {reason(error)}") from error
    if foreign is not None:
        raise OutputError(
            f"{out} holds {foreign}, which no conversion writes, so it is not replaced: move that"
            " away, or choose another folder"
        )
    if entries and not _describes_model(out / CONFIG):
        raise OutputError(f"{out} is no model folder, so it is not replaced: choose another one")


def _is_replaceable(entry: Path) -> bool:
    is_named_alike = entry.name in _NAMED_ALIKE or bool(_WEIGHTS.fullmatch(entry.name))
    return is_named_alike and (entry.is_symlink() or entry.is_file())


def _describes_model(config: Path) -> bool:
    try:
        return "model_type" in read_object(config, limits.CONFIG_BYTES)
    except (OSError, WeightsError):
        return False


def _put_in_place(unfinished: Path, out: Path) -> None:
    """Rename the finished folder to `out`, and delete the folder that it replaces.

    An entry that somebody put into the old folder during the conversion moves to the new one.
    """
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
        else:
            _empty(old, out)


def _empty(old: Path, out: Path) -> None:
    if not old.exists():
        return
    for entry in old.iterdir():
        if _is_replaceable(entry):
            entry.unlink()
        else:
            entry.rename(out / entry.name)
    old.rmdir()


def write_weights(folder: Path, shapes: Shapes, arrays: Iterator[mx.array]) -> None:
    """Write arrays as safetensors files, and their index if there are several.

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
            flush_to_disk(file)
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = {"total_size": sum(array.nbytes for array in shapes.values())}
        index = {"metadata": total, "weight_map": dict(sorted(places.items()))}
        write_json(folder / INDEX, index)


def write_json(file: Path, content: Mapping[str, object]) -> None:
    """Write an object in the layout of the files on the Hugging Face hub."""
    with file.open("w", encoding="utf-8") as stream:
        stream.write(to_json(content, indent=2) + "\n")
        flush_to_disk(stream)


def _split(shapes: Shapes) -> list[dict[str, mx.array]]:
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
