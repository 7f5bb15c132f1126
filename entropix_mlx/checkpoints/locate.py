"""From a name to a checkpoint: a folder, a GGUF file, a hub id or no name, in any format."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from ..downloads.demo_model import demo_model
from ..downloads.offers import DEMO_NAME, DOWNLOAD_DEMO, OFFERS
from ..downloads.resuming import OnProgress, downloaded
from ..errors import DownloadError, ModelNotFoundError, WeightsError, first_line
from ..files import writing
from .architecture import read_supported
from .checkpoint import Checkpoint
from .gguf.checkpoint import open_gguf_model
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


logger = logging.getLogger(__name__)

_CONFIG = ("config.json",)
_SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
_WEIGHTS = ("model*.safetensors",)
_DIGEST = re.compile("[0-9a-f]{64}")


def is_hub_id(text: str) -> bool:
    """Return whether a text is a hub id ``owner/name``, by the hub's own rules."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1


def is_cached(repository: str) -> bool:
    """Return whether the hub's cache has a model whose weights are one file; they come last."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repository, "model.safetensors"), str)


def cached(repository: str) -> Path:
    """Return the folder of a model in the hub's cache; the hub is not asked.

    Raises:
        ModelNotFoundError: it is not there.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except Exception as error:  # the hub client raises its own, its HTTP library's, and OSError
        raise ModelNotFoundError(
            f"{repository} is not in the hub's cache: allow to download it (--allow-download), or"
            " give a local folder or .gguf file"
        ) from error


def download(repository: str, on_progress: OnProgress | None = None) -> Path:
    """Download what is not yet in the hub's cache of a model, and return its folder there.

    The configuration comes first, so that a model which cannot run costs no download. Weights come
    last: whichever moment a download breaks off at, a folder that has all its weights has the
    tokenizer and the index of the weights too, and a folder that lacks some is refused.

    Args:
        on_progress: is told how much there is of each file of weights; these then go on where an
            earlier call was stopped, which the hub's own client does not do.

    Raises:
        ModelNotFoundError: it cannot be downloaded.
        DownloadError: weights cannot be downloaded, or are not what the hub says.
        UnsupportedModelError: neither this package nor mlx-lm computes it.
        WeightsError: its configuration is damaged.
    """
    logger.info("asking the hub for %s …", repository)
    read_supported(_fetch(repository, _CONFIG))
    _fetch(repository, _SMALL_FILES)
    if on_progress is not None:
        _fetch_blobs(repository, on_progress)
    return _fetch(repository, _WEIGHTS)


def _fetch(repository: str, patterns: Sequence[str]) -> Path:
    """Have all files of some names in the hub's cache; return the folder that they are in."""
    # snapshot_download asks once and falls back to the cache; hf_hub_download, for a single file,
    # would ask again and again for half a minute where there is no network.
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # the hub client raises its own, its HTTP library's, and OSError
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


def _fetch_blobs(repository: str, on_progress: OnProgress) -> None:
    """Have the weights among the blobs of the hub's cache, where its client looks for them.

    The hub states the SHA-256 of a large file, which is also the name of its blob.
    """
    from huggingface_hub import HfApi, constants, hf_hub_url
    from huggingface_hub.file_download import repo_folder_name

    try:
        info = HfApi().model_info(repository, files_metadata=True)
    except Exception:  # no network: the cache may have all, which `_fetch` finds out
        return
    if info.private or info.gated:  # which needs a token, and the hub's client has it
        return
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    blobs = Path(constants.HF_HUB_CACHE) / folder / "blobs"
    for file in info.siblings or ():
        if not any(fnmatch(file.rfilename, name) for name in _WEIGHTS):
            continue
        if file.lfs is None or not _DIGEST.fullmatch(file.lfs.sha256):
            continue
        blob = blobs / file.lfs.sha256
        if not blob.exists():
            url = hf_hub_url(repository, file.rfilename, revision=info.sha)
            partial = blob.with_name(f"{blob.name}.incomplete")
            about = (file.lfs.size, file.lfs.sha256, on_progress)
            with downloaded(url, partial, *about), writing(blob, DownloadError):
                partial.replace(blob)
