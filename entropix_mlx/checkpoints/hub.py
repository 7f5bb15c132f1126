"""From a hub id to a folder on this disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ModelNotFoundError
from ..models.config import read_config

_FILES = ["*.json", "model*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]


def is_hub_id(text: str) -> bool:
    """Tell whether a text is a hub id ``owner/name``, by the hub's own rules."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1


def download(repository: str) -> Path:
    """Download a hub model; its configuration first, so that no weights come for nothing.

    Raises:
        ModelNotFoundError: it cannot be downloaded.
        UnsupportedModelError: it is not of the Llama family.
        WeightsError: its configuration is damaged.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    def attempt(fetch: Callable[..., str], **options: Any) -> Path:
        try:
            return Path(fetch(repository, **options))
        except Exception as error:  # the hub client raises its own, its HTTP library's, and OSError
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ModelNotFoundError(
                f"cannot download {repository} from the hub: {reason} Check the name and the"
                " connection, or give a local folder or .gguf file."
            ) from error

    read_config(attempt(hf_hub_download, filename="config.json").parent)
    return attempt(snapshot_download, allow_patterns=_FILES)
