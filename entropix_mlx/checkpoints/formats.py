"""The formats of a checkpoint: the one place where it is decided which of them a path holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..errors import ModelNotFoundError, WeightsError
from .checkpoint import Checkpoint
from .gguf.checkpoint import open_gguf_model
from .huggingface import open_huggingface
from .meta.checkpoint import PARAMS, open_meta_llama


class Format(NamedTuple):
    """A format: how a path is recognised as being of it, and how it is opened."""

    is_here: Callable[[Path], bool]
    """Looks at names only; raises `OSError` for a folder that this user may not enter."""
    open: Callable[[Path], Checkpoint]
    """Reads the headers but no weights; raises an `EntropixError` of what is wrong."""


FORMATS = (
    Format(lambda path: path.suffix == ".gguf" and not path.is_dir(), open_gguf_model),
    Format(lambda path: _has(path, "config.json"), open_huggingface),
    # After Hugging Face's, which some folders hold beside Meta's own files.
    Format(lambda path: _has(path, PARAMS), open_meta_llama),
)
"""All formats, in the order in which they are tried. A new one is a line here and its reader."""


def format_of(path: Path) -> Format | None:
    """Return the format of the model at a path, or None if there is no model.

    Raises:
        OSError: it is a folder that this user may not enter.
    """
    return next((known for known in FORMATS if known.is_here(path)), None)


def open_checkpoint(path: Path) -> Checkpoint:
    """Return the model at a path, its headers checked and none of its weights read.

    Raises:
        ModelNotFoundError: there is no model.
        EntropixError: whatever is wrong with it, as for `loading.load`.
    """
    try:
        found = format_of(path)
        if found is None:
            raise ModelNotFoundError(
                f"{path} holds no model: config.json is missing, and so is Meta's {PARAMS}"
            )
        return found.open(path)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error


def _has(folder: Path, name: str) -> bool:
    """Tell whether a folder has an entry of that name; its reader finds out what the entry is."""
    try:
        (folder / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
