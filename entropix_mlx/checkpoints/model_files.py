"""The files of a model folder: what each is and where it leads, before any library opens it.

The libraries that read configurations, tokenizers and templates open whatever they find. A link
would lead them out of the folder, and a FIFO or a device would make them wait or read for ever.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from .. import limits
from ..errors import WeightsError

INDEX = "model.safetensors.index.json"
COMPANIONS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""The files that a tokenizer may consist of, and the one that names the end-of-text tokens."""

_TEMPLATES = "additional_chat_templates"
"""The only folder inside a model folder that transformers looks into."""
_READ = (".json", ".model", ".jinja", ".txt", ".safetensors", ".pth")
"""Endings of all files that any reader of a model may open."""


def check_files(folder: Path) -> None:
    """Check every file of a folder that a reader of a model may open.

    Raises:
        WeightsError: one is no regular file, is too large, or leads out of the folder, or the
            folder cannot be read.
    """
    try:
        for path in _openable(folder):
            inside(folder, path.relative_to(folder))
    except OSError as error:
        raise WeightsError(f"{folder}: cannot be read: {error}") from error


def _openable(folder: Path) -> Iterator[Path]:
    for number, path in enumerate(folder.iterdir()):
        if number > limits.FOLDER_ENTRIES:
            raise WeightsError(f"{folder}: too many files; give the model a folder of its own")
        if path.suffix in _READ:
            yield path
        elif path.name == _TEMPLATES:
            _check_target(folder, path)
            yield from path.iterdir()


def inside(folder: Path, name: str | Path) -> Path:
    """Return the path of a file in a folder, which need not exist, once it is safe to open.

    Raises:
        WeightsError: it leads out of the folder, or is there and is of another kind or too large.
    """
    path = folder / name
    try:
        _check_target(folder, path)
        status = path.stat()
        limits.check_regular(status, path)
    except FileNotFoundError:
        return path
    except (OSError, RuntimeError) as error:
        # A link that leads to itself is a RuntimeError in Python 3.12 and older.
        endless = getattr(error, "errno", errno.ELOOP) == errno.ELOOP
        leads = "leads nowhere" if endless else "cannot be read"
        raise WeightsError(f"{path}: {leads}: {error}; put the file itself there") from error
    is_template = path.suffix == ".jinja"
    most = limits.TEMPLATE_BYTES if is_template else limits.TOKENIZER_BYTES
    if (is_template or path.name in COMPANIONS) and status.st_size > most:
        raise WeightsError(f"{path}: larger than {most:,} bytes, as no such file is")
    return path


def _check_target(folder: Path, path: Path) -> None:
    target = path.resolve()
    if not any(target.is_relative_to(root) for root in _roots(folder)):
        raise WeightsError(
            f"{path}: leads out of the folder, to {target}; put the file itself there"
        )


def _roots(folder: Path) -> list[Path]:
    """Return the folders that links in a model folder may lead into.

    In the hub's cache, the folder of a version holds links to the files themselves:

        models--OWNER--NAME/snapshots/VERSION/config.json → ../../blobs/HASH
        models--OWNER--NAME/blobs/HASH                    → ../../blobs/HA/HASH, in newer caches
    """
    repository = folder.parent.parent
    if folder.parent.name != "snapshots" or not (repository / "blobs").is_dir():
        return [folder]
    shared = [repository.parent / "blobs"] if repository.name.startswith("models--") else []
    return [folder, repository, *shared]
