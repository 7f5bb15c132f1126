"""Converting a model that mlx-lm computes: by mlx-lm's own converter."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.mlx_lm_model import is_folder, make_tapped
from ..errors import EntropixError, OutputError, UnsupportedModelError, first_line
from .model_folder import new_folder
from .recipe import Recipe

logger = logging.getLogger(__name__)


def convert_by_mlx_lm(checkpoint: Checkpoint, out: Path, recipe: Recipe, force: bool) -> Path:
    """Have mlx-lm write a model as a new folder; return the folder.

    Args:
        checkpoint: the source.
        out: the folder to write; it appears when it is complete.
        recipe: what to do with the weights.
        force: whether to replace `out` if it holds nothing but an earlier conversion's files.

    Raises:
        OutputError: `out` exists or cannot be written.
        UnsupportedModelError: mlx-lm cannot convert it; the message says what mlx-lm says.
    """
    from mlx_lm import convert

    if not is_folder(checkpoint):
        raise UnsupportedModelError(
            f"{checkpoint.path}: mlx-lm's own converter writes this model, and reads Hugging Face"
            " folders only: convert the model's folder instead"
        )
    model = make_tapped(checkpoint)
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    nbytes = sum(array.nbytes for array in arrays.values())
    logger.info("%s: mlx-lm's own converter writes this model", checkpoint.path.name)
    packed = recipe.bits is not None
    with new_folder(out, checkpoint.path, nbytes, force) as folder:
        folder.rmdir()  # mlx-lm makes it
        try:
            # What it prints is no part of this program's output.
            with contextlib.redirect_stdout(sys.stderr):
                convert(
                    str(checkpoint.path),
                    str(folder),
                    quantize=packed,
                    q_bits=recipe.bits,
                    q_group_size=recipe.group_size if packed else None,
                    dtype=recipe.dtype,
                    dequantize=recipe.dequantize and not packed,
                )
        except (EntropixError, OSError):
            raise
        except Exception as error:  # whatever a model makes it stumble over
            raise UnsupportedModelError(
                f"{checkpoint.path}: mlx-lm cannot convert it: {first_line(error)}"
            ) from error
        if not (folder / "config.json").is_file():
            raise OutputError(f"{out}: mlx-lm wrote no config.json; see what it said above")
        for extra in (*folder.glob("*.py"), *folder.glob("README.md")):
            extra.unlink()  # code is never run here, and the card says nothing
    return out
