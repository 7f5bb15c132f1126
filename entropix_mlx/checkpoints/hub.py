"""From a hub id to a folder on this disk.

The hub's own client keeps the files in its cache, where a file appears only when it is whole. It
goes on where a connection broke, and honours ``HF_HUB_OFFLINE``, ``HF_ENDPOINT`` and the proxies of
the environment. What is added here is the order in which files come, and the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ..errors import ModelNotFoundError, first_line
from .architecture import read_supported

logger = logging.getLogger(__name__)

_CONFIG = ("config.json",)
_SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
_WEIGHTS = ("model*.safetensors",)


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
