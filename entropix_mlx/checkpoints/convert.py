"""Writing a model as a folder that mlx-lm and this package load: mlx-lm's converter, for GGUF too.

The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import OutputError
from ..files import reason
from .folder import checked, explained
from .gguf import config_of, load_gguf, read_header
from .hub import locate
from .tokenizers import gguf_tokenizer


def convert(
    source: str | Path,
    out: str | Path,
    *,
    bits: int | None = None,
    group_size: int = 64,
    dtype: str | None = None,
    dequantize: bool = False,
) -> Path:
    """Write a model from a folder, a GGUF file or a hub id as a new folder; return the folder.

    Args:
        source: the model, as for `load`.
        out: the folder to write.
        bits: of a quantized weight; None quantizes nothing.
        group_size: weights that share a scale.
        dtype: type of the weights that are not quantized; None keeps it.
        dequantize: whether to unpack quantized weights.

    Raises:
        OutputError: `out` exists or cannot be written.
        EntropixError: whatever else `load` raises.
    """
    from mlx_lm import convert as mlx_lm_convert

    path, out = locate(source), Path(out)
    printed = contextlib.redirect_stdout(sys.stderr)  # mlx-lm's messages are no output
    with _new_folder(out) as folder, printed, explained(path, writes=True):
        if path.is_file():
            _convert_gguf(path, folder, bits, group_size, dtype, dequantize)
            return out
        with checked(path) as view:
            mlx_lm_convert(
                str(view),
                str(folder),
                quantize=bits is not None,
                q_bits=bits,
                q_group_size=group_size if bits is not None else None,
                dtype=dtype,
                dequantize=dequantize and bits is None,
            )
        (folder / "README.md").unlink(missing_ok=True)  # it says nothing
    return out


def _convert_gguf(
    path: Path, folder: Path, bits: int | None, group_size: int, dtype: str | None, dense: bool
) -> None:
    from mlx_lm import utils

    header = read_header(path)
    config, tokenizer = config_of(path, header), gguf_tokenizer(path, header.metadata)
    model = load_gguf(path, header, config, utils._get_classes)
    if "quantization" in config and (dense or bits is not None):
        model.set_dtype(mx.float32)  # so that there is only one rounding
        model = utils.dequantize_model(model)
        dtype = dtype or "float16"
    if dtype is not None:
        model.set_dtype(getattr(mx, dtype))
    if bits is not None:
        model, _ = utils.quantize_model(model, config, group_size, bits)
    save(model, tokenizer, folder)


def save(model: nn.Module, tokenizer: TokenizerWrapper, folder: Path) -> None:
    """Write a model in memory, of mlx-lm's or of our port, as a folder that mlx-lm loads."""
    from mlx_lm import utils

    config = asdict(model.args) | {"eos_token_id": sorted(tokenizer.eos_token_ids)}
    packed = next((layer for layer in model.modules() if "scales" in layer), None)
    if packed is not None:  # of the others, mlx-lm finds out the packing by their shapes
        names = ("group_size", "bits", "mode")
        config["quantization"] = {name: getattr(packed, name) for name in names}
    utils.save_model(folder, model)
    utils.save_config(config, folder / "config.json")
    tokenizer.save_pretrained(folder)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield the name of a folder to write, renamed to `out` on success and removed on failure.
    Raises `OutputError` if `out` exists, or cannot be written."""
    if os.path.lexists(out):
        raise OutputError(f"{out} exists: choose another folder, or remove it first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            yield beside / "new"
            (beside / "new").rename(out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {reason(error)}") from error
