"""A stranger's model folder, and the checked copy of it that libraries are given to read.

These open whatever they find, and whatever a configuration names. A link would lead them out of the
folder, a FIFO would make them wait for ever, and MLX trusts the header of a safetensors file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from safetensors import SafetensorError, safe_open

from .. import limits
from ..errors import (
    EntropixError,
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
    brief,
    first_line,
)
from .translation import language_part, translated

_SMALL_FILES = (
    *("tokenizer.json", "tokenizer.model", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.json", "generation_config.json"),
    "hf_quant_config.json",  # of NVIDIA's packed weights, which mlx-lm reads with them
)
# Keys of a ``config.json`` by which transformers would look for other files.
_NAMES_FILES = ("configuration_files", "auto_map", "_name_or_path")
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MOST_LAYERS = 2048
_MESSAGE = 300


@contextmanager
def checked(folder: Path) -> Iterator[Path]:
    """Yield a folder of links to a model's files, with its configuration in mlx-lm's keys, for
    libraries to read; it is gone afterwards, and what was opened stays open.

    Nothing of it is executed: it holds no code, no pickle, and no key that names a file. Raises
    what `read_config` and `translated` do, `WeightsError` for other files and `TokenizerError`.
    """
    from mlx_lm.utils import _encode_tagged_floats

    folder = folder.resolve()
    config = translated(read_config(folder), str(folder / "config.json"))
    with tempfile.TemporaryDirectory(prefix="entropix-") as name:
        view = Path(name)
        for path in _weights(folder):
            (view / path.name).symlink_to(path.resolve())
        for file in _SMALL_FILES:
            if (path := inside(folder, file)).exists():
                (view / file).symlink_to(path.resolve())
        if (view / "generation_config.json").exists():  # which mlx-lm passes over if it is damaged
            read_object(folder / "generation_config.json", limits.CONFIG_BYTES, TokenizerError)
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            if (path := inside(folder, file)).exists():
                content = read_object(path, limits.TOKENIZER_BYTES, TokenizerError)
                known = {key: value for key, value in content.items() if _opens_nothing(key, value)}
                (view / file).write_text(json.dumps(known))
        stated = {key: value for key, value in config.items() if key not in _NAMES_FILES}
        (view / "config.json").write_text(json.dumps(_encode_tagged_floats(stated)))
        yield view


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's ``config.json``. Raises `ModelNotFoundError` if there is none,
    `WeightsError` if it is damaged or absurd, `UnsupportedModelError` if the model needs code."""
    from mlx_lm.utils import _decode_tagged_floats

    file = inside(folder, "config.json")
    if not file.exists():
        raise ModelNotFoundError(f"{folder} holds no model: config.json is missing")
    config: dict[str, Any] = _decode_tagged_floats(read_object(file, limits.CONFIG_BYTES))
    if config.get("model_file") is not None:
        raise UnsupportedModelError(
            f"{file}: the model needs code of its own ({brief(config['model_file'])}), and code"
            " from a model's folder is never run here: use a model that mlx-lm computes itself"
        )
    check_sizes(config, str(file))
    return config


def check_sizes(config: dict[str, Any], where: str) -> None:
    """Refuse sizes that would build endless layers. Raises `WeightsError` if one is absurd."""
    for name, value in language_part(config).items():
        layers = name in _LAYER_COUNTS
        most = MOST_LAYERS if layers else limits.SIZE
        absurd = type(value) is int and abs(value) > most and not name.endswith("_id")
        if absurd or (layers and (type(value) is not int or value < 1)):
            raise WeightsError(f"{where}: {name} cannot be {brief(value)}; download it again")


def read_object(file: Path, most: int, error: type[EntropixError] = WeightsError) -> dict[str, Any]:
    """Return the JSON object in a file of at most so many bytes. Raises `error` if the file cannot
    be read, or holds something else."""
    try:
        content = json.loads(limits.read_text(file, most))
    except (OSError, ValueError, RecursionError) as reason:
        raise error(f"{file}: cannot be read as JSON: {first_line(reason)}") from reason
    if not isinstance(content, dict):
        raise error(f"{file}: not a JSON object; download it again")
    return content


@contextmanager
def explained(path: Path, *, writes: bool = False) -> Iterator[None]:
    """Raise whatever a model makes mlx-lm stumble over as an `UnsupportedModelError`; an `OSError`
    stays one where files are written meanwhile."""
    try:
        yield
    except EntropixError:
        raise
    except Exception as error:
        if writes and isinstance(error, OSError):
            raise
        said = shorten(" ".join(str(error).split()) or repr(error), _MESSAGE, placeholder=" …")
        if isinstance(error, TypeError) and " missing " in said:
            said = f"its config.json lacks {said.rpartition(': ')[2]}"
        elif not isinstance(error, ValueError | RuntimeError | OSError):
            said = f"{type(error).__name__}: {said}"
        raise UnsupportedModelError(f"{path}: mlx-lm cannot load this model: {said}") from error


def inside(folder: Path, name: str | Path) -> Path:
    """Return the path of a file in a folder, which need not exist, once it is safe to open. Raises
    `WeightsError` if it leads out of the folder, or is there and is of another kind or too
    large."""
    path = folder / name
    try:
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in _roots(folder)):
            raise WeightsError(f"{path}: leads out of the folder, to {target}")
        if not os.path.lexists(path):
            return path
        status = path.stat()
        limits.check_regular(status, path)
    except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError in Python 3.12
        raise WeightsError(f"{path}: cannot be read: {error}; put the file itself there") from error
    most = limits.TEMPLATE_BYTES if path.suffix == ".jinja" else limits.TOKENIZER_BYTES
    if path.suffix != ".safetensors" and status.st_size > most:
        raise WeightsError(f"{path}: larger than {most:,} bytes, as no such file is")
    return path


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


def _weights(folder: Path) -> list[Path]:
    """Return the files that mlx-lm reads, once their headers are checked. Raises `WeightsError` if
    there is none, or one is damaged."""
    try:
        names = sorted(path.name for path in folder.glob("model*.safetensors"))
    except OSError as error:
        raise WeightsError(f"{folder}: cannot be read: {error}") from error
    if not names:
        raise WeightsError(
            f"{folder}: no model*.safetensors file; give a folder that has one, or a .gguf file"
        )
    paths = [inside(folder, name) for name in names]
    for path in paths:
        tensor_names(path)
    return paths


def tensor_names(path: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file, once its header is checked. Raises
    `WeightsError` if it is damaged."""
    try:
        with safe_open(str(path), framework="numpy") as shard:
            return set(shard.keys())
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}. Download it again.") from error


_WORDS = (
    *("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"),
    *("tokenizer_class", "auto_map", "backend", "added_tokens_decoder", "chat_template"),
    *("padding_side", "truncation_side", "truncation_strategy", "model_input_names", "errors"),
    *("src_lang", "tgt_lang", "language", "task", "response_schema", "response_template"),
)
"""What a ``tokenizer_config.json`` says in words that opens no file: transformers opens what other
keys name, wherever that is."""
_MODULES = ("tool_parser_type", "chat_template_type")  # modules of mlx-lm


def _opens_nothing(name: str, value: Any) -> bool:
    if name in _MODULES:
        return isinstance(value, str) and value.isidentifier()
    return name in _WORDS or name.endswith("_token") or not isinstance(value, str | list | dict)


def check_endings(ids: Any, where: object) -> None:
    """Check the end-of-text ids of a configuration. Raises `TokenizerError` if they are no whole
    numbers, so that generation would never stop."""
    numbers = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if any(type(number) is not int for number in numbers):
        raise TokenizerError(
            f"{where}: eos_token_id must be a whole number or a list of them, not {brief(ids)}"
        )
