"""From a name to a checkpoint: a folder, a GGUF file, a hub id or no name, in any format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..downloads.demo_model import demo_model
from ..downloads.offers import DEMO_NAME, DOWNLOAD_DEMO, OFFERS
from ..downloads.resuming import OnProgress
from ..errors import ModelNotFoundError, WeightsError
from .checkpoint import Checkpoint
from .gguf.checkpoint import open_gguf_model
from .hub import cached, download, is_cached, is_hub_id
from .huggingface import open_huggingface
from .meta import PARAMS, open_meta_llama


def default_model() -> str:
    """Return what to load without a name: the first of the offered models that is here.

    Raises:
        ModelNotFoundError: none of them is.
    """
    for offer in OFFERS:
        if offer.name == DEMO_NAME:
            if demo := demo_model():
                return str(demo)
        elif is_cached(offer.name):
            return offer.name
    raise ModelNotFoundError(
        f"no model was named, and none is here to begin with: {DOWNLOAD_DEMO} downloads the demo"
        " model (93 MB); or name a folder, a .gguf file or a hub id with --model"
    )


def locate(
    model: str | Path, on_progress: OnProgress | None = None, *, offline: bool = False
) -> Path:
    """Return the local folder or GGUF file of a model, downloading it if it is a hub id.

    A path that exists goes before a hub id of the same name. Whether a folder holds a model is
    found out when it is opened.

    Args:
        on_progress: as for `hub.download`.
        offline: whether of a hub id only the cache is looked at.

    Raises:
        ModelNotFoundError, DownloadError: it is neither, or cannot be read or downloaded.
        UnsupportedModelError: the hub model is not of the Llama family.
    """
    if model == "":  # as a path it would be the current folder, which nobody named
        raise ModelNotFoundError("the model has no name: give a folder, a .gguf file or a hub id")
    try:
        path = Path(model).expanduser()
        if path.is_dir() or (path.exists() and format_of(path)):
            return path
        if path.exists():
            raise ModelNotFoundError(f"{model} is neither a folder nor a .gguf file")
    except OSError as error:
        raise ModelNotFoundError(f"{model} cannot be read: {error.strerror}") from error
    except RuntimeError as error:
        raise ModelNotFoundError(f"no model {str(model)!r}: no such home folder") from error
    if is_hub_id(str(model)):
        return cached(str(model)) if offline else download(str(model), on_progress)
    raise ModelNotFoundError(
        f"no model {str(model)!r}: give a folder, a .gguf file, or a hub id such as"
        f" {OFFERS[1].name}; without a name, the demo model is taken ({DOWNLOAD_DEMO})"
    )


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
    """Return whether a folder has an entry of that name; its reader finds out what the entry is."""
    try:
        (folder / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
