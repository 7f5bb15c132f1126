"""From a name to the files of a model: a folder, a GGUF file, a hub id, or no name."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ..errors import EntropixError, ModelNotFoundError, first_line
from .demo import demo_model
from .folder import read_config
from .translation import translated

logger = logging.getLogger(__name__)

DEMO_NAME = "demo"
DOWNLOAD_DEMO = f"entropix models --download {DEMO_NAME}"


@dataclass(frozen=True)
class ModelOffer:
    """A model that can be downloaded."""

    name: str  # a hub id, or `DEMO_NAME`
    nbytes: int  # of the download, approximately
    memory: int  # bytes that a machine should have for it, beside everything else that runs
    purpose: str


_COMMUNITY = "mlx-community"
OFFERS = tuple(
    ModelOffer(name, int(gigabytes * 1e9), int(memory * 1e9), purpose)
    for name, gigabytes, memory, purpose in (
        (DEMO_NAME, 0.093, 0, "to try everything; often wrong"),
        (f"{_COMMUNITY}/Qwen3.5-0.8B-MLX-4bit", 0.6, 4, "short texts; fast"),
        (f"{_COMMUNITY}/Llama-3.2-1B-Instruct-4bit", 0.7, 4, "simple questions; fast"),
        (f"{_COMMUNITY}/Qwen3.5-2B-MLX-4bit", 1.7, 7, "everyday questions"),
        (f"{_COMMUNITY}/Qwen3.5-4B-MLX-4bit", 3.0, 8, "questions that take reasoning"),
        (f"{_COMMUNITY}/gemma-4-e2b-it-4bit", 3.6, 8, "everyday questions, many languages"),
        (f"{_COMMUNITY}/gemma-4-e4b-it-4bit", 5.2, 15, "the best answers; slow on a CPU"),
    )
)
"""Models to begin with, for whoever has none: those that people run on Macs in 2026."""

LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")  # with OWNER/NAME below
_SMALL_FILES = ["*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
_WEIGHTS = ["model*.safetensors"]


def fitting_offers(memory: int) -> list[ModelOffer]:
    """Return what a machine with so many bytes of memory can run, the smallest first."""
    return [offer for offer in OFFERS if offer.memory <= memory]


def default_model() -> str:
    """Return what to load without a name: the first of the offered models that is here. Raises
    `ModelNotFoundError` if none of them is."""
    for offer in OFFERS:
        if offer.name == DEMO_NAME:
            if demo := demo_model():
                return str(demo)
        elif _is_cached(offer.name):
            return offer.name
    raise ModelNotFoundError(
        f"no model was named, and none is here to begin with: {DOWNLOAD_DEMO} downloads the demo"
        " model (93 MB); or name a folder, a .gguf file or a hub id with --model"
    )


def locate(model: str | Path, *, offline: bool = False) -> Path:
    """Return the local folder or GGUF file of a model, downloading it if it is a hub id.

    A path that exists goes before a hub id of the same name, the hub's cache before LM Studio's
    folder, and that before a download, unless `offline` forbids it.

    Raises:
        ModelNotFoundError: it is neither, or cannot be read or downloaded.
        UnsupportedModelError, WeightsError: mlx-lm does not compute it, as ``config.json`` says.
    """
    if model == "":  # as a path it would be the current folder, which nobody named
        raise ModelNotFoundError("the model has no name: give a folder, a .gguf file or a hub id")
    try:
        path = Path(model).expanduser()
        if path.exists():
            return model_at(path)
    except OSError as error:
        raise ModelNotFoundError(f"{model} cannot be read: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:  # no such home; a NUL in the name
        raise ModelNotFoundError(f"no model {str(model)!r}: {first_line(error)}") from error
    if not _is_hub_id(str(model)):
        raise ModelNotFoundError(
            f"no model {str(model)!r}: give a folder, a .gguf file, or a hub id such as"
            f" {OFFERS[1].name}; without a name, the demo model is taken ({DOWNLOAD_DEMO})"
        )
    if not _is_cached(str(model)):
        for folder in LM_STUDIO:
            if (path := Path(folder).expanduser() / model).is_dir():
                return model_at(path)
    return _fetched(str(model), offline)


def model_at(path: Path) -> Path:
    """Return a model's folder, or the only GGUF file of a folder without ``config.json``. Raises
    `ModelNotFoundError` if there is no model, an `OSError` if the folder may not be entered."""
    if path.suffix == ".gguf" and not path.is_dir():
        return path
    if not path.is_dir():
        raise ModelNotFoundError(f"{path} is neither a folder nor a .gguf file")
    if not (path / "config.json").is_symlink() and not (path / "config.json").exists():
        files = [file for file in path.glob("*.gguf") if not file.name.startswith("mmproj")]
        if len(files) == 1:
            return files[0]
        many = f" has {len(files)} .gguf files: name one" if files else " holds no model"
        raise ModelNotFoundError(f"{path}{many}{'' if files else ': config.json is missing'}")
    return path


def _is_hub_id(text: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1


def _is_cached(repository: str) -> bool:
    """Return whether the hub's cache has a model, whose weights come last."""
    from huggingface_hub import try_to_load_from_cache

    names = ("model.safetensors", "model.safetensors.index.json")
    return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)


def _fetched(repository: str, offline: bool) -> Path:
    """Return the folder of a model in the hub's cache; what is missing is downloaded, if that is
    allowed.

    The configuration comes first, so that a model which cannot run costs no download. Weights come
    last, so that a folder which has them has everything.
    """
    # snapshot_download asks once and falls back to the cache; hf_hub_download, for a single file,
    # would ask again and again for half a minute where there is no network.
    from huggingface_hub import constants, snapshot_download

    def fetch(patterns: list[str]) -> Path:
        found = snapshot_download(repository, allow_patterns=patterns, local_files_only=offline)
        return Path(found)

    offline = offline or constants.is_offline_mode()
    if not offline:
        logger.info("asking the hub for %s …", repository)
    try:
        translated(read_config(fetch(["config.json"])), repository)
        fetch(_SMALL_FILES)
        return fetch(_WEIGHTS)
    except EntropixError:
        raise
    except Exception as error:  # the hub client raises its own, its HTTP library's, and OSError
        raise ModelNotFoundError(
            f"{repository} is not, or not wholly, in the hub's cache, and it may not be downloaded"
            " here: unset HF_HUB_OFFLINE, or give a local folder or .gguf file"
            if offline
            else f"cannot download {repository} from the hub: {first_line(error).rstrip('.')}."
            " Check the name and the connection, or give a local folder or .gguf file. Files that"
            " came whole are kept: the same command goes on with the others."
        ) from error
