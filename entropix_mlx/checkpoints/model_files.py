"""The files of a model folder: what each is and where it leads, before any library opens it.

The libraries that read configurations, tokenizers and templates open whatever they find. A link
would lead them out of the folder, and a FIFO or a device would make them wait or read for ever.
"""

from __future__ import annotations

import errno
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import TokenizerError, WeightsError, brief
from ..models.config import read_object

logger = logging.getLogger(__name__)

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


_TOKENS = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
_WORDS = (
    *("tokenizer_class", "auto_map", "backend", "added_tokens_decoder", "chat_template"),
    *("padding_side", "truncation_side", "truncation_strategy", "model_input_names", "errors"),
    *("src_lang", "tgt_lang", "language", "task", "response_schema", "response_template"),
)
"""What a ``tokenizer_config.json`` says in words, beside its tokens, that opens no file."""
_MODULES = ("tool_parser_type", "chat_template_type")
"""Modules of mlx-lm."""
_VERSIONED = {
    "tokenizer_config.json": ("fast_tokenizer_files", "tokenizer.json"),
    "config.json": ("configuration_files", "config.json"),
}
"""Keys that name another file for another version of transformers, and the only file read here."""


@contextmanager
def filtered(folder: Path) -> Iterator[Path]:
    """Yield a folder for a library to read in place of a model's, which `check_files` passed.

    Its files are links to the model's. Its configurations lack what is not known to be harmless:
    transformers opens what some keys name, wherever that is, and passes all of them to classes
    that open more.

    Raises:
        TokenizerError: a configuration names another file than the one that would be read.
    """
    with tempfile.TemporaryDirectory() as name:
        view = Path(name)
        for path in folder.iterdir():
            if path.name in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
                known = _harmless(path, read_object(path, limits.TOKENIZER_BYTES, TokenizerError))
                (view / path.name).write_text(json.dumps(known))
            elif path.suffix in _READ or path.name == _TEMPLATES:
                (view / path.name).symlink_to(path.resolve())
        yield view


def _harmless(file: Path, content: dict[str, Any]) -> dict[str, Any]:
    key, only = _VERSIONED.get(file.name, ("", ""))
    if content.get(key, [only]) != [only]:
        raise TokenizerError(
            f"{file}: {key} names {brief(content[key])}, and only {only} is read: put the file that"
            f" is to be used in its place, and remove {key}"
        )
    if file.name == "config.json":
        return content
    is_harmless = _is_setting if file.name == "tokenizer_config.json" else _is_token
    known = {name: value for name, value in content.items() if is_harmless(name, value)}
    if left_out := [name for name in content if name not in known and content[name]]:
        logger.debug("%s: not known, so left out: %s", file, ", ".join(left_out))
    return known


def _is_setting(name: str, value: Any) -> bool:
    if name in _MODULES:
        return isinstance(value, str) and value.isidentifier()
    return _is_token(name, value) or name in _WORDS or not isinstance(value, str | list | dict)


def _is_token(name: str, _: Any) -> bool:
    return name in _TOKENS or name.endswith("_token")
